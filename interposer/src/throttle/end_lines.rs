// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lines on stderr at a job's end with the job's outcome (`WEFT_OUTCOME=on`, which `weft run`
//! sets).
//!
//! The broker knows the outcome, and answers with one message. The wait for the answer is bounded.
//! If the broker is gone, a line reports that; if it has stopped, only the lines are lost. The code
//! runs in the process's own exit handlers: the exit code and stdout stay the job's.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex::{self, Flags};
use weft_protocol::control::ToBroker;

use crate::client::clock;
use crate::client::link::BrokerLink;
use crate::report;

/// Longest wait for the lines. A running broker answers in some milliseconds, on a busy machine in
/// some dozens of milliseconds.
const PATIENCE: Duration = Duration::from_millis(200);

const UNASKED: u32 = 0;
const AWAITED: u32 = 1;
const HEARD: u32 = 2;

/// Whether the lines of one session were requested and received.
#[derive(Debug, Default)]
pub(super) struct EndLines {
    state: AtomicU32,
}

impl EndLines {
    /// Whether an answer is awaited.
    pub(super) fn awaited(&self) -> bool {
        self.state.load(Ordering::Acquire) == AWAITED
    }

    /// Prints the broker's answer, if it was awaited.
    pub(super) fn heard(&self, lines: &[String]) {
        if !self.awaited() {
            return;
        }
        for line in lines {
            report::always(line);
        }
        self.state.store(HEARD, Ordering::Release);
        let _ = futex::wake(&self.state, Flags::PRIVATE, i32::MAX as u32);
    }
}

/// Requests the lines of these sessions and waits until they are printed. One bound holds for all
/// sessions together.
pub(super) fn print(sessions: impl Iterator<Item = (&'static BrokerLink, &'static EndLines)> + Clone) {
    let lost = |link: &BrokerLink| link.settings.outcome && link.attachment() > 0 && !link.is_attached();
    if sessions.clone().any(|(link, _)| lost(link)) {
        report::always("its broker is gone: what weft did for this job is not known");
    }
    let wanted = sessions.filter(|(link, _)| {
        let counters = &link.lane.counters;
        let launches = counters.launches.load(Ordering::Relaxed) + counters.graph_launches.load(Ordering::Relaxed);
        link.settings.outcome && launches > 0 && link.is_attached()
    });
    for (link, lines) in wanted.clone() {
        if lines
            .state
            .compare_exchange(UNASKED, AWAITED, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            link.tell(ToBroker::Outcome);
        }
    }
    let deadline = clock::now() + PATIENCE.as_nanos() as u64;
    for (_, lines) in wanted {
        let state = &lines.state;
        while lines.awaited() {
            let now = clock::now();
            if now >= deadline {
                // Lines that are too late must not appear in the next program's output.
                state.store(HEARD, Ordering::Release);
                break;
            }
            let _ = futex::wait(state, Flags::PRIVATE, AWAITED, Some(&clock::timespec(deadline - now)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_nobody_awaits_are_not_printed() {
        let lines = EndLines::default();
        lines.heard(&["not asked for".to_string()]);
        assert_eq!(lines.state.load(Ordering::Relaxed), UNASKED);
        lines.state.store(AWAITED, Ordering::Relaxed);
        assert!(lines.awaited());
        lines.heard(&[]);
        assert!(!lines.awaited());
    }
}
