//! How each job stands between wanting to launch and having launched, written down as it changes.
//! `crate::why` reads it.
#![forbid(unsafe_code)]

use weft_scheduler::Mode;

use super::LabMachine;
use super::gate::WaitingLaunch;
use super::process::Queued;
use crate::Ns;
use crate::job::Play;

/// Why the broker, or a rule of the lab's own, gives no credit to one who waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldReason {
    /// What is out and this together are beyond the delay bound.
    Bound,
    /// The foreground job is believed to be at work.
    Busy,
    /// The foreground job's work should have ended, but no call of it has told.
    Unseen,
    /// The end was told: the gap counts as too short, or as about to end.
    Short,
    /// The rule says so (rules of the lab's own).
    Rule,
}

/// Where a job's next launch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stand {
    /// It wants to launch nothing: its host works, or waits for the device.
    Away,
    /// At the gate, and whoever decides has not heard of it.
    Asks,
    /// Heard and held back.
    Held(HeldReason),
    /// It has the credit and is about to see it.
    Granted,
}

/// A job's stand from a time on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandChange {
    /// Since when.
    pub at: Ns,
    /// How it stands.
    pub stand: Stand,
    /// Device time of what it wants to launch.
    pub time: Ns,
}

impl LabMachine {
    /// From now on it stands so.
    pub(super) fn stands(&mut self, job: usize, stand: Stand) {
        let now = self.now;
        let process = &mut self.processes[job];
        if process.stands.last().is_some_and(|last| last.stand == stand) {
            return;
        }
        let time = match stand {
            Stand::Away => 0,
            _ => process.wanted,
        };
        process.stands.push(StandChange { at: now, stand, time });
    }

    /// It wants to launch this: how long that will take of the device.
    pub(super) fn wants(&mut self, job: usize, call: Queued, play: &Play) {
        let seed = self.seed;
        let process = &mut self.processes[job];
        let (Play::Compute { duration, .. } | Play::Copy { duration, .. }) = *play else {
            return;
        };
        process.wanted = process
            .job
            .device_time(seed, process.number, call.request, call.op, duration);
    }

    /// After a turn of the broker.
    pub(super) fn note_stands(&mut self) {
        let mut seen = None;
        for job in 0..self.processes.len() {
            let lane = &self.processes[job].lane;
            let Some(WaitingLaunch { cost, .. }) = lane.waiting.filter(|_| lane.mode == Mode::Background) else {
                continue;
            };
            let granted = lane.covers(cost, self.sum_above(self.processes[job].job.priority));
            let stand = if granted {
                Stand::Granted
            } else if lane.told_wait != lane.waiting {
                Stand::Asks
            } else {
                let Some(broker) = &self.broker else { return };
                let (exposure, busy_until) = *seen.get_or_insert_with(|| broker.believes());
                Stand::Held(if exposure > 0 && exposure + cost > broker.delay_bound() {
                    HeldReason::Bound
                } else if self.foreground_jobs_seen() {
                    HeldReason::Short
                } else if self.now < busy_until {
                    HeldReason::Busy
                } else {
                    HeldReason::Unseen
                })
            };
            self.stands(job, stand);
        }
    }

    /// Whether the core was told of every foreground job that its work has ended.
    fn foreground_jobs_seen(&self) -> bool {
        self.processes
            .iter()
            .filter(|process| process.lane.mode == Mode::Foreground)
            .all(|process| process.lane.told_idle)
    }
}
