//! Whether this process's memory is managed: what was asked for, and what came of it where that was
//! left open.
//!
//! What is open (`auto`) is decided once, and for as long as the process lives: by the broker's
//! word when the process is admitted, before its first context; without that word it is device
//! memory. Where the process takes memory before anybody decided, it is decided by that: device
//! memory.
//!
//! While it is open the hooks that only managed jobs need stand ready. When it is decided for
//! device memory they are gone again: no call is looked at that would not be in a job that never
//! asked.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// What says what a job's device memory is.
pub const VARIABLE: &str = "WEFT_BACKING";

/// What a job's device memory is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// What the driver makes of it.
    Device,
    /// Managed memory.
    Managed,
    /// The first, or the second where the job would have to wait for memory: the broker says which.
    Auto,
}

impl Backing {
    /// What a value of [`VARIABLE`] means. Nothing set is plain device memory.
    pub fn parse(text: Option<&str>) -> Result<Backing, String> {
        match text.map(str::trim) {
            None | Some("" | "device") => Ok(Backing::Device),
            Some("managed") => Ok(Backing::Managed),
            Some("auto") => Ok(Backing::Auto),
            Some(other) => Err(format!(
                "{VARIABLE}={other} is none of device, managed, auto; taken as device"
            )),
        }
    }
}

/// One of these.
static STATE: AtomicU8 = AtomicU8::new(UNREAD);
const UNREAD: u8 = 0;
const DEVICE: u8 = 1;
const MANAGED: u8 = 2;
const OPEN: u8 = 3;

/// What is to be done when open memory is decided for device memory.
static WHEN_DEVICE_MEMORY: OnceLock<fn()> = OnceLock::new();

/// Has `tell` called when open memory is decided for device memory. The first caller's counts.
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
    let asked = match Backing::parse(value.as_deref()) {
        Ok(Backing::Managed) => MANAGED,
        Ok(Backing::Auto) => OPEN,
        Ok(Backing::Device) | Err(_) => DEVICE,
    };
    match STATE.compare_exchange(UNREAD, asked, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => asked,
        Err(other) => other,
    }
}

/// Is this process's memory managed? Not while that is open.
#[inline]
pub fn managed() -> bool {
    state() == MANAGED
}

/// Is that open?
pub fn is_open() -> bool {
    state() == OPEN
}

/// Is it managed, or may it come to be?
pub fn may_be_managed() -> bool {
    matches!(state(), MANAGED | OPEN)
}

/// Decides what is open; what is decided stays. Returns whether the memory is managed.
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

/// Is this process's memory managed, now that it takes some? What is still open is then device
/// memory.
#[inline]
pub fn settled() -> bool {
    match state() {
        OPEN => decide(false),
        state => state == MANAGED,
    }
}

/// A forked child owns none of its parent's memory: its driver answers nothing any more.
pub fn forget() {
    STATE.store(DEVICE, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_has_three_values() {
        assert_eq!(Backing::parse(None), Ok(Backing::Device));
        assert_eq!(Backing::parse(Some("")), Ok(Backing::Device));
        assert_eq!(Backing::parse(Some("device")), Ok(Backing::Device));
        assert_eq!(Backing::parse(Some(" managed ")), Ok(Backing::Managed));
        assert_eq!(Backing::parse(Some("auto")), Ok(Backing::Auto));
        let said = Backing::parse(Some("12GiB")).unwrap_err();
        assert!(said.contains("WEFT_BACKING=12GiB"), "{said}");
    }
}
