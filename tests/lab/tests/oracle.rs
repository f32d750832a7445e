// SPDX-License-Identifier: MIT OR Apache-2.0
//! The oracle is an upper bound: for every rule in random scenarios, and exactly the best for one
//! background job, by brute force.
#![forbid(unsafe_code)]

use std::sync::Arc;

use proptest::prelude::*;
use weft_engine::{Mode, Settings};
use weft_lab::compare::{Fixture, Tuning};
use weft_lab::generate;
use weft_lab::oracle::{ForegroundGaps, GapUse, OracleBackground};
use weft_lab::rule::Rule;
use weft_lab::{Ns, US};
use weft_player::{ArrivalPattern, Hosts, Jitter, PlayedJob, Program, SYNC_RETURN_NS};
use weft_trace_format::Call;

fn still(trace: &weft_trace_format::Trace) -> PlayedJob {
    PlayedJob {
        jitter: Jitter { device: 0.0, host: 0.0 },
        ..PlayedJob::new("background", 5, Arc::new(Program::of(trace).expect("a sound trace")))
    }
}

/// A small job: device time and host time before each kernel, and the number of kernels after which
/// the host waits for the device.
struct Small<'a> {
    kernels: &'a [(Ns, Ns)],
    sync_every: usize,
    /// Time from the end of work to the return of a host that waited for it.
    wake: Ns,
}

impl Small<'_> {
    /// The most that can be packed. It tries every start on the grid, and every moment up to its
    /// end at which the launch may return. Kernel `next` may begin once the one before it has ended
    /// (`ready`) and its host has reached it from `host` on.
    fn brute(&self, gaps: &[(Ns, Ns)], next: usize, ready: Ns, host: Ns) -> Ns {
        let Some((time, before)) = self.kernels.get(next) else {
            return 0;
        };
        let called = host + before;
        let mut best = 0;
        for (from, to) in gaps {
            for start in (*from).max(ready).max(called)..*to {
                let end = start + time;
                if end > *to {
                    break;
                }
                for returned in called..=end {
                    let syncs = (next + 1).is_multiple_of(self.sync_every);
                    let host = match syncs && end > returned {
                        true => end + self.wake,
                        false => returned,
                    };
                    best = best.max(time + self.brute(gaps, next + 1, end, host));
                }
            }
        }
        best
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn for_one_background_job_it_is_the_best_there_is(
        kernels in prop::collection::vec((1u64..5, 0u64..4), 1..5),
        parts in prop::collection::vec((1u64..5, 1u64..7), 1..4),
        sync_every in 1usize..4,
    ) {
        let mut gaps = Vec::new();
        let mut at = 0;
        for (busy, idle) in parts {
            gaps.push((at + busy, at + busy + idle));
            at += busy + idle;
        }
        // In these units launches and synchronisations cost nothing, except the return of a
        // synchronisation: 2 us, two units.
        let mut builder = generate::Builder::new("background");
        builder.step(0);
        for (kernel, (time, _)) in kernels.iter().enumerate() {
            builder.launch(kernel as u32, 0, *time * US);
            if (kernel + 1).is_multiple_of(sync_every) {
                builder.sync();
            }
        }
        let mut trace = builder.done();
        trace.launch_cost = 0;
        let mut hosts = kernels.iter().map(|(_, before)| *before * US);
        for operation in trace.steps.iter_mut().flat_map(|step| &mut step.operations) {
            operation.host_before = match operation.call {
                Call::Launch { .. } => hosts.next().unwrap_or(0),
                _ => 0,
            };
        }
        // The step is played once: the next one thinks for ever.
        let mut job = still(&trace);
        job.arrivals = ArrivalPattern::Closed { think: None };
        let mut program = (*job.program).clone();
        program.steps.push(weft_player::job::StepProgram { think: 1 << 40, ..Default::default() });
        job.program = Arc::new(program);
        let background = OracleBackground { job: &job, number: 1, seed: 1, inside: &[], launch_latency: 0, sync_return: SYNC_RETURN_NS, gated: false };
        let windows: Vec<(Ns, Ns)> = gaps.iter().map(|(from, to)| (from * US, to * US)).collect();
        let mut used = GapUse(vec![0; windows.len()]);
        let most = background.most(&ForegroundGaps { windows, preemptive: false }, &mut used);
        prop_assert_eq!(used.0.iter().sum::<Ns>(), most);
        let best = Small { kernels: &kernels, sync_every, wake: 2 }.brute(&gaps, 0, 0, 0);
        prop_assert_eq!(most, best * US);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn no_rule_fills_more(
        seed in 0u64..1_000_000,
        mps in any::<bool>(),
        kernels in 1u32..40,
        time in 5u64..300,
        think in 0u64..4_000,
        chatty in any::<bool>(),
        queue in prop::sample::select(vec![0usize, 3, 1_024]),
        background_jobs in prop::collection::vec((prop::collection::vec(3u64..900, 1..12), 0u64..50, 0u64..800, any::<bool>()), 1..4),
    ) {
        let bench = Fixture {
            device: Settings { mode: if mps { Mode::Mps } else { Mode::TimeSlice }, ..Settings::default() },
            hosts: Hosts::default(),
            seed,
            requests: 40,
            warmup: 3,
            tuning: Tuning { queue: Some(queue), ..Tuning::default() },
        };
        let trace = if chatty {
            generate::chatty(kernels, time * US, 20 * US, think * US)
        } else {
            generate::service(kernels, time * US, think * US)
        };
        let mut jobs = vec![PlayedJob::new("service", 0, Arc::new(Program::of(&trace).expect("a sound trace")))];
        for (at, (times, host, think, graph)) in background_jobs.into_iter().enumerate() {
            let times: Vec<Ns> = times.into_iter().map(|time| time * US).collect();
            let trace = if graph {
                generate::decode(times.len() + 1, times[0], think * US, 3, think * US)
            } else {
                generate::training(&times, host * US, think * US)
            };
            jobs.push(PlayedJob::new("background", 3 + at as u8, Arc::new(Program::of(&trace).expect("a sound trace"))));
        }
        let known: Vec<_> = jobs.iter().enumerate().map(|(place, job)| bench.know(job, place, place == 0)).collect();
        for rule in Rule::ALL.into_iter().filter(|rule| rule.least() == 0) {
            let figures = bench.compare(&known, rule);
            prop_assert!(figures.filled_ms <= figures.oracle_ms + 1e-9, "{rule}: {figures:?}");
            prop_assert!(figures.oracle_ms <= figures.gap_ms + 1e-9, "{rule}: {figures:?}");
            // The device runs one kernel at a time. On top of the bound come the launches that were
            // ahead of the first counted request, in runs of some ms.
            let bound = figures.own_bound.expect("kernels do not share this device");
            prop_assert!(figures.batch_sum <= 1.0 / known[1..].iter().map(|one| one.busy).fold(1.0, f64::min), "{rule}: {figures:?}");
            prop_assert!(figures.batch_sum <= 1.25 * bound + 0.1, "{rule}: {figures:?}");
        }
    }
}
