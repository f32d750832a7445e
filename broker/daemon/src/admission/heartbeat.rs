// SPDX-License-Identifier: MIT OR Apache-2.0
//! The heartbeat of admission slots. While it advances, jobs wait for device memory; without it
//! they begin (`HEARTBEAT_TIMEOUT_NS` in the interposer's `admission`).
//!
//! This thread writes one word per lane and takes no lock of the control thread. So no job begins
//! early because of a short stall of the control thread. The heartbeat stops if the control thread
//! makes no round within [`STANDS`]: then no job waits for ever.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::clients::registry::Registry;

/// Time between beats; a job waits 10 s without one.
const PERIOD: Duration = Duration::from_secs(1);

/// Longest stall of the control thread before the beat stops.
const STANDS: Duration = Duration::from_secs(30);

/// Starts the thread. `rounds` counts those of the control thread. A drop of the result ends the
/// thread.
pub fn start(registry: Arc<Registry>, rounds: Arc<AtomicU64>) -> std::io::Result<Heartbeat> {
    let (over, ends) = channel();
    let thread = std::thread::Builder::new()
        .name("weft-beat".into())
        .spawn(move || run(&registry, &rounds, &ends))?;
    Ok(Heartbeat {
        over: Some(over),
        thread: Some(thread),
    })
}

/// A handle to the thread.
#[derive(Debug)]
pub struct Heartbeat {
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.over = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(registry: &Registry, rounds: &AtomicU64, ends: &Receiver<()>) {
    let mut pulse = Pulse::new(rounds.load(Ordering::Relaxed), Instant::now());
    let mut stood = false;
    while let Err(RecvTimeoutError::Timeout) = ends.recv_timeout(PERIOD) {
        let beats = pulse.beats(rounds.load(Ordering::Relaxed), Instant::now());
        if !beats && !stood {
            log::warn!("the control thread hangs: jobs no longer wait for memory");
        }
        stood = !beats;
        if beats {
            registry.each(|entry| {
                entry.lane.admission_slot.heartbeat.fetch_add(1, Ordering::Relaxed);
            });
        }
    }
}

#[derive(Debug)]
struct Pulse {
    round: u64,
    seen: Instant,
}

impl Pulse {
    fn new(round: u64, now: Instant) -> Pulse {
        Pulse { round, seen: now }
    }

    /// Whether to beat, given the round count now.
    fn beats(&mut self, round: u64, now: Instant) -> bool {
        if round != self.round {
            *self = Pulse::new(round, now);
        }
        now.saturating_duration_since(self.seen) < STANDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_stands_for_a_moment_lets_nobody_go_and_one_that_nobody_keeps_holds_nobody() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut pulse = Pulse::new(1, begin);
        assert!(pulse.beats(1, at(12)), "longer than a job waits without a beat");
        assert!(pulse.beats(2, at(25)));
        assert!(pulse.beats(2, at(54)));
        assert!(!pulse.beats(2, at(55)));
        assert!(pulse.beats(3, at(90)), "it goes on");
    }
}
