// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bounded FIFO: the launches in the queue, in order.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use weft_gate::charge::QUEUED_WORK_RATIO;
use weft_protocol::Ns;

use crate::driver::abi::{CuContext, CuResult, CuStream};

/// Most launches: about a driver channel's thousand.
const MOST: usize = 1_024;

/// Largest size in bytes. Parameters take some hundred bytes per launch.
const MOST_BYTES: usize = 4 << 20;

/// Most contexts whose failures are kept.
const FAILURES: usize = 64;

/// Target of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchTarget {
    /// The context.
    pub context: CuContext,
    /// Its stream.
    pub stream: CuStream,
    /// Whether the context's legacy default stream waits for this stream.
    pub blocking: bool,
}

/// Largest handle of the legacy default stream (0 and 1), which every context has.
const LEGACY: CuStream = 1;

impl LaunchTarget {
    /// Whether a query about a stream covers this work: on that stream, or on one it waits for.
    fn concerns(self, stream: CuStream, context: CuContext) -> bool {
        match stream {
            ..=LEGACY => self.blocking && self.context == context,
            _ => self.stream == stream,
        }
    }
}

/// Size of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weight {
    /// Target.
    pub to: LaunchTarget,
    /// Memory, bytes.
    pub bytes: usize,
    /// Predicted device time, ns.
    pub work: Ns,
}

/// Launches in order, with bounds: see the module.
#[derive(Debug)]
pub struct BoundedFifo<T> {
    launches: VecDeque<(Weight, T)>,
    pushed: u64,
    bytes: usize,
    work: Ns,
    /// Target of the launch being issued.
    leaving: Option<LaunchTarget>,
    /// First failure of each context.
    failures: VecDeque<(CuContext, CuResult)>,
}

impl<T> BoundedFifo<T> {
    /// An empty FIFO.
    pub const fn new() -> BoundedFifo<T> {
        BoundedFifo {
            launches: VecDeque::new(),
            pushed: 0,
            bytes: 0,
            work: 0,
            leaving: None,
            failures: VecDeque::new(),
        }
    }

    /// Whether `more` does not fit, if a launch waits at the gate for at most `longest` ns. An
    /// empty FIFO accepts any launch.
    pub fn is_full(&self, more: Weight, longest: Ns) -> bool {
        let room = |taken: usize, more: usize, most: usize| taken.saturating_add(more) <= most;
        let work = self.work.saturating_add(more.work) <= longest / QUEUED_WORK_RATIO;
        let fits = work && room(self.launches.len(), 1, MOST) && room(self.bytes, more.bytes, MOST_BYTES);
        if self.launches.is_empty() {
            return false;
        }
        !fits
    }

    /// Appends a launch.
    pub fn push(&mut self, weight: Weight, launch: T) {
        self.bytes = self.bytes.saturating_add(weight.bytes);
        self.work = self.work.saturating_add(weight.work);
        self.launches.push_back((weight, launch));
        self.pushed += 1;
    }

    /// Number of launches ever added. They leave in order: the current ones have left when this
    /// number of launches has left.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Removes the first launch for issuing; the previous one has been issued.
    pub fn pop(&mut self) -> Option<T> {
        self.leaving = None;
        let (weight, launch) = self.launches.pop_front()?;
        self.bytes = self.bytes.saturating_sub(weight.bytes);
        self.work = self.work.saturating_sub(weight.work);
        self.leaving = Some(weight.to);
        Some(launch)
    }

    /// Whether a launch, queued or being issued, targets this stream or a stream that it waits for.
    /// `context`: the current one, for the legacy default stream.
    pub fn goes_to(&self, stream: CuStream, context: CuContext) -> bool {
        let waiting = self.launches.iter().map(|(weight, _)| weight.to);
        waiting.chain(self.leaving).any(|to| to.concerns(stream, context))
    }

    /// Notes a failure. Only a context's first failure is kept.
    pub fn fail(&mut self, context: CuContext, error: CuResult) {
        let told = self.failures.iter().any(|(of, _)| *of == context);
        if !told && self.failures.len() < FAILURES {
            self.failures.push_back((context, error));
        }
    }

    /// Takes the first failure; also returns whether more remain.
    pub fn failure(&mut self) -> (Option<CuResult>, bool) {
        let first = self.failures.pop_front().map(|(_, error)| error);
        (first, !self.failures.is_empty())
    }

    /// Drops a context's failures (0: all). Returns whether any remain.
    pub fn forgive(&mut self, context: CuContext) -> bool {
        self.failures.retain(|(of, _)| context != 0 && *of != context);
        !self.failures.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST_NS: Ns = 1_000_000_000;

    const CONTEXT: CuContext = 0x100;

    fn weight(stream: CuStream, bytes: usize, work: Ns) -> Weight {
        let to = LaunchTarget {
            context: CONTEXT,
            stream,
            blocking: stream <= LEGACY || stream.is_multiple_of(2),
        };
        Weight { to, bytes, work }
    }

    fn filled(with: Weight) -> BoundedFifo<usize> {
        let mut line = BoundedFifo::new();
        let mut number = 0;
        while !line.is_full(with, LONGEST_NS) {
            line.push(with, number);
            number += 1;
            assert!(number <= MOST, "it has no bound");
        }
        line
    }

    fn drained(mut line: BoundedFifo<usize>) -> Vec<usize> {
        std::iter::from_fn(|| line.pop()).collect()
    }

    #[test]
    fn launches_leave_in_the_order_in_which_they_came() {
        let line = filled(weight(7, 200, 1_000));
        assert_eq!(drained(line), (0..MOST).collect::<Vec<_>>());
    }

    #[test]
    fn it_is_bounded_in_bytes_and_in_work_too() {
        assert_eq!(drained(filled(weight(7, MOST_BYTES / 4, 1_000))).len(), 4);
        let work = drained(filled(weight(7, 200, 1_000_000))).len();
        assert_eq!(work, 7, "7.8 ms of a longest wait of one second");
        // A slower device has longer waits and longer kernels.
        let mut slower = BoundedFifo::new();
        (0..work).for_each(|number| slower.push(weight(7, 200, 20_000_000), number));
        assert!(slower.is_full(weight(7, 200, 20_000_000), 20 * LONGEST_NS));
    }

    #[test]
    fn one_alone_has_room_however_large() {
        let large = weight(7, 2 * MOST_BYTES, LONGEST_NS);
        let line = filled(large);
        assert_eq!(drained(line), [0]);
        assert!(!BoundedFifo::<usize>::new().is_full(large, 0));
    }

    #[test]
    fn what_left_makes_room() {
        let mut line = filled(weight(7, 200, 1_000_000));
        assert!(line.pop().is_some());
        assert!(!line.is_full(weight(7, 200, 1_000_000), LONGEST_NS));
        let pushed = line.pushed();
        while line.pop().is_some() {}
        assert_eq!(line.pushed(), pushed, "what leaves was put in all the same");
        assert_eq!((line.bytes, line.work), (0, 0));
    }

    #[test]
    fn a_stream_has_work_here_until_its_launch_has_been_issued() {
        let mut line = BoundedFifo::new();
        line.push(weight(7, 1, 1), "first");
        line.push(weight(8, 1, 1), "second");
        let to = |line: &BoundedFifo<&str>, stream| line.goes_to(stream, CONTEXT);
        assert!(to(&line, 7) && to(&line, 8) && !to(&line, 9));
        assert_eq!(line.pop(), Some("first"));
        assert!(to(&line, 7), "the driver has not taken it yet");
        assert_eq!(line.pop(), Some("second"));
        assert!(!to(&line, 7) && to(&line, 8));
        assert_eq!(line.pop(), None);
        assert!(!to(&line, 8));
    }

    #[test]
    fn the_legacy_stream_has_the_work_of_those_that_it_waits_for_in_its_context() {
        for (stream, has) in [(7, false), (8, true), (0, true), (LEGACY, true)] {
            let mut line = BoundedFifo::new();
            line.push(weight(stream, 1, 1), ());
            for legacy in [0, LEGACY] {
                assert_eq!(line.goes_to(legacy, CONTEXT), has, "{stream}");
                assert!(!line.goes_to(legacy, CONTEXT + 1), "{stream}");
            }
            assert_eq!(line.goes_to(8, CONTEXT), stream == 8, "{stream}");
        }
    }

    #[test]
    fn the_first_failure_of_a_context_is_told_once_unless_the_context_has_ended() {
        let mut line: BoundedFifo<()> = BoundedFifo::new();
        assert_eq!(line.failure(), (None, false));
        line.fail(10, CuResult(700));
        line.fail(10, CuResult(1));
        line.fail(20, CuResult(719));
        assert_eq!(line.failure(), (Some(CuResult(700)), true));
        assert_eq!(line.failure(), (Some(CuResult(719)), false));
        assert_eq!(line.failure(), (None, false));
        line.fail(10, CuResult(700));
        assert!(line.forgive(20), "another's");
        line.fail(20, CuResult(719));
        assert!(line.forgive(10));
        assert_eq!(line.failure(), (Some(CuResult(719)), false));
        line.fail(10, CuResult(700));
        assert!(!line.forgive(0));
        (0..1_000).for_each(|context| line.fail(context, CuResult(1)));
        assert_eq!(line.failures.len(), FAILURES);
    }
}
