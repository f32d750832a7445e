// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's own threads: one runs the client's host functions, one polls the words that streams
//! wait for.
//!
//! A host function never runs on a thread of the client's, and the link's callback must not block.
//! So operations that the device reached are queued. Both threads start with their first job and
//! end with the process.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use simgpu_device::Seq;
use simgpu_device::lock::lock;

use crate::effect::{Action, Condition, Effect};
use crate::state;
use crate::thread;

/// Sleep of the watcher between two looks: short against any kernel that a test waits for, and long
/// enough to leave two cores to the job.
const LOOK_EVERY: Duration = Duration::from_micros(50);

fn starter<T: Send + 'static>(name: &str, body: fn(Receiver<T>)) -> Mutex<Sender<T>> {
    let (sender, receiver) = channel();
    thread::start(name, move || body(receiver));
    Mutex::new(sender)
}

fn calls() -> &'static Mutex<Sender<(Seq, Action)>> {
    static CALLS: OnceLock<Mutex<Sender<(Seq, Action)>>> = OnceLock::new();
    CALLS.get_or_init(|| starter("simcuda-host", run_calls))
}

/// A condition that is checked until it holds.
struct Watch {
    seq: Seq,
    condition: Condition,
    /// For a held kernel, which may end by itself: the action then.
    give_up: Option<Action>,
}

fn watches() -> &'static Mutex<Sender<Watch>> {
    static WATCHES: OnceLock<Mutex<Sender<Watch>>> = OnceLock::new();
    WATCHES.get_or_init(|| starter("simcuda-watch", run_watches))
}

/// Takes over the effect of a host operation that its stream has reached.
pub(crate) fn reached(effect: Effect, seq: Seq) {
    match effect {
        Effect::Call(action) => {
            let _ = lock(calls()).send((seq, action));
        }
        Effect::Until(condition) => {
            let _ = lock(watches()).send(Watch {
                seq,
                condition,
                give_up: None,
            });
        }
        Effect::Ended(other) => {
            let _ = lock(watches()).send(Watch {
                seq,
                condition: until(other),
                give_up: None,
            });
        }
        Effect::Spin { spinning, give_up } => {
            let _ = lock(watches()).send(Watch {
                seq,
                condition: spinning,
                give_up: Some(give_up),
            });
        }
        // Not host operations: performed at their end.
        Effect::Mark(_) | Effect::Run(_) | Effect::RunPromptly(_) | Effect::Timed(..) => {}
    }
}

fn done(seq: Seq) {
    if let Ok(driver) = state::driver() {
        driver.timeline.host_done(seq);
    }
}

/// True when an operation has ended, also one that never will as its device is gone.
fn until(seq: Seq) -> Condition {
    Box::new(move || {
        state::driver().map_or(true, |driver| {
            driver.timeline.is_done(seq) || driver.timeline.is_lost(seq)
        })
    })
}

fn ended(seq: Seq) -> bool {
    state::driver().is_ok_and(|driver| driver.timeline.is_done(seq))
}

fn run_calls(queue: Receiver<(Seq, Action)>) {
    for (seq, action) in queue {
        let _ = catch_unwind(AssertUnwindSafe(action));
        done(seq);
    }
}

fn run_watches(queue: Receiver<Watch>) {
    let mut watched: Vec<Watch> = Vec::new();
    loop {
        let next = if watched.is_empty() {
            queue.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            queue.recv_timeout(LOOK_EVERY)
        };
        match next {
            Ok(watch) => watched.push(watch),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        watched.retain_mut(|watch| {
            // A condition that panics counts as met: its stream must not wait for ever.
            if catch_unwind(AssertUnwindSafe(|| (watch.condition)())).unwrap_or(true) {
                done(watch.seq);
                return false;
            }
            if watch.give_up.is_some() && ended(watch.seq) {
                if let Some(give_up) = watch.give_up.take() {
                    give_up();
                }
                return false;
            }
            true
        });
    }
}
