// SPDX-License-Identifier: MIT OR Apache-2.0
//! Causes of unfilled gap time: each moment of a gap in which the device ran nothing is attributed
//! to one cause.
//!
//! With several background jobs, the one nearest to running counts. A job may be held back although
//! none of its kernels would have ended before the foreground job's return. No rule is at fault for
//! that time: it is `granularity`. The causes of a gap add up to its unfilled time (`filled` is not
//! among them).
#![forbid(unsafe_code)]

use serde::Serialize;
use weft_player::{HeldReason, KernelPiece, MachineRun, Stand};

use crate::Ns;
use crate::measure::{EDGES, bucket};

/// Causes, nearest to running first: number, short name, what it means.
pub const CAUSES: [(&str, &str); COUNT] = [
    (
        "switch",
        "a background job's kernel is there and the device changes over to its process",
    ),
    ("launch", "launched, and on its way to the device"),
    ("behind", "launched, and behind a copy or another stream of its own job"),
    (
        "order",
        "granted, and the word is on its way: the background job's thread wakes up",
    ),
    ("news", "it waits at the gate and the broker has not looked yet"),
    (
        "bound",
        "held back: with what is out it would be beyond the delay bound",
    ),
    ("busy", "held back: the foreground job is believed to be at work still"),
    (
        "unseen",
        "held back: the foreground job's work should have ended, and no call has told so",
    ),
    ("short", "held back: the gap counts as too short, or its end as near"),
    ("rule", "held back by a rule that is not weft's"),
    (
        "granularity",
        "held back, rightly: it would not have ended before the foreground job came back",
    ),
    (
        "host",
        "nobody asks: the background jobs' hosts work, or wait for their own copies",
    ),
];

/// Number of causes.
pub const COUNT: usize = 12;

const SWITCH: usize = 0;
const LAUNCH: usize = 1;
const BEHIND: usize = 2;
const ORDER: usize = 3;
const NEWS: usize = 4;

/// The index of `granularity` among the causes.
pub const GRANULARITY: usize = 10;
/// The index of `host`.
pub const HOST: usize = 11;

fn held(held: HeldReason) -> usize {
    match held {
        HeldReason::Bound => 5,
        HeldReason::Busy => 6,
        HeldReason::Unseen => 7,
        HeldReason::Short => 8,
        HeldReason::Rule => 9,
    }
}

/// Unfilled time by cause, ns.
pub type Causes = [Ns; COUNT];

/// By length of gap (see [`EDGES`]).
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct UnfilledCauses(pub [Causes; EDGES.len() + 1]);

impl UnfilledCauses {
    /// Over all lengths.
    pub fn sum(&self) -> Causes {
        let mut sum = Causes::default();
        for causes in &self.0 {
            for (sum, time) in sum.iter_mut().zip(causes) {
                *sum += time;
            }
        }
        sum
    }

    /// The time that the gate itself costs: a job could go, and the permission was not given yet,
    /// or was on its way.
    pub fn of_the_gate(&self) -> Ns {
        let sum = self.sum();
        sum[ORDER] + sum[NEWS]
    }

    /// Adds another's.
    pub fn add(&mut self, other: &UnfilledCauses) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            for (mine, theirs) in mine.iter_mut().zip(theirs) {
                *mine += theirs;
            }
        }
    }
}

/// A time in which a job has one state.
#[derive(Debug, Clone, Copy)]
struct Stay {
    from: Ns,
    to: Ns,
    cause: usize,
    /// Device time of the work that it wants to launch, if it is held back.
    wants: Ns,
}

/// States over time; queries must come in the order of time.
struct Track {
    stays: Vec<Stay>,
    at: usize,
}

impl Track {
    fn of(stays: Vec<Stay>) -> Track {
        Track { stays, at: 0 }
    }

    /// The states that overlap a time. Queries must come in the order of time.
    fn within(&mut self, from: Ns, to: Ns) -> impl Iterator<Item = &Stay> {
        while self.stays.get(self.at).is_some_and(|stay| stay.to <= from) {
            self.at += 1;
        }
        self.stays[self.at..].iter().take_while(move |stay| stay.from < to)
    }
}

/// The states of a job at its gate.
fn at_the_gate(run: &MachineRun, job: usize) -> Track {
    let changes = &run.jobs[job].stands;
    let ends = changes.iter().skip(1).map(|next| next.at).chain([run.span]);
    let stays = changes.iter().zip(ends).filter_map(|(change, to)| {
        let cause = match change.stand {
            Stand::Away => return None,
            Stand::Asks => NEWS,
            Stand::Granted => ORDER,
            Stand::Held(why) => held(why),
        };
        let wants = if matches!(change.stand, Stand::Held(_)) {
            change.time
        } else {
            0
        };
        Some(Stay {
            from: change.at,
            to,
            cause,
            wants,
        })
    });
    Track::of(stays.filter(|stay| stay.from < stay.to).collect())
}

/// Work that a job had launched and that did not run yet. `pieces`: its own, in order of start.
fn on_its_way<'a>(run: &MachineRun, pieces: impl Iterator<Item = &'a KernelPiece>) -> Track {
    let mut stays = Vec::new();
    let mut before = 0;
    for piece in pieces {
        let launched = piece.visible.saturating_sub(run.device.launch_latency);
        for (from, to, cause) in [
            (launched, piece.visible, LAUNCH),
            (piece.visible, piece.ready, BEHIND),
            (piece.ready, piece.start, SWITCH),
        ] {
            // The piece before it covers the time before.
            let from = from.max(before);
            if from < to {
                stays.push(Stay {
                    from,
                    to,
                    cause,
                    wants: 0,
                });
            }
        }
        before = before.max(piece.start);
    }
    Track::of(stays)
}

/// Attributes the unfilled time of a run's gaps. `windows`: the gaps, in order.
pub fn why(run: &MachineRun, windows: &[(Ns, Ns)]) -> UnfilledCauses {
    let first = run.jobs.iter().map(|job| job.job.priority).min().unwrap_or(0);
    let fills = |job: usize| run.jobs[job].job.priority != first;
    let background_jobs: Vec<usize> = (0..run.jobs.len()).filter(|job| fills(*job)).collect();
    let mut tracks: Vec<Track> = Vec::new();
    for job in &background_jobs {
        let own = run.pieces.iter().filter(|piece| usize::from(piece.job) == *job);
        tracks.push(on_its_way(run, own));
        tracks.push(at_the_gate(run, *job));
    }
    let mut runs = run
        .pieces
        .iter()
        .filter(|piece| fills(usize::from(piece.job)))
        .peekable();
    let mut why = UnfilledCauses::default();
    let mut stays = Vec::new();
    for (from, to) in windows {
        let causes = &mut why.0[bucket(to - from)];
        let mut free = *from;
        while let Some(piece) = runs.peek().filter(|piece| piece.start < *to) {
            idle(&mut tracks, (free, piece.start), *to, run, &mut stays, causes);
            free = free.max(piece.end);
            if piece.end > *to {
                // It may continue into the next gap.
                break;
            }
            runs.next();
        }
        idle(&mut tracks, (free, *to), *to, run, &mut stays, causes);
    }
    why
}

/// Attributes one stretch in which nothing ran, in a gap that ended at `until`.
fn idle(
    tracks: &mut [Track],
    (from, to): (Ns, Ns),
    until: Ns,
    run: &MachineRun,
    stays: &mut Vec<Stay>,
    causes: &mut Causes,
) {
    if from >= to {
        return;
    }
    stays.clear();
    for track in tracks {
        for stay in track.within(from, to) {
            let (begin, end) = (stay.from.max(from), stay.to.min(to));
            if stay.wants == 0 {
                stays.push(Stay {
                    from: begin,
                    to: end,
                    ..*stay
                });
                continue;
            }
            // From here on its work would not have ended in time.
            let late = until
                .saturating_sub(stay.wants + run.device.launch_latency)
                .clamp(begin, end);
            stays.push(Stay {
                from: begin,
                to: late,
                ..*stay
            });
            stays.push(Stay {
                from: late,
                to: end,
                cause: GRANULARITY,
                ..*stay
            });
        }
    }
    stays.retain(|stay| stay.from < stay.to);
    let mut at = from;
    while at < to {
        let here = |stay: &&Stay| stay.from <= at && at < stay.to;
        let cause = stays.iter().filter(here).map(|stay| stay.cause).min().unwrap_or(HOST);
        // Up to the next change of state.
        let ends = stays.iter().flat_map(|stay| [stay.from, stay.to]);
        let next = ends.filter(|end| *end > at).min().unwrap_or(to).min(to);
        causes[cause] += next - at;
        at = next;
    }
}
