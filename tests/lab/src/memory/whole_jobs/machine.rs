// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole jobs take turns: one computes, others leave for the host or come back meanwhile.
//!
//! * Jobs have their turns in one order. The first one in it that is not all on the device comes.
//! * If there is no room for it, the job leaves whose turn is the furthest off, and only one that
//!   is behind it in the order. The running job stays.
//! * A turn ends when the next job is on the device. If the two do not fit together, it lasts until
//!   the exposed move is a small part of it ([`LOST`]). [`EvictionSetting::longest`] bounds both.
//! * Memory leaves and comes in pieces ([`MovedUnit`]). A piece has its room until all of it is
//!   copied out, and from the begin of its copy in.
//!
//! Invariant: the same jobs and setting give the same figures. Not modelled: the time to park a
//! job's threads, to pin the host's memory, and to map the device's.
#![forbid(unsafe_code)]

use serde::Serialize;
use weft_paging::Link;

use crate::memory::machine::default_rule;
use crate::memory::workload::PagedJob;
use crate::{MS, Ns};

/// The part of the time that may be lost to exposed moves, if turns can be long enough.
const LOST: f64 = 0.02;

/// Rounds before the figures count, and rounds that count.
const ROUNDS: (usize, usize) = (3, 8);

/// The unit in which memory becomes free, and is claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MovedUnit {
    /// All of a job, as `weft pause --evict` moves it.
    Job,
    /// An allocation.
    Buffer,
    /// Pieces of allocations, of this size at most, bytes.
    Piece(u64),
}

/// The settings of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EvictionSetting {
    /// Device memory for jobs, bytes.
    pub room: u64,
    /// The link.
    pub link: Link,
    /// The unit of moves.
    pub unit: MovedUnit,
    /// The longest turn, without the rest of a kernel, ns.
    pub longest: Ns,
}

/// The figures of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct EvictionFigures {
    /// Own time of all jobs as a part of the elapsed time.
    pub efficiency: f64,
    /// Elapsed time, s.
    pub seconds: f64,
    /// The mean length of a turn, ms.
    pub turn_ms: f64,
    /// The longest turn, ms.
    pub longest_turn_ms: f64,
    /// The longest time from a job's turn to its next one, ms.
    pub away_ms: f64,
    /// Copied to the host, GB.
    pub out_gb: f64,
    /// Copied to the device, GB.
    pub in_gb: f64,
    /// The largest part of the room that was in use.
    pub fullest: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PiecePlace {
    Host,
    Coming,
    Device,
    Leaving,
}

#[derive(Debug, Clone, Copy)]
struct MemoryPiece {
    bytes: u64,
    place: PiecePlace,
}

#[derive(Debug)]
struct TurnJob {
    pieces: Vec<MemoryPiece>,
    /// Ends of the kernels of a period, ns from its begin.
    ends: Vec<Ns>,
    own: Ns,
    /// The end of its last turn.
    left: Option<Ns>,
}

impl TurnJob {
    fn new(job: &PagedJob, unit: MovedUnit) -> TurnJob {
        let sizes: Vec<u64> = match unit {
            MovedUnit::Job => vec![job.bytes()],
            MovedUnit::Buffer => job.allocations.iter().map(|range| range.len).collect(),
            MovedUnit::Piece(most) => job
                .allocations
                .iter()
                .flat_map(|range| {
                    let pieces = range.len.div_ceil(most);
                    (0..pieces).map(move |n| most.min(range.len - n * most))
                })
                .collect(),
        };
        let piece = |bytes| MemoryPiece {
            bytes,
            place: PiecePlace::Host,
        };
        let mut end = 0;
        TurnJob {
            pieces: sizes.into_iter().map(piece).collect(),
            ends: job
                .kernels
                .iter()
                .map(|kernel| {
                    end += kernel.time;
                    end
                })
                .collect(),
            own: 0,
            left: None,
        }
    }

    fn at(&self, place: PiecePlace) -> u64 {
        let there = self.pieces.iter().filter(|piece| piece.place == place);
        there.map(|piece| piece.bytes).sum()
    }

    fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes).sum()
    }

    fn is_whole(&self) -> bool {
        self.pieces.iter().all(|piece| piece.place == PiecePlace::Device)
    }

    /// Time from this much own time to the end of the kernel that runs then; 0 between two.
    fn rest_of_kernel(&self, own: Ns) -> Ns {
        let period = self.ends.last().copied().unwrap_or(1).max(1);
        let at = own % period;
        if at == 0 {
            return 0;
        }
        let next = self.ends.partition_point(|end| *end < at);
        self.ends.get(next).map_or(0, |end| end - at)
    }
}

/// A copy under way.
#[derive(Debug, Clone, Copy)]
struct PieceCopy {
    job: usize,
    piece: usize,
    left: f64,
}

#[derive(Debug)]
struct EvictionMachine {
    setting: EvictionSetting,
    now: Ns,
    jobs: Vec<TurnJob>,
    /// Jobs by their next turns; the first has it.
    order: Vec<usize>,
    running: bool,
    inward: Option<PieceCopy>,
    outward: Option<PieceCopy>,
    moved: (f64, f64),
    used: u64,
    fullest: u64,
}

impl EvictionMachine {
    fn new(jobs: &[PagedJob], setting: EvictionSetting) -> EvictionMachine {
        EvictionMachine {
            setting,
            now: 0,
            jobs: jobs.iter().map(|job| TurnJob::new(job, setting.unit)).collect(),
            order: (0..jobs.len()).collect(),
            running: false,
            inward: None,
            outward: None,
            moved: (0.0, 0.0),
            used: 0,
            fullest: 0,
        }
    }

    /// The piece that comes next: the job of the nearest turn first.
    fn wanted(&self) -> Option<(usize, usize)> {
        let lacks = |job: &usize| self.jobs[*job].at(PiecePlace::Host) > 0;
        let at = self.order.iter().position(lacks)?;
        Some((at, self.order[at]))
    }

    /// Begins the copies that can begin.
    fn begin_copies(&mut self) {
        let Some((at, job)) = self.wanted() else { return };
        // A job that waits for its turn has the link to itself.
        let head = &self.jobs[self.order[0]];
        if at > 0 && !self.running && !head.is_whole() {
            return;
        }
        let free = self.setting.room - self.used;
        let both = self.setting.link.duplex;
        let fits = |piece: &MemoryPiece| piece.place == PiecePlace::Host && piece.bytes <= free;
        if self.inward.is_none()
            && (both || self.outward.is_none())
            && let Some(piece) = self.jobs[job].pieces.iter().position(fits)
        {
            let one = &mut self.jobs[job].pieces[piece];
            one.place = PiecePlace::Coming;
            self.used += one.bytes;
            self.fullest = self.fullest.max(self.used);
            self.inward = Some(PieceCopy {
                job,
                piece,
                left: one.bytes as f64,
            });
        }
        if self.outward.is_some() || !(both || self.inward.is_none()) {
            return;
        }
        let lacks = self.jobs[job].at(PiecePlace::Host);
        if lacks <= self.setting.room - self.used {
            return;
        }
        let first = (at + 1).max(usize::from(self.running));
        let on_device = |piece: &MemoryPiece| piece.place == PiecePlace::Device;
        let victim = self.order[first..].iter().rev().find_map(|job| {
            let piece = self.jobs[*job].pieces.iter().rposition(on_device)?;
            Some((*job, piece))
        });
        if let Some((job, piece)) = victim {
            let one = &mut self.jobs[job].pieces[piece];
            one.place = PiecePlace::Leaving;
            self.outward = Some(PieceCopy {
                job,
                piece,
                left: one.bytes as f64,
            });
        }
    }

    /// Bytes per ns to the device and to the host at present.
    fn rates(&self) -> (f64, f64) {
        let link = self.setting.link;
        let slower = if self.inward.is_some() && self.outward.is_some() {
            ((link.inward + link.outward) / link.both.max(1.0)).max(1.0)
        } else {
            1.0
        };
        (link.inward / slower / 1e9, link.outward / slower / 1e9)
    }

    /// The end of the next copy.
    fn next_end(&self) -> Option<Ns> {
        let (inward, outward) = self.rates();
        let end = |copy: Option<PieceCopy>, rate: f64| Some(self.now + (copy?.left / rate).ceil().max(1.0) as Ns);
        let ends = [end(self.inward, inward), end(self.outward, outward)];
        ends.into_iter().flatten().min()
    }

    /// Lets copies go on up to a time.
    fn advance(&mut self, to: Ns) {
        loop {
            self.begin_copies();
            let end = self.next_end().filter(|end| *end <= to);
            let (inward, outward) = self.rates();
            let passed = (end.unwrap_or(to) - self.now) as f64;
            self.now = end.unwrap_or(to);
            if let Some(copy) = &mut self.inward {
                let bytes = (passed * inward).min(copy.left);
                copy.left -= bytes;
                self.moved.0 += bytes;
                if copy.left < 0.5 {
                    self.jobs[copy.job].pieces[copy.piece].place = PiecePlace::Device;
                    self.inward = None;
                }
            }
            if let Some(copy) = &mut self.outward {
                let bytes = (passed * outward).min(copy.left);
                copy.left -= bytes;
                self.moved.1 += bytes;
                if copy.left < 0.5 {
                    let piece = &mut self.jobs[copy.job].pieces[copy.piece];
                    piece.place = PiecePlace::Host;
                    self.used -= piece.bytes;
                    self.outward = None;
                }
            }
            if end.is_none() {
                return;
            }
        }
    }

    /// Time of the copies for which neither of two jobs can compute, ns.
    fn exposed(&self, job: usize, next: usize) -> f64 {
        let (link, one, other) = (self.setting.link, self.jobs[job].bytes(), self.jobs[next].bytes());
        let beyond = (one + other).saturating_sub(self.setting.room) as f64;
        let alone = |out: f64, back: f64| out / link.outward + back / link.inward;
        let seconds = match self.setting.unit {
            _ if beyond == 0.0 => 0.0,
            MovedUnit::Piece(_) if link.duplex => 2.0 * beyond / link.both,
            MovedUnit::Piece(_) => alone(beyond, beyond),
            MovedUnit::Job | MovedUnit::Buffer => alone(one as f64, other as f64),
        };
        seconds * 1e9
    }

    /// The turn of the first job in the order. Returns its length and the time since the last one,
    /// ns; `None` if its memory can never be on the device.
    fn turn(&mut self) -> Option<(Ns, Ns)> {
        let (job, next) = (self.order[0], self.order[1 % self.order.len()]);
        self.begin_copies();
        while !self.jobs[job].is_whole() {
            let end = self.next_end()?;
            self.advance(end);
        }
        self.running = true;
        let start = self.now;
        let exposed = self.exposed(job, next);
        let longest = self.setting.longest;
        let least = default_rule().least.min(longest);
        let length = ((exposed * (1.0 / LOST - 1.0)) as Ns).clamp(least, longest);
        loop {
            self.begin_copies();
            let ran = self.now - start;
            let ready = self.jobs[next].is_whole() && ran >= least;
            if ready || ran >= longest || (exposed > 0.0 && ran >= length) {
                break;
            }
            let times = [least, length, longest].map(|time| start + time);
            let ahead = times.into_iter().filter(|time| *time > self.now).chain(self.next_end());
            let to = ahead.min()?;
            self.advance(to);
        }
        let own = self.jobs[job].own + self.now - start;
        self.advance(self.now + self.jobs[job].rest_of_kernel(own));
        self.running = false;
        let length = self.now - start;
        self.jobs[job].own += length;
        let away = start - self.jobs[job].left.replace(self.now).unwrap_or(start);
        self.order.rotate_left(1);
        Some((length, away))
    }
}

/// Runs jobs; `None` if one of them does not fit the device.
pub fn run(jobs: &[PagedJob], setting: EvictionSetting) -> Option<EvictionFigures> {
    let mut machine = EvictionMachine::new(jobs, setting);
    for _ in 0..ROUNDS.0 * jobs.len() {
        machine.turn()?;
    }
    let (start, moved) = (machine.now, machine.moved);
    let (mut own, mut longest, mut away) = (0, 0, 0);
    let turns = ROUNDS.1 * jobs.len();
    for _ in 0..turns {
        let one = machine.turn()?;
        own += one.0;
        longest = longest.max(one.0);
        away = away.max(one.1);
    }
    let passed = machine.now - start;
    let ms = |time: Ns| time as f64 / MS as f64;
    Some(EvictionFigures {
        efficiency: own as f64 / passed.max(1) as f64,
        seconds: passed as f64 / 1e9,
        turn_ms: ms(own) / turns as f64,
        longest_turn_ms: ms(longest),
        away_ms: ms(away),
        in_gb: (machine.moved.0 - moved.0) / 1e9,
        out_gb: (machine.moved.1 - moved.1) / 1e9,
        fullest: machine.fullest as f64 / setting.room.max(1) as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::machine::link_of;
    use crate::memory::whole_jobs::bound;
    use crate::memory::workload::{NAMES, generate};
    use weft_engine::memory::MemorySettings;

    fn setting(duplex: bool, unit: MovedUnit) -> EvictionSetting {
        let memory = MemorySettings {
            duplex,
            ..MemorySettings::default()
        };
        EvictionSetting {
            room: memory.capacity,
            link: link_of(&memory),
            unit,
            longest: 5_000 * MS,
        }
    }

    fn of(name: &'static str, share: u64, setting: EvictionSetting) -> EvictionFigures {
        run(&generate(name, 16 << 30, share, 1).jobs, setting).expect("each job fits")
    }

    #[test]
    fn no_order_exceeds_the_bound_or_the_device() {
        for name in NAMES {
            for share in [150, 200, 300] {
                for (duplex, unit) in [
                    (true, MovedUnit::Job),
                    (false, MovedUnit::Job),
                    (true, MovedUnit::Buffer),
                    (true, MovedUnit::Piece(256 << 20)),
                    (false, MovedUnit::Piece(256 << 20)),
                ] {
                    let setting = setting(duplex, unit);
                    let figures = of(name, share, setting);
                    assert_eq!(figures, of(name, share, setting));
                    let jobs = generate(name, 16 << 30, share, 1).jobs;
                    let longest = |job: &PagedJob| job.kernels.iter().map(|kernel| kernel.time).max().unwrap_or(0);
                    let kernel = jobs.iter().map(longest).max().unwrap_or(0);
                    let turns: Vec<(u64, Ns)> = jobs
                        .iter()
                        .map(|job| (job.bytes(), setting.longest + longest(job)))
                        .collect();
                    let bound = bound::efficiency(&turns, setting.room, &setting.link);
                    assert!(
                        figures.efficiency <= bound + 1e-6,
                        "{name} {share}: {figures:?}, {bound}"
                    );
                    assert!(figures.fullest <= 1.0, "{name} {share}: {figures:?}");
                    let longest = (setting.longest + kernel) as f64 / MS as f64;
                    assert!(figures.longest_turn_ms <= longest, "{name} {share}: {figures:?}");
                }
            }
        }
    }

    #[test]
    fn moves_hide_behind_a_neighbour_that_stays() {
        // Two of four jobs fit: one computes while the third leaves and the fourth comes.
        for duplex in [true, false] {
            let figures = of("cnns", 200, setting(duplex, MovedUnit::Job));
            assert!(figures.efficiency > 0.999, "{figures:?}");
            assert!(figures.turn_ms < 600.0, "{figures:?}");
        }
    }

    #[test]
    fn jobs_that_do_not_fit_together_have_the_longest_turns() {
        // 12 GiB leave and 12 GiB come at 41.7 GB/s, while nothing computes.
        let figures = of("cnns", 300, setting(false, MovedUnit::Job));
        let waits = 2.0 * 12.0 * 1.073_741_824 / 41.7;
        assert!((figures.efficiency - 5.0 / (5.0 + waits)).abs() < 0.005, "{figures:?}");
        // In pieces only the 8 GiB do that are too many.
        let pieces = of("cnns", 300, setting(false, MovedUnit::Piece(256 << 20)));
        assert!(pieces.efficiency > figures.efficiency + 0.02, "{pieces:?} {figures:?}");
    }

    #[test]
    fn a_job_larger_than_the_device_has_no_turn() {
        let setting = EvictionSetting {
            room: 1 << 30,
            ..setting(true, MovedUnit::Job)
        };
        assert_eq!(run(&generate("cnns", 16 << 30, 300, 1).jobs, setting), None);
    }
}
