// SPDX-License-Identifier: MIT OR Apache-2.0
//! Figures of a run: the foreground job's delays, its gaps, the work that filled them, latencies.
//!
//! The **foreground job** is the most important job (several, if equal). A **gap** is a time in
//! which none of its work could have run: from the end of its work to the moment when its next
//! kernel could begin. A **direct delay** is the time from that moment to the kernel's beginning:
//! others had the device, or it was switching. Everything counts from the arrival of the first
//! request after the warm-up.
//!
//! If kernels share SMs, kernels of several jobs run at one time. A gap is then *filled* while at
//! least one runs. Work is the time that kernels take in a solo run. The time that a running kernel
//! loses to other jobs' blocks is no direct delay; it is in the latency.
#![forbid(unsafe_code)]

use serde::Serialize;
use weft_player::{KernelPiece, MachineRun, Program};

use crate::Ns;

/// The value in [`Analysis::inside`] of an operation that never ran.
pub const NOT_RUN: u32 = u32::MAX;

/// The classes of gap length: up to each of these, and beyond the last.
pub const EDGES: [Ns; 6] = [50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000];

/// The use of the time of gaps of one length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Spent {
    /// Number of gaps.
    pub gaps: u64,
    /// Sum of their time, ns.
    pub there: Ns,
    /// Time in which background jobs ran.
    pub filled: Ns,
    /// In gaps that were filled: the time before the first background kernel, between two, and
    /// after the last.
    pub head: Ns,
    /// See `head`.
    pub between: Ns,
    /// See `head`.
    pub tail: Ns,
    /// Time of gaps that were not filled at all.
    pub unused: Ns,
    /// The most of it that the packer could fill.
    pub packer: Ns,
}

impl Spent {
    /// Adds another's times.
    pub fn add(&mut self, other: &Spent) {
        self.gaps += other.gaps;
        self.there += other.there;
        self.filled += other.filled;
        self.head += other.head;
        self.between += other.between;
        self.tail += other.tail;
        self.unused += other.unused;
        self.packer += other.packer;
    }
}

/// The index of a length's class in [`EDGES`].
pub fn bucket(length: Ns) -> usize {
    EDGES.iter().position(|edge| length <= *edge).unwrap_or(EDGES.len())
}

/// The analysis of a run.
#[derive(Debug, Clone, Default)]
pub struct Analysis {
    /// Gaps, each from its begin to its end.
    pub windows: Vec<(Ns, Ns)>,
    /// For each job and operation, how long it ran inside gaps; [`NOT_RUN`] if it did not run at
    /// all. Empty for foreground jobs.
    pub inside: Vec<Vec<u32>>,
    /// By length of gap, the use of its time.
    pub spent: [Spent; EDGES.len() + 1],
    /// Time in gaps in which background jobs ran.
    pub filled: Ns,
    /// Gaps in which a background job ran.
    pub filled_gaps: u64,
    /// Direct delay: the sum.
    pub direct: Ns,
    /// The largest direct delay of one kernel.
    pub direct_worst: Ns,
    /// The part of the direct delay that fills no gap: no work of the background jobs had reached
    /// the device during a gap.
    pub forced: Ns,
    /// Time in gaps in which the device ran nothing while a background job waited at the gate.
    pub gate: Ns,
    /// Background kernels that ran in gaps, at least in part.
    pub background_kernels: u64,
    /// By job: work since the warm-up, as the time that it takes in a solo run.
    pub compute: Vec<Ns>,
    /// Time from the end of the warm-up to the end of the run.
    pub span: Ns,
}

impl Analysis {
    /// The analysis of a run, without the time before the first job's request number `warmup`
    /// arrived.
    pub fn of(run: &MachineRun, warmup: usize) -> Analysis {
        let first = run.jobs.iter().map(|job| job.job.priority).min().unwrap_or(0);
        let begin = run.jobs[0].arrivals.get(warmup).copied().unwrap_or(0);
        let holds: Vec<bool> = run.jobs.iter().map(|job| job.job.priority == first).collect();
        let mut analysis = Analysis {
            inside: run.jobs.iter().map(|_| Vec::new()).collect(),
            compute: vec![0; run.jobs.len()],
            span: run.span.saturating_sub(begin),
            ..Analysis::default()
        };
        let mut last_end: Option<Ns> = None;
        let mut last_job = None;
        let mut pending: Vec<&KernelPiece> = Vec::new();
        let mut gates = Gates::of(run, &holds);
        for piece in &run.pieces {
            let job = usize::from(piece.job);
            if !holds[job] {
                analysis.note(piece);
            }
            if piece.start < begin {
                continue;
            }
            analysis.compute[job] += piece.alone;
            if !holds[job] {
                pending.push(piece);
                continue;
            }
            if let Some(last) = last_end {
                // Between two foreground jobs no other job had the device: the time between them is
                // the device's own change from one to the other.
                let own = pending.is_empty() && last_job != Some(piece.job);
                // The pause between two kernels of a stream is the device's own, too.
                let pause = if piece.ready <= last { run.device.kernel_gap } else { 0 };
                let may_start = if own {
                    piece.start
                } else {
                    piece.ready.max(last) + pause
                };
                analysis.foreground_piece(piece, last, &pending, may_start, &mut gates);
            }
            last_job = Some(piece.job);
            let end = last_end.map_or(piece.end, |last| last.max(piece.end));
            last_end = Some(end);
            // If kernels share SMs, a background kernel may run on into the next gap.
            pending.retain(|background| background.end > end);
        }
        analysis
    }

    fn note(&mut self, piece: &KernelPiece) {
        let inside = &mut self.inside[usize::from(piece.job)];
        let op = piece.op as usize;
        if inside.len() <= op {
            inside.resize(op + 1, NOT_RUN);
        }
        if inside[op] == NOT_RUN {
            inside[op] = 0;
        }
    }

    fn foreground_piece(
        &mut self,
        piece: &KernelPiece,
        last: Ns,
        pending: &[&KernelPiece],
        may_start: Ns,
        gates: &mut Gates<'_>,
    ) {
        let wait = piece.start.saturating_sub(may_start);
        self.direct += wait;
        self.direct_worst = self.direct_worst.max(wait);
        if piece.ready <= last || pending.iter().all(|background| background.visible >= piece.ready) {
            self.forced += wait;
        }
        if piece.ready <= last {
            return;
        }
        let window = (last, piece.ready);
        self.windows.push(window);
        let mut filled = 0;
        let mut free_from = window.0;
        let mut first = None;
        for background in pending {
            let (start, end) = (background.start.max(window.0), background.end.min(window.1));
            if start >= end {
                continue;
            }
            filled += end.saturating_sub(start.max(free_from));
            first.get_or_insert(start);
            self.background_kernels += 1;
            let job = usize::from(background.job);
            self.inside[job][background.op as usize] += (end - start) as u32;
            if free_from < start {
                self.gate += gates.within(free_from, start);
            }
            free_from = free_from.max(end);
        }
        self.gate += gates.within(free_from, window.1);
        let length = window.1 - window.0;
        let spent = &mut self.spent[bucket(length)];
        spent.gaps += 1;
        spent.there += length;
        spent.filled += filled;
        match first {
            None => spent.unused += length,
            Some(first) => {
                spent.head += first - window.0;
                spent.tail += window.1 - free_from;
                spent.between += free_from - first - filled;
            }
        }
        self.filled += filled;
        self.filled_gaps += u64::from(filled > 0);
    }

    /// Sum of gap time.
    pub fn idle(&self) -> Ns {
        self.windows.iter().map(|(from, to)| to - from).sum()
    }
}

/// The times when background jobs waited at the gate.
struct Gates<'a>(Vec<(&'a [(Ns, Ns)], usize)>);

impl<'a> Gates<'a> {
    fn of(run: &'a MachineRun, holds: &[bool]) -> Gates<'a> {
        let background_jobs = run.jobs.iter().zip(holds).filter(|(_, holds)| !**holds);
        Gates(background_jobs.map(|(job, _)| (job.waits.as_slice(), 0)).collect())
    }

    /// The part of a time in which background jobs waited at the gate: the longest wait of one job.
    /// Queries must come in the order of time.
    fn within(&mut self, from: Ns, to: Ns) -> Ns {
        let mut most = 0;
        for (waits, at) in &mut self.0 {
            while waits.get(*at).is_some_and(|(_, end)| *end <= from) {
                *at += 1;
            }
            let overlap = waits[*at..]
                .iter()
                .take_while(|(begin, _)| *begin < to)
                .map(|(begin, end)| end.min(&to).saturating_sub(*begin.max(&from)))
                .sum();
            most = Ns::max(most, overlap);
        }
        most
    }
}

/// Latencies in a few figures, ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Number of requests.
    pub count: usize,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// The worst.
    pub worst: f64,
}

impl Latency {
    /// The figures of these latencies.
    pub fn of(latencies: &[Ns]) -> Latency {
        if latencies.is_empty() {
            return Latency::default();
        }
        let mut sorted = latencies.to_vec();
        sorted.sort_unstable();
        let part = |part: f64| {
            let at = ((part * sorted.len() as f64).ceil() as usize).clamp(1, sorted.len());
            sorted[at - 1] as f64
        };
        Latency {
            count: sorted.len(),
            mean: sorted.iter().sum::<Ns>() as f64 / sorted.len() as f64,
            p50: part(0.5),
            p99: part(0.99),
            p999: part(0.999),
            worst: part(1.0),
        }
    }
}

/// Rest of a background kernel at an unexpected arrival, ns: non-preemptive filling cannot do
/// better.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Floor {
    /// Mean residual, E\[S^2\] / (2 E\[S\]).
    pub mean: f64,
    /// The residual that 99 arrivals in a hundred do not exceed.
    pub p99: f64,
    /// Mean kernel time.
    pub kernel: f64,
}

impl Floor {
    /// The floor of these programs' kernels; `switch` is the cost of one change of process.
    pub fn of<'a>(programs: impl IntoIterator<Item = &'a Program>, switch: Ns) -> Floor {
        let mut times: Vec<f64> = programs
            .into_iter()
            .flat_map(Program::kernel_times)
            .map(|time| time as f64)
            .collect();
        let sum: f64 = times.iter().sum();
        if sum == 0.0 {
            return Floor::default();
        }
        times.sort_by(f64::total_cmp);
        let squares: f64 = times.iter().map(|time| time * time).sum();
        // The part of arrivals that find more than r left is the sum of (S - r) over all longer
        // kernels, over the sum of S.
        let beyond = |r: f64| times.iter().map(|time| (time - r).max(0.0)).sum::<f64>() / sum;
        let (mut low, mut high) = (0.0, times[times.len() - 1]);
        for _ in 0..40 {
            let middle = (low + high) / 2.0;
            if beyond(middle) > 0.01 {
                low = middle;
            } else {
                high = middle;
            }
        }
        Floor {
            mean: squares / (2.0 * sum) + switch as f64,
            p99: high + switch as f64,
            kernel: sum / times.len() as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{US, generate};

    #[test]
    fn the_floor_of_equal_kernels_is_half_of_one() {
        let program = Program::of(&generate::training(&[100 * US; 10], 0, 0)).expect("a sound trace");
        let floor = Floor::of([&program], 0);
        assert!((floor.mean - 50_000.0).abs() < 1.0);
        assert!((floor.p99 - 99_000.0).abs() < 10.0);
        let switched = Floor::of([&program], 7_000);
        assert!((switched.mean - 57_000.0).abs() < 1.0);
    }

    #[test]
    fn quantiles_of_latencies() {
        let latency = Latency::of(&(1..=1000).collect::<Vec<Ns>>());
        assert_eq!(
            (latency.p50, latency.p99, latency.p999, latency.worst),
            (500.0, 990.0, 999.0, 1000.0)
        );
    }
}
