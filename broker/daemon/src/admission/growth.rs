//! Running clients that wait for more device memory.
//!
//! The core decides which of them wait and which get freed memory. This module informs clients and
//! ends waits that last too long.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;

use super::controller::{Controller, DENIED, wake};
use crate::clock;
use weft_admission::{Decision, Event, Job};
use weft_protocol::Ns;
use weft_protocol::control::ToClient;

/// Most lines that a job gets about waiting: it may wait all the time.
const TOLD: u32 = 5;

/// Wait before a job is told of it: most shorter waits end before a person could read of them.
const BRIEF: Ns = 1_000_000_000;

/// Longest wait, whatever a client asks for: a day, as to begin. The core bounds how long it keeps
/// others out.
const LONGEST: Ns = 24 * 3_600 * 1_000_000_000;

/// A running client that waits for more memory.
#[derive(Debug)]
pub struct Grower {
    client: u64,
    /// Its job. One process of a job waits at a time.
    job: Job,
    /// All that it wants, bytes; a part is there.
    bytes: u64,
    /// Bytes that are not there.
    lacks: u64,
    since: Ns,
    until: Ns,
    /// Whether its person knows, or is not to know.
    told: bool,
}

/// Waiting clients in the order of their requests.
#[derive(Debug, Default)]
pub struct Growth(Vec<Grower>);

impl Growth {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Grower> {
        self.0.iter()
    }

    /// Bytes that a job lacks.
    pub fn lacks(&self, job: Job) -> u64 {
        let own = self.0.iter().filter(|grower| grower.job == job);
        own.map(|grower| grower.lacks).sum()
    }

    /// Forgets a job that ended.
    pub fn forget(&mut self, job: Job) {
        self.0.retain(|grower| grower.job != job);
    }

    fn has(&self, job: Job) -> bool {
        self.0.iter().any(|grower| grower.job == job)
    }

    fn push(&mut self, grower: Grower) {
        self.0.push(grower);
    }

    fn remove(&mut self, is: impl Fn(&Grower) -> bool) -> Option<Grower> {
        let at = self.0.iter().position(is)?;
        Some(self.0.remove(at))
    }

    /// Lines for clients that are to hear that they wait; each once.
    fn take_lines(&mut self, now: Ns) -> Vec<(Job, u64, String)> {
        let mut lines = Vec::new();
        for grower in self.0.iter_mut().filter(|grower| grower.is_to_hear(now)) {
            grower.told = true;
            lines.push((grower.job, grower.client, grower.line()));
        }
        lines
    }

    /// Clients whose wait is over.
    fn late(&self, now: Ns) -> Vec<u64> {
        let late = self.0.iter().filter(|grower| grower.until <= now);
        late.map(|grower| grower.client).collect()
    }
}

impl Grower {
    pub fn client(&self) -> u64 {
        self.client
    }

    pub fn job(&self) -> Job {
        self.job
    }

    pub fn lacking(&self) -> u64 {
        self.lacks
    }

    pub fn since(&self) -> Ns {
        self.since
    }

    fn is_to_hear(&self, now: Ns) -> bool {
        !self.told && now.saturating_sub(self.since) >= BRIEF
    }

    /// The line for its person.
    fn line(&self) -> String {
        format!(
            "waits inside an allocation for {:.2} GiB of device memory more, which others have (for {} s at most, then CUDA says that there is none; WEFT_WAIT says how long)",
            self.lacks as f64 / f64::from(1u32 << 30),
            self.until.saturating_sub(self.since).div_ceil(1_000_000_000)
        )
    }
}

impl Controller {
    /// A client wants `bytes` beyond its part. It may wait `patience` ns where they can come free.
    pub fn more(&mut self, client: u64, bytes: u64, patience: Ns) {
        let patience = patience.min(LONGEST);
        let Some(job) = self.clients.get(&client).copied() else {
            return;
        };
        let gathered = self.gather(client, job, bytes, 0);
        let lacks = bytes - gathered;
        if lacks == 0 {
            return self.answer(client, Some(bytes));
        }
        let alone = !self.growth.has(job);
        self.tell(match patience > 0 && alone {
            true => Event::GrowsInTime(job, lacks),
            false => Event::Grows(job, lacks),
        });
        let decided = self.out.iter().find_map(|decision| match decision {
            Decision::Grant { job: of, .. } if *of == job => Some(true),
            Decision::Deny { job: of, .. } if *of == job => Some(false),
            _ => None,
        });
        match decided {
            Some(granted) => {
                self.carry_out();
                self.answer(client, granted.then_some(bytes));
            }
            None => {
                let since = clock::now();
                self.growth.push(Grower {
                    client,
                    job,
                    bytes,
                    lacks,
                    since,
                    until: since.saturating_add(patience),
                    told: false,
                });
                self.shows_who_grows(client, job);
                self.carry_out();
            }
        }
    }

    /// Shows the client that its answer takes longer.
    fn shows_who_grows(&self, client: u64, job: Job) {
        let member = self.gangs.get(&job).and_then(|gang| gang.members.get(&client));
        if let Some(member) = member {
            let admission_slot = &member.entry.lane.admission_slot;
            admission_slot.growing.store(1, Ordering::Release);
            wake(&admission_slot.answers);
        }
    }

    /// Tells clients that have waited for a moment: nothing else shows a wait inside an allocation.
    fn tells_who_grows(&mut self, now: Ns) {
        for (job, client, line) in self.growth.take_lines(now) {
            let Some(gang) = self.gangs.get_mut(&job) else {
                continue;
            };
            gang.told += 1;
            if gang.told > TOLD {
                continue;
            }
            if let Some(member) = gang.members.get(&client) {
                let _ = member.sender.send(ToClient::Said(line));
            }
        }
    }

    /// Answers a client: granted bytes, or none.
    fn answer(&self, client: u64, granted: Option<u64>) {
        let job = self.clients.get(&client);
        let member = job.and_then(|job| self.gangs.get(job)?.members.get(&client));
        if let Some(member) = member {
            let admission_slot = &member.entry.lane.admission_slot;
            if let Some(bytes) = granted {
                admission_slot.quota.fetch_add(bytes, Ordering::AcqRel);
            }
            admission_slot.growing.store(0, Ordering::Release);
            admission_slot.answers.fetch_add(1, Ordering::AcqRel);
            wake(&admission_slot.answers);
        }
    }

    /// Passes on the core's decision to the job's waiting client.
    pub fn has_grown(&mut self, job: Job, granted: bool) {
        if let Some(grower) = self.growth.remove(|grower| grower.job == job) {
            self.answer(grower.client, granted.then_some(grower.bytes));
        }
    }

    /// Notes a denial: the job's observed usage is less than its need.
    pub fn notes_denial(&mut self, job: Job) {
        if let Some(took) = self.gangs.get_mut(&job).and_then(|gang| gang.took.as_mut()) {
            took.denied = true;
        }
    }

    /// A client stops waiting.
    pub fn grows_no_more(&mut self, client: u64) {
        if let Some(grower) = self.growth.remove(|grower| grower.client == client) {
            self.tell(Event::GrowsNoMore(grower.job));
            self.answer(client, None);
            self.carry_out();
        }
    }

    /// Ends a client's wait without success.
    pub fn grows_in_vain(&mut self, client: u64) {
        let Some(grower) = self.growth.remove(|grower| grower.client == client) else {
            return;
        };
        self.sums[DENIED] += 1;
        self.notes_denial(grower.job);
        self.tell(Event::GrowsNoMore(grower.job));
        self.answer(client, None);
        self.carry_out();
    }

    /// Tells clients that they wait, and ends waits that are over.
    pub fn look_at_the_growing(&mut self) {
        let now = clock::now();
        self.tells_who_grows(now);
        for client in self.growth.late(now) {
            self.grows_in_vain(client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_is_soon_over_is_not_told() {
        let mut grower = Grower {
            client: 1,
            job: Job(1),
            bytes: 3 << 30,
            lacks: 3 << 29,
            since: 7 * BRIEF,
            until: 16 * BRIEF + BRIEF / 2,
            told: false,
        };
        assert!(!grower.is_to_hear(7 * BRIEF) && !grower.is_to_hear(8 * BRIEF - 1));
        assert!(grower.is_to_hear(8 * BRIEF));
        assert!(
            grower.line().contains("1.50 GiB") && grower.line().contains("for 10 s at most"),
            "{}",
            grower.line()
        );
        grower.told = true;
        assert!(!grower.is_to_hear(12 * BRIEF), "once");
    }
}
