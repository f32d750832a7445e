//! What clients say of their memory, and how much of it is kept: each granule costs the broker some
//! hundred bytes, and a message of twenty bytes can name a million of them.
//!
//! What is beyond these limits moves on demand, as if nobody planned it.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use super::granules::granules;
use super::known::Known;
use super::thread::Thread;
use weft_paging::GRANULE;

/// No device is larger.
const LARGEST_DEVICE: u64 = 1 << 40;

/// Of a device whose size nobody has said yet.
const UNKNOWN_DEVICE: u64 = 192 << 30;

/// Managed ranges of a guest's clients together may come to so many times what there is on the
/// device and on the host.
const TIMES_OF_A_GUEST: u64 = 2;

/// Uses in the forecasts of a guest's clients together: what sixteen of ours tell at most.
const USES_OF_A_GUEST: usize = 1 << 18;

/// Ranges of one client that are kept; an allocator that makes more is left to demand paging.
const RANGES: usize = 65_536;

impl Thread {
    /// A client says how large its device is. It counts for the plan of that device as far as
    /// others say the same ([`Thread::sizes`]).
    pub(super) fn uses_device(&mut self, client: u64, uuid: String, bytes: u64) {
        if let Some(known) = self.clients.get_mut(&client) {
            known.bytes = Some(bytes.min(LARGEST_DEVICE));
            // The first device is the one that its memory is taken for; further ones are left to
            // demand paging.
            known.device.get_or_insert(uuid);
            known.dirty |= !known.ranges.is_empty();
        }
    }

    /// How large each device is: as most users say whose clients are there, else as who came first.
    pub(super) fn sizes(&self) -> HashMap<String, u64> {
        let mut said: HashMap<&str, Vec<(u32, u64)>> = HashMap::new();
        for known in self.clients.values() {
            if let (Some(uuid), Some(bytes)) = (&known.device, known.bytes) {
                let here = said.entry(uuid).or_default();
                // Each user has one voice.
                if !here.iter().any(|(uid, _)| *uid == known.entry.uid) {
                    here.push((known.entry.uid, bytes));
                }
            }
        }
        let size = |here: &[(u32, u64)]| {
            let voices = |bytes: u64| here.iter().filter(|(_, other)| *other == bytes).count();
            let mut best: Option<(usize, u64)> = None;
            for (_, bytes) in here {
                let voices = voices(*bytes);
                if best.is_none_or(|(most, _)| voices > most) {
                    best = Some((voices, *bytes));
                }
            }
            best.map(|(_, bytes)| bytes)
        };
        said.into_iter()
            .filter_map(|(uuid, here)| Some((uuid.to_string(), size(&here)?)))
            .collect()
    }

    /// A client's range came to be managed.
    pub(super) fn backed(&mut self, client: u64, start: u64, bytes: u64) {
        if bytes == 0 || start.checked_add(bytes).is_none() {
            return;
        }
        let new = u64::from(granules(start, bytes).count);
        let Some(known) = self.clients.get(&client) else { return };
        let old = known.ranges.get(&start).map_or(0, |(old, _)| count(start, *old));
        let most = known.bytes.unwrap_or(UNKNOWN_DEVICE).saturating_add(self.host) / GRANULE;
        let his = |known: &Known| known.granules - old + new;
        let whose = known.entry.uid;
        let fits = known.ranges.len() < RANGES
            && his(known) <= most
            && (known.entry.house.is_none()
                || self.of_guest(whose, |known| known.granules) - old + new <= most * TIMES_OF_A_GUEST);
        let Some(known) = self.clients.get_mut(&client).filter(|_| fits) else {
            return;
        };
        known.granules = his(known);
        known.ranges.insert(start, (bytes, known.round));
        known.dirty = true;
    }

    /// How many uses of a forecast are taken from a client now.
    pub(super) fn uses_left(&self, client: u64) -> usize {
        match self.clients.get(&client) {
            // It has nothing that could be used.
            Some(known) if known.ranges.is_empty() => 0,
            Some(known) if known.entry.house.is_some() => {
                let his = self.of_guest(known.entry.uid, |known| known.forecast.kept() as u64);
                USES_OF_A_GUEST.saturating_sub(usize::try_from(his).unwrap_or(usize::MAX))
            }
            Some(_) => usize::MAX,
            None => 0,
        }
    }

    /// A sum over the clients of a guest.
    fn of_guest(&self, uid: u32, of: impl Fn(&Known) -> u64) -> u64 {
        let his = self.clients.values().filter(|known| known.entry.uid == uid);
        his.map(of).sum()
    }
}

/// Granules that a range lies in.
pub(super) fn count(start: u64, bytes: u64) -> u64 {
    u64::from(granules(start, bytes).count)
}
