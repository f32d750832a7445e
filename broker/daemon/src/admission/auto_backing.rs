// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lines about auto backing (`--backing auto`) and about managed memory that host memory bounds.
//!
//! Invariants: a process gets its backing once, with its admission, and keeps it. A process that
//! began without the broker has device memory, and the job table follows.
#![forbid(unsafe_code)]

use weft_admission::Backing;
use weft_protocol::amount::{apart, shown};
use weft_protocol::control::Wants;

/// Host bytes left by the job's control groups, if its managed memory could exceed them: others may
/// evict all of it.
pub fn cramped(wants: &Wants, peak: u64) -> Option<u64> {
    wants.host.filter(|left| *left < peak)
}

/// Reason why a job with auto backing has device memory, as the end of a line.
pub fn reason(left: u64) -> String {
    format!(
        "; with managed memory it would exceed its control group, which leaves {} of host memory",
        shown(left)
    )
}

/// Warning to a job that asked for managed memory.
pub fn warning(left: u64, peak: u64) -> String {
    let [left, peak] = apart([left, peak]);
    format!(
        "its control group leaves {left} of host memory, its managed memory is {peak}: memory evicted from the device is charged to the group, and the kernel kills a job that exceeds it (raise Slurm's --mem, Kubernetes' limits.memory or memory.max)"
    )
}

/// Line to a job whose `bytes` did not fit on the device.
pub fn did_not_fit(bytes: u64) -> String {
    format!(
        "{} of device memory are not free: begins at once with managed memory (--backing auto; --backing device waits for device memory)",
        shown(bytes)
    )
}

/// A running job's backing, for people.
pub fn name_of(backing: Backing) -> &'static str {
    match backing {
        Backing::Device | Backing::Auto { .. } => "device",
        Backing::Managed { .. } => "managed",
        Backing::AutoManaged { .. } => "managed: did not fit",
    }
}
