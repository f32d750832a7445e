// SPDX-License-Identifier: MIT OR Apache-2.0
//! The devices and their sizes.
//!
//! A size comes from NVML or from jobs, which may report a wrong one:
//! * A report counts if NVML does not list the device, or if it is within `[7/8 * n, n]` of NVML's
//!   `n`: CUDA reports less than NVML.
//! * The owner's report counts; else that of most users; on a tie, the larger. Too small a size
//!   refuses jobs for good. Too large a size shows as foreign memory at the next probe.
//! * The last broker's size is used until the first report. A query for a place is not a report.
//!
//! Devices that NVML does not list: at most [`UNLISTED_DEVICES`], [`DEVICES_OF_A_USER`] per user.
//! Beyond that, a new device replaces an unused one, or its jobs run uncounted.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};

use weft_admission::DeviceId;

/// Most devices that NVML does not list.
const UNLISTED_DEVICES: usize = 64;
/// Most of them that one user named first. The owner may name all.
const DEVICES_OF_A_USER: usize = 16;

/// Most users whose reports on a device are kept.
const REPORTING_USERS: usize = 1024;

/// Largest part of NVML's size by which CUDA's may be smaller, as a divisor. Small devices reserve
/// a twentieth for the driver.
const LACKING_PART: u64 = 8;

/// Most devices of NVML's list; real lists have some dozens, MIG instances included.
const LISTED_DEVICES: usize = 1024;

/// Reports of a device's size.
#[derive(Debug, Default)]
struct SizeReports {
    /// User that named it first.
    by: u32,
    /// Last report of each user, bytes.
    sizes: BTreeMap<u32, u64>,
}

/// The devices that jobs asked for, by number.
#[derive(Debug)]
pub struct Devices {
    uuids: Vec<String>,
    reports: HashMap<DeviceId, SizeReports>,
    /// NVML's list: UUIDs with sizes in bytes.
    listed: BTreeMap<String, u64>,
    /// Whether users distrust each other.
    shared: bool,
    /// The user who runs the broker.
    owner: u32,
}

impl Devices {
    /// The last broker's devices, by number.
    pub fn new(uuids: Vec<String>) -> Devices {
        Devices {
            uuids,
            reports: HashMap::new(),
            listed: BTreeMap::new(),
            shared: false,
            owner: rustix::process::geteuid().as_raw(),
        }
    }

    pub fn set_shared(&mut self, shared: bool) {
        self.shared = shared;
    }

    /// Whether users distrust each other.
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    #[cfg(test)]
    pub fn set_owner(&mut self, uid: u32) {
        self.owner = uid;
    }

    /// The number of a known device.
    pub fn id(&self, uuid: &str) -> Option<DeviceId> {
        let at = self.uuids.iter().position(|known| known == uuid);
        at.map(|at| DeviceId(at as u32))
    }

    pub fn uuid(&self, id: DeviceId) -> Option<&String> {
        self.uuids.get(id.0 as usize)
    }

    /// UUIDs by number.
    pub fn uuids(&self) -> &[String] {
        &self.uuids
    }

    /// All numbers.
    pub fn ids(&self) -> impl Iterator<Item = DeviceId> + use<> {
        (0..self.uuids.len() as u32).map(DeviceId)
    }

    /// Whether this user's reports take precedence.
    pub fn is_owner(&self, uid: u32) -> bool {
        !self.shared || uid == 0 || uid == self.owner
    }

    /// Whether users distrust each other and NVML lists this device.
    pub fn is_shared_and_listed(&self, id: DeviceId) -> bool {
        self.shared && self.uuid(id).is_some_and(|uuid| self.listed.contains_key(uuid))
    }

    /// Bytes by NVML's list.
    pub fn listed_bytes(&self, uuid: &str) -> Option<u64> {
        self.listed.get(uuid).copied()
    }

    /// Adds a device that has `total` bytes by this user's report; `idle` is true for devices
    /// without jobs. Returns its number and its size. `None`: there are too many devices, or it has
    /// no size.
    pub fn add(
        &mut self,
        uuid: &str,
        total: u64,
        uid: u32,
        idle: impl Fn(DeviceId) -> bool,
    ) -> Option<(DeviceId, u64)> {
        let bytes = self.listed_bytes(uuid).unwrap_or(total);
        if bytes == 0 {
            return None;
        }
        let id = self.number_for(uuid, uid, idle)?;
        match self.uuids.get_mut(id.0 as usize) {
            Some(slot) => *slot = uuid.to_string(),
            None => self.uuids.push(uuid.to_string()),
        }
        let sizes = BTreeMap::new();
        self.reports.insert(id, SizeReports { by: uid, sizes });
        Some((id, bytes))
    }

    /// A number for a new device; beyond the bounds, that of an unused device.
    fn number_for(&self, uuid: &str, uid: u32, idle: impl Fn(DeviceId) -> bool) -> Option<DeviceId> {
        let next = DeviceId(self.uuids.len() as u32);
        if self.listed.contains_key(uuid) {
            return Some(next);
        }
        let named_by = |id: &DeviceId| self.reports.get(id).map(|reports| reports.by);
        let unlisted = || {
            let all = self.ids().zip(&self.uuids);
            all.filter(|(_, uuid)| !self.listed.contains_key(*uuid))
                .map(|(id, _)| id)
        };
        let own = unlisted().filter(|id| named_by(id) == Some(uid)).count();
        let may_add = own < DEVICES_OF_A_USER || self.is_owner(uid);
        if unlisted().count() < UNLISTED_DEVICES && may_add {
            return Some(next);
        }
        // The user's own first.
        let mut free: Vec<DeviceId> = unlisted().filter(|id| idle(*id)).collect();
        free.sort_by_key(|id| (named_by(id) != Some(uid), *id));
        let first = free.first().copied()?;
        (named_by(&first) == Some(uid) || may_add).then_some(first)
    }

    /// Records a user's report of a device's size; 0 is no report.
    pub fn report(&mut self, id: DeviceId, total: u64, uid: u32) {
        let sizes = &mut self.reports.entry(id).or_default().sizes;
        if total > 0 && (sizes.len() < REPORTING_USERS || sizes.contains_key(&uid)) {
            sizes.insert(uid, total);
        }
    }

    /// Replaces NVML's list of UUIDs and sizes. Returns whether it changed.
    pub fn set_listed(&mut self, devices: &[(String, u64)]) -> bool {
        let new: BTreeMap<String, u64> = devices.iter().take(LISTED_DEVICES).cloned().collect();
        let changed = new != self.listed;
        self.listed = new;
        changed
    }

    /// A device's size in bytes, by reports and NVML's list. `None`: there are none.
    pub fn bytes(&self, id: DeviceId) -> Option<u64> {
        let listed = self.uuid(id).and_then(|uuid| self.listed_bytes(uuid));
        let believed = |bytes: u64| listed.is_none_or(|most| (most - most / LACKING_PART..=most).contains(&bytes));
        let sizes = || {
            let reports = self.reports.get(&id).into_iter();
            let sizes = reports.flat_map(|reports| &reports.sizes);
            sizes.filter(|(_, bytes)| believed(**bytes))
        };
        let owners = sizes()
            .filter(|(uid, _)| self.is_owner(**uid))
            .map(|(_, bytes)| *bytes)
            .max();
        let mut votes: BTreeMap<u64, usize> = BTreeMap::new();
        for (_, bytes) in sizes() {
            *votes.entry(*bytes).or_default() += 1;
        }
        let most = votes.into_iter().map(|(bytes, users)| (users, bytes)).max();
        owners.or(most.map(|(_, bytes)| bytes)).or(listed)
    }
}
