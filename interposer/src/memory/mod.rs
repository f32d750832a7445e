//! Managed backing: what a job takes as device memory is managed memory, so that jobs that together exceed the device can run.
//!
//! What holds:
//! * Only for jobs that ask for it (`WEFT_BACKING=managed`, `weft run --backing managed`). For all others every function here answers at once
//!   that it has nothing to say, and hooks that only managed jobs need are not there at all.
//! * The job sees device memory: what a pointer is, how much is free, how large a range is are answered as for `cuMemAlloc`. Where that is
//!   impossible (handles for other processes) the driver refuses as it refuses managed memory, and weft says so once.
//! * Whatever cannot be managed stays device memory: a device without concurrent managed access, an allocation that the driver refuses for another
//!   reason than want of memory, virtual memory management (`cuMemCreate`, `cuMemMap`: the driver maps no managed memory into reserved ranges),
//!   pools made for sharing, arrays, memory of graphs' own allocation nodes. Said once, counted.
//! * A job may take what the device has, less a reserve, or what it said that it takes, where that is more (see [`capacity`]): beyond that it gets CUDA's own "out of memory", as alone on the device.
//!
//! | file | holds |
//! | --- | --- |
//! | `backing` | takes and gives back managed memory; support; advice |
//! | `capacity` | how much of a device a job may take |
//! | `ranges` | what was handed out |
//! | `pool` | stream-ordered allocation |
//! | `answers` | what the job is told about its memory |
//! | `layout` | where kernels' parameters stand |
//! | `images` | the same from kernels' images, where the driver does not say it |
//! | `touch` | what launches use of it |
//! | `sequence` | in which order, and when it repeats |
//! | `learn` | stage 1: from what launches touched to templates |
//! | `observe` | what a launch touched, by the host's page table |
//! | `away` | what the broker had moved out, and launches that wait for it |
//! | `advice` | memory that is mostly read, and how it leaves the device |
//! | `mover` | the thread that carries out the broker's errands |
//!
//! It may not: wait for anything but the driver's own calls, hold a lock over a driver call, or make a driver call of its own while anybody captures.

pub mod advice;
pub mod answers;
pub mod away;
pub mod backing;
pub mod capacity;
pub mod images;
pub mod layout;
pub mod learn;
pub mod mover;
pub mod observe;
pub mod pool;
pub mod ranges;
pub mod sequence;
pub mod touch;

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::session;

/// What says what a job's device memory is.
pub const VARIABLE: &str = "WEFT_BACKING";

/// What a job's device memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// What the driver makes of it.
    Device,
    /// Managed memory.
    Managed,
}

impl Backing {
    /// What a value of [`VARIABLE`] means. Nothing set is plain device memory.
    pub fn parse(text: Option<&str>) -> Result<Backing, String> {
        match text.map(str::trim) {
            None | Some("" | "device") => Ok(Backing::Device),
            Some("managed") => Ok(Backing::Managed),
            Some(other) => Err(format!(
                "{VARIABLE}={other} is neither managed nor device; taken as device"
            )),
        }
    }
}

/// A forked child owns none of it: its driver answers nothing any more.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Is this job's memory managed?
#[inline]
pub fn managed() -> bool {
    static ASKED: LazyLock<bool> = LazyLock::new(|| {
        let value = std::env::var(VARIABLE).ok();
        Backing::parse(value.as_deref()) == Ok(Backing::Managed)
    });
    *ASKED && !FORKED.load(Ordering::Relaxed)
}

/// In a forked child.
pub fn forget() {
    FORKED.store(true, Ordering::Relaxed);
    mover::forget();
}

/// A stream is about to end.
pub fn stream_ending(stream: session::Stream) {
    if managed() {
        observe::stream_ending(session::own(stream));
        pool::stream_ending(session::own(stream));
    }
}

/// A context is about to end.
pub fn context_ending() {
    if managed() {
        observe::context_ending();
        mover::context_ending();
    }
}

/// A context has ended: what of the managed memory the driver took with it is nobody's any more.
pub fn context_ended() {
    if !managed() {
        return;
    }
    mover::context_ended();
    if !crate::hooks::capture::any() {
        pool::forget_gone();
        for gone in ranges::all().into_iter().filter(|(start, _)| !backing::lives(*start)) {
            ranges::remove(gone.0);
            session::unbacked(gone.0);
            capacity::given_back(gone.1.device, gone.1.room);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_has_two_values() {
        assert_eq!(Backing::parse(None), Ok(Backing::Device));
        assert_eq!(Backing::parse(Some("")), Ok(Backing::Device));
        assert_eq!(Backing::parse(Some("device")), Ok(Backing::Device));
        assert_eq!(Backing::parse(Some(" managed ")), Ok(Backing::Managed));
        let said = Backing::parse(Some("12GiB")).unwrap_err();
        assert!(said.contains("WEFT_BACKING=12GiB"), "{said}");
    }
}
