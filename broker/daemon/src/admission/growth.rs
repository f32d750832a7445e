// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running clients that wait for more device memory.
//!
//! The core decides which of them wait and which get freed memory. This module records the bytes
//! that each client waits for, the begin of its wait, and its longest wait.
#![forbid(unsafe_code)]

use weft_admission::Job;
use weft_protocol::Ns;

/// Wait before a job gets a line about it: most shorter waits end before a person could read one.
const UNTOLD_NS: Ns = 1_000_000_000;

/// Longest wait that a client can get: a day, as for a job that waits to begin. The core bounds the
/// time for which it keeps other jobs out.
const LONGEST_NS: Ns = 24 * 3_600 * 1_000_000_000;

/// A running client that waits for more memory.
#[derive(Debug)]
pub struct Grower {
    client: u64,
    /// Its job. One process of a job waits at a time.
    job: Job,
    /// All bytes that it wants.
    bytes: u64,
    /// The part of them that is missing.
    lacks: u64,
    since: Ns,
    until: Ns,
    /// Whether its user got the line, or is to get none.
    told: bool,
}

impl Grower {
    /// A client that wants `bytes`, of which `lacks` are missing. It waits `patience` ns from
    /// `since` on.
    pub fn new(client: u64, job: Job, (bytes, lacks): (u64, u64), since: Ns, patience: Ns) -> Grower {
        Grower {
            client,
            job,
            bytes,
            lacks,
            since,
            until: since.saturating_add(patience.min(LONGEST_NS)),
            told: false,
        }
    }

    /// Gives its user no line, if `quiet`.
    pub fn quiet(self, quiet: bool) -> Grower {
        Grower {
            told: self.told || quiet,
            ..self
        }
    }

    pub fn client(&self) -> u64 {
        self.client
    }

    pub fn job(&self) -> Job {
        self.job
    }

    /// All bytes that it wants.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Missing bytes.
    pub fn lacks(&self) -> u64 {
        self.lacks
    }

    pub fn since(&self) -> Ns {
        self.since
    }

    fn is_to_hear(&self, now: Ns) -> bool {
        !self.told && now.saturating_sub(self.since) >= UNTOLD_NS
    }

    /// The line for its user.
    fn line(&self) -> String {
        format!(
            "waits inside an allocation for {:.2} GiB more device memory, which other jobs hold (for at most {} s, then CUDA reports that it is out of memory; WEFT_WAIT sets the time)",
            self.lacks as f64 / f64::from(1u32 << 30),
            self.until.saturating_sub(self.since).div_ceil(1_000_000_000)
        )
    }
}

/// Waiting clients, the latest request first.
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

    /// Whether a process of this job waits.
    pub fn has(&self, job: Job) -> bool {
        self.0.iter().any(|grower| grower.job == job)
    }

    /// Adds a request before those of earlier clients, so that [`Growth::remove_job`] finds it.
    pub fn push_first(&mut self, grower: Grower) {
        self.0.insert(0, grower);
    }

    pub fn remove_client(&mut self, client: u64) -> Option<Grower> {
        self.remove(|grower| grower.client == client)
    }

    /// Removes the first of a job's waiting clients.
    pub fn remove_job(&mut self, job: Job) -> Option<Grower> {
        self.remove(|grower| grower.job == job)
    }

    fn remove(&mut self, is: impl Fn(&Grower) -> bool) -> Option<Grower> {
        let at = self.0.iter().position(is)?;
        Some(self.0.remove(at))
    }

    /// Forgets a job that ended.
    pub fn forget(&mut self, job: Job) {
        self.0.retain(|grower| grower.job != job);
    }

    /// Clients that have waited too long.
    pub fn late(&self, now: Ns) -> Vec<u64> {
        let late = self.0.iter().filter(|grower| grower.until <= now);
        late.map(|grower| grower.client).collect()
    }

    /// Lines for clients that have waited long enough to get one; each gets one line.
    pub fn take_lines(&mut self, now: Ns) -> Vec<(Job, u64, String)> {
        let mut lines = Vec::new();
        for grower in self.0.iter_mut().filter(|grower| grower.is_to_hear(now)) {
            grower.told = true;
            lines.push((grower.job, grower.client, grower.line()));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_is_soon_over_is_not_told() {
        let patience = 9 * UNTOLD_NS + UNTOLD_NS / 2;
        let mut grower = Grower::new(1, Job(1), (3 << 30, 3 << 29), 7 * UNTOLD_NS, patience);
        assert!(!grower.is_to_hear(7 * UNTOLD_NS) && !grower.is_to_hear(8 * UNTOLD_NS - 1));
        assert!(grower.is_to_hear(8 * UNTOLD_NS));
        assert!(
            grower.line().contains("1.50 GiB") && grower.line().contains("for at most 10 s"),
            "{}",
            grower.line()
        );
        grower.told = true;
        assert!(!grower.is_to_hear(12 * UNTOLD_NS), "once");
    }
}
