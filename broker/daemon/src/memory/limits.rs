//! Bounds on what is kept of clients' reports: a granule costs the broker some hundred bytes, and a
//! message of twenty bytes can name a million.
//!
//! Memory beyond these bounds moves on demand.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use super::granules::granules;
use super::known::Known;
use super::thread::Thread;
use weft_paging::GRANULE;

/// Largest device.
const LARGEST_DEVICE: u64 = 1 << 40;

/// Assumed device where no size was reported.
const UNKNOWN_DEVICE: u64 = 192 << 30;

/// Bound on a guest's managed ranges together, as a multiple of device + host.
const TIMES_OF_A_GUEST: u64 = 2;

/// Bound on a guest's kept forecast uses: what sixteen clients send.
const USES_OF_A_GUEST: usize = 1 << 18;

/// Bound on a client's kept ranges. Further ones move on demand.
const RANGES: usize = 65_536;

impl Thread {
    /// Takes in a client's report of its device's size. Users vote on it ([`Thread::sizes`]).
    pub(super) fn uses_device(&mut self, client: u64, uuid: String, bytes: u64) {
        if let Some(known) = self.clients.get_mut(&client) {
            known.bytes = Some(bytes.min(LARGEST_DEVICE));
            // Only a client's first device is planned.
            known.device.get_or_insert(uuid);
            known.dirty |= !known.ranges.is_empty();
        }
    }

    /// Device sizes by most users' reports; on a tie, by the first.
    pub(super) fn sizes(&self) -> HashMap<String, u64> {
        let mut said: HashMap<&str, Vec<(u32, u64)>> = HashMap::new();
        for known in self.clients.values() {
            if let (Some(uuid), Some(bytes)) = (&known.device, known.bytes) {
                let here = said.entry(uuid).or_default();
                // One vote per user.
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

    /// Takes in a managed range, within the bounds.
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

    /// How many more uses are taken from a client.
    pub(super) fn uses_left(&self, client: u64) -> usize {
        match self.clients.get(&client) {
            // Without ranges it has nothing to use.
            Some(known) if known.ranges.is_empty() => 0,
            Some(known) if known.entry.house.is_some() => {
                let his = self.of_guest(known.entry.uid, |known| known.forecast.kept() as u64);
                USES_OF_A_GUEST.saturating_sub(usize::try_from(his).unwrap_or(usize::MAX))
            }
            Some(_) => usize::MAX,
            None => 0,
        }
    }

    /// A sum over a guest's clients.
    fn of_guest(&self, uid: u32, of: impl Fn(&Known) -> u64) -> u64 {
        let his = self.clients.values().filter(|known| known.entry.uid == uid);
        his.map(of).sum()
    }
}

/// Number of granules that a range touches.
pub(super) fn count(start: u64, bytes: u64) -> u64 {
    u64::from(granules(start, bytes).count)
}
