// SPDX-License-Identifier: MIT OR Apache-2.0
//! An operation's effect on memory and on the client, once the device has taken the time for it.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use simgpu_device::{Seq, Times};

/// From this size on the host takes longer to write the bytes (some 50 us) than to wake a thread.
const LONG_BYTES: u64 = 512 << 10;

/// Runs when an operation has ended.
pub(crate) type Action = Box<dyn FnOnce() + Send>;
/// Asked again and again until it returns true.
pub(crate) type Condition = Box<dyn FnMut() -> bool + Send>;

/// The time of one record, kept by the record's effect: the link forgets the times of old
/// operations.
#[derive(Default)]
pub(crate) struct Mark(AtomicU64);

impl Mark {
    pub(crate) fn set(&self, times: Times) {
        // Zero means "not yet"; no operation ends at the device's first nanosecond.
        self.0.store(times.end.max(1), Ordering::Release);
    }

    pub(crate) fn get(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Acquire)).filter(|end| *end != 0)
    }
}

/// The effect of one operation.
pub(crate) enum Effect {
    /// Keeps the time of an event.
    Mark(Arc<Mark>),
    /// Anything short: an executed kernel, a stream write, giving memory back.
    Run(Action),
    /// As `Run`, at once even if no thread waits: the host may be looking at the bytes, or the
    /// action takes the host long.
    RunPromptly(Action),
    /// A function that needs the operation's times. The flag: at once, even if no thread waits.
    Timed(Box<dyn FnOnce(Times) + Send>, bool),
    /// The client's function; the stream continues when it has returned.
    Call(Action),
    /// The stream continues when this returns true.
    Until(Condition),
    /// The stream continues when this operation, of another device, has ended.
    Ended(Seq),
    /// A held kernel. It ends when `spinning` returns true, or when its time is over; then
    /// `give_up` is called.
    Spin {
        /// Has the host released it?
        spinning: Condition,
        /// Its last action if the host never releases it.
        give_up: Action,
    },
}

impl Effect {
    /// An action that writes `bytes` bytes. `host_may_look`: the client may be reading there.
    pub(crate) fn of_bytes(bytes: u64, host_may_look: bool, action: impl FnOnce() + Send + 'static) -> Effect {
        // Memory that a device would write takes this host's time: it is spent while the device
        // runs on, not by the thread that waits at last.
        if host_may_look || bytes >= LONG_BYTES {
            Effect::RunPromptly(Box::new(action))
        } else {
            Effect::Run(Box::new(action))
        }
    }

    /// Must the effect be performed though no thread waits?
    pub(crate) fn is_prompt(&self) -> bool {
        match self {
            Effect::Timed(_, prompt) => *prompt,
            Effect::RunPromptly(_) | Effect::Call(_) | Effect::Until(_) | Effect::Ended(_) | Effect::Spin { .. } => {
                true
            }
            Effect::Mark(_) | Effect::Run(_) => false,
        }
    }

    /// Performs the effect of an operation that has ended.
    pub(crate) fn perform(self, times: Times) {
        match self {
            Effect::Mark(mark) => mark.set(times),
            Effect::Timed(action, _) => action(times),
            Effect::Run(action) | Effect::RunPromptly(action) => action(),
            // Host operations do their part when the stream reaches them: see `helper.rs`.
            Effect::Call(_) | Effect::Until(_) | Effect::Ended(_) | Effect::Spin { .. } => {}
        }
    }
}
