//! The devices and their sizes.
//!
//! A size comes from NVML or from jobs, which may lie:
//! * A report counts without NVML, or within `[7/8 * n, n]` of NVML's `n`, as CUDA has less.
//! * The owner's report counts; else most users'; on a tie, the larger. Too small a size refuses
//!   jobs for good. Too large a size shows as foreign memory at the next probe.
//! * The last broker's size holds until the first report. A question for a place is no report.
//!
//! Devices that NVML does not list: at most [`MOST`], [`EACH`] per user. A new one replaces an
//! unused one. Jobs beyond run uncounted.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::controller::Controller;
use weft_admission::{Device, DeviceId, Event};

/// Most devices that NVML does not list, and most that one user named. The owner may name all.
const MOST: usize = 64;
const EACH: usize = 16;

/// Most users whose reports on a device are kept.
const USERS: usize = 1024;

/// Largest part of a device that CUDA lacks against NVML's size. Small devices hold back a
/// twentieth for the driver.
const BELOW: u64 = 8;

/// Most devices of NVML's list; real ones have some dozens, instances included.
const LISTED: usize = 1024;

/// Reports of a device's size.
#[derive(Debug, Default)]
pub struct Said {
    /// User that named it first.
    by: u32,
    /// Last report of each user.
    sizes: BTreeMap<u32, u64>,
}

impl Controller {
    /// The number of a known device.
    pub fn known_device(&self, uuid: &str) -> Option<DeviceId> {
        let at = self.devices.iter().position(|known| known == uuid);
        at.map(|at| DeviceId(at as u32))
    }

    /// The device with this UUID, `total` bytes by this user's report. An unknown one is added.
    /// `None`: there are too many.
    pub fn device(&mut self, uuid: &str, total: u64, uid: u32) -> Option<DeviceId> {
        let device = match self.known_device(uuid) {
            Some(device) => device,
            None => self.new_device(uuid, total, uid)?,
        };
        let sizes = &mut self.said.entry(device).or_default().sizes;
        if total > 0 && (sizes.len() < USERS || sizes.contains_key(&uid)) {
            sizes.insert(uid, total);
        }
        self.resizes(device);
        Some(device)
    }

    fn new_device(&mut self, uuid: &str, total: u64, uid: u32) -> Option<DeviceId> {
        let size = self.listed.get(uuid).copied().unwrap_or(total);
        if size == 0 {
            return None;
        }
        let id = self.number_for(uuid, uid)?;
        let device = self.blank(id, uuid, size);
        match self.devices.get_mut(id.0 as usize) {
            Some(slot) => *slot = uuid.to_string(),
            None => self.devices.push(uuid.to_string()),
        }
        self.observer.forget(id);
        self.said.insert(
            id,
            Said {
                by: uid,
                sizes: BTreeMap::new(),
            },
        );
        self.tell(Event::Device(device));
        Some(id)
    }

    /// A device without measurements.
    pub fn blank(&self, id: DeviceId, uuid: &str, size: u64) -> Device {
        let context = self.known.context_on(uuid);
        Device {
            context: context.unwrap_or(0),
            measured: context.is_some() || !self.measures,
            ..Device::new(id, size)
        }
    }

    /// A number for a new device. Beyond the bounds it is an unused device's.
    fn number_for(&self, uuid: &str, uid: u32) -> Option<DeviceId> {
        let next = DeviceId(self.devices.len() as u32);
        if self.listed.contains_key(uuid) {
            return Some(next);
        }
        let named = |id: &DeviceId| self.said.get(id).map(|said| said.by);
        let unlisted = || {
            let all = self.devices.iter().zip(0..).map(|(uuid, at)| (uuid, DeviceId(at)));
            all.filter(|(uuid, _)| !self.listed.contains_key(*uuid))
                .map(|(_, id)| id)
        };
        let own = unlisted().filter(|id| named(id) == Some(uid)).count();
        if unlisted().count() < MOST && (own < EACH || self.is_owner(uid)) {
            return Some(next);
        }
        let idle = |id: &DeviceId| {
            let used = self.gangs.values().any(|gang| gang.device == *id);
            !used && self.machine.jobs_on(*id) == 0
        };
        // The user's own first.
        let mut free: Vec<DeviceId> = unlisted().filter(idle).collect();
        free.sort_by_key(|id| (named(id) != Some(uid), *id));
        let first = free.first().copied()?;
        (named(&first) == Some(uid) || own < EACH || self.is_owner(uid)).then_some(first)
    }

    /// Whether this user's reports take precedence.
    pub fn is_owner(&self, uid: u32) -> bool {
        !self.shared || uid == 0 || uid == self.owner
    }

    /// Computes a device's size anew.
    fn resizes(&mut self, device: DeviceId) {
        let Some(about) = self.about(device).copied() else {
            return;
        };
        let listed = self
            .devices
            .get(device.0 as usize)
            .and_then(|uuid| self.listed.get(uuid));
        let listed = listed.copied();
        let believed = |bytes: u64| listed.is_none_or(|most| (most - most / BELOW..=most).contains(&bytes));
        let said = self.said.get(&device);
        let words = || {
            said.into_iter()
                .flat_map(|said| &said.sizes)
                .filter(|(_, bytes)| believed(**bytes))
        };
        let owners = words()
            .filter(|(uid, _)| self.is_owner(**uid))
            .map(|(_, bytes)| *bytes)
            .max();
        let mut votes: BTreeMap<u64, usize> = BTreeMap::new();
        for (_, bytes) in words() {
            *votes.entry(*bytes).or_default() += 1;
        }
        let most = votes
            .into_iter()
            .map(|(bytes, users)| (users, bytes))
            .max()
            .map(|(_, bytes)| bytes);
        let size = owners.or(most).or(listed).unwrap_or(about.memory);
        if size != about.memory {
            log::info!("device {} has {size} bytes and not {}", device.0, about.memory);
            self.tell(Event::Device(Device { memory: size, ..about }));
            self.carry_out();
        }
    }

    /// Takes in NVML's list of devices and sizes.
    pub fn lists(&mut self, devices: &[(String, u64)]) {
        let new: BTreeMap<String, u64> = devices.iter().take(LISTED).cloned().collect();
        if new != self.listed {
            self.listed = new;
            for device in 0..self.devices.len() as u32 {
                self.resizes(DeviceId(device));
            }
        }
    }
}
