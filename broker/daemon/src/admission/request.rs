// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client's request for admission, in the core's terms.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;

use super::auto_backing::cramped;
use crate::clients::registry::Entry;
use weft_admission::{Ask, Backing, DeviceId, DurationClass, Job, Need, User};
use weft_protocol::Ns;
use weft_protocol::control::Wants;

/// Divisor of the device's memory that gives the share of a job of unknown need (1.25 GB of 80),
/// which then grows. A large guess would keep other jobs out for nothing.
pub const UNKNOWN_PART: u64 = 64;

/// Most processes of a job on a device.
pub const MOST_PROCESSES: u32 = 1024;

/// A job's request for a device on which a context takes `context` bytes. `declared`: its declared
/// need, bytes.
pub fn ask(
    (job, user): (Job, User),
    entry: &Entry,
    wants: &Wants,
    (device, context): (DeviceId, u64),
    declared: Option<u64>,
) -> Ask {
    let mut peak = declared.unwrap_or(wants.total / UNKNOWN_PART);
    let processes = wants.processes.clamp(1, MOST_PROCESSES);
    if wants.devices > 1 {
        // The bytes that do not fit are for its other devices.
        peak = peak.min(wants.total.saturating_sub(context.saturating_mul(u64::from(processes))));
    }
    let backing = match wants.managed {
        true => Backing::Managed {
            // The bytes that a turn touches are unknown, so assume all of them.
            working_set: peak.min(wants.total),
        },
        // Evicted memory, in the worst case all of it, is charged to the job's control group.
        false if wants.either && cramped(wants, peak).is_none() => Backing::Auto {
            working_set: peak.min(wants.total),
        },
        false => Backing::Device,
    };
    Ask {
        job,
        user,
        priority: entry.priority.load(Ordering::Relaxed),
        need: Need {
            peak,
            processes,
            expected: expected_ns(entry, wants).unwrap_or(DurationClass::Medium.expected()),
            backing,
            // A part on a further device may exceed its request by as much as the whole job.
            limit: wants
                .limit
                .map(|limit| peak.saturating_add(limit.saturating_sub(wants.memory.unwrap_or(limit)))),
        },
        devices: vec![device],
    }
}

/// Bytes of the device that a running process with this share takes.
pub fn fixed(wants: &Wants, context: u64, share: u64) -> u64 {
    match wants.managed {
        // Managed memory does not count as device memory.
        true => context,
        false => share.saturating_add(context),
    }
}

/// Declared run time, or that of the profile, ns.
pub fn expected_ns(entry: &Entry, wants: &Wants) -> Option<Ns> {
    match wants.duration.as_deref() {
        Some("short") => Some(DurationClass::Short.expected()),
        Some("long") => Some(DurationClass::Long.expected()),
        Some(_) => Some(DurationClass::Medium.expected()),
        None => entry.loaded.as_ref().map(|profile| profile.ran).filter(|ran| *ran > 0),
    }
}

/// Declared need, or that of the profile, bytes.
pub fn declared(entry: &Entry, wants: &Wants) -> Option<u64> {
    let profile = entry.loaded.as_ref();
    let peak = profile.map(|profile| profile.memory_peak).filter(|peak| *peak > 0);
    wants.memory.or(peak)
}
