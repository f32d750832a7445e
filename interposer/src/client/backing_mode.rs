// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether this process's memory is managed: the request, and the decision of `auto`.
//!
//! `auto` is decided once per process, by the broker at admission. Without the broker's decision,
//! or at an earlier allocation, it becomes device memory. That decision removes the hooks for
//! managed jobs.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

pub const VARIABLE: &str = "WEFT_BACKING";

/// Requested backing of a job's device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestedBacking {
    Device,
    Managed,
    /// The broker decides: managed if the job would otherwise wait.
    Auto,
    /// Device memory that can be moved to the host while the job waits.
    Movable,
}

impl RequestedBacking {
    pub fn parse(text: Option<&str>) -> Result<RequestedBacking, String> {
        match text.map(str::trim) {
            None | Some("" | "device") => Ok(RequestedBacking::Device),
            Some("managed") => Ok(RequestedBacking::Managed),
            Some("auto") => Ok(RequestedBacking::Auto),
            Some("movable") => Ok(RequestedBacking::Movable),
            Some(other) => Err(format!(
                "{VARIABLE}={other} is not one of device, managed, auto, movable; using device"
            )),
        }
    }
}

static STATE: AtomicU8 = AtomicU8::new(UNREAD);
const UNREAD: u8 = 0;
const DEVICE: u8 = 1;
const MANAGED: u8 = 2;
const OPEN: u8 = 3;
const MOVABLE: u8 = 4;

static WHEN_DEVICE_MEMORY: OnceLock<fn()> = OnceLock::new();

/// Registers a function that is called when `auto` has become device memory. The first caller's
/// counts.
pub fn when_device_memory(tell: fn()) {
    let _ = WHEN_DEVICE_MEMORY.set(tell);
}

#[inline]
fn state() -> u8 {
    match STATE.load(Ordering::Acquire) {
        UNREAD => read(),
        state => state,
    }
}

#[cold]
fn read() -> u8 {
    let value = std::env::var(VARIABLE).ok();
    let asked = match RequestedBacking::parse(value.as_deref()) {
        Ok(RequestedBacking::Managed) => MANAGED,
        Ok(RequestedBacking::Auto) => OPEN,
        Ok(RequestedBacking::Movable) => MOVABLE,
        Ok(RequestedBacking::Device) | Err(_) => DEVICE,
    };
    match STATE.compare_exchange(UNREAD, asked, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => asked,
        Err(other) => other,
    }
}

#[inline]
pub fn managed() -> bool {
    state() == MANAGED
}

/// Whether large allocations are movable.
#[inline]
pub fn movable() -> bool {
    state() == MOVABLE
}

/// Whether the backing is undecided.
pub fn is_open() -> bool {
    state() == OPEN
}

/// Whether the memory is or may become managed.
pub fn may_be_managed() -> bool {
    matches!(state(), MANAGED | OPEN)
}

/// Decides the backing if it is undecided. Returns whether the memory is managed.
pub fn decide(managed: bool) -> bool {
    let chosen = if managed { MANAGED } else { DEVICE };
    let decided = STATE.compare_exchange(OPEN, chosen, Ordering::AcqRel, Ordering::Acquire);
    if decided.is_ok()
        && !managed
        && let Some(tell) = WHEN_DEVICE_MEMORY.get()
    {
        tell();
    }
    self::managed()
}

/// Whether memory that is being allocated is managed. Undecided backing becomes device memory.
#[inline]
pub fn settled() -> bool {
    match state() {
        OPEN => decide(false),
        state => state == MANAGED,
    }
}

/// Resets the backing to device memory in a forked child, which owns none of its parent's memory.
pub fn forget() {
    STATE.store(DEVICE, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_has_four_values() {
        assert_eq!(RequestedBacking::parse(None), Ok(RequestedBacking::Device));
        assert_eq!(RequestedBacking::parse(Some("")), Ok(RequestedBacking::Device));
        assert_eq!(RequestedBacking::parse(Some("device")), Ok(RequestedBacking::Device));
        assert_eq!(
            RequestedBacking::parse(Some(" managed ")),
            Ok(RequestedBacking::Managed)
        );
        assert_eq!(RequestedBacking::parse(Some("auto")), Ok(RequestedBacking::Auto));
        assert_eq!(RequestedBacking::parse(Some("movable")), Ok(RequestedBacking::Movable));
        let said = RequestedBacking::parse(Some("12GiB")).unwrap_err();
        assert!(said.contains("WEFT_BACKING=12GiB"), "{said}");
    }
}
