// SPDX-License-Identifier: MIT OR Apache-2.0
//! Observed usage of jobs without a declared need, offered as profiles.
//!
//! Such a job begins with little memory, grows, and may fail half-way. When it ends, its usage is
//! stored; `weft queue` shows it, and `weft profile keep` makes it a profile. With
//! `weft run --profile NAME` the job begins when all of that memory is free. The usage is never
//! applied by default: the next run may differ, and some jobs take all free memory.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::clients::registry::Entry;
use weft_admission::{DurationClass, Job};
use weft_api::job_name;
use weft_api::peak_usage::PeakUsage;
use weft_api::plain_text::brief;
use weft_api::queue::LearntRow;

/// Most jobs that are kept.
const KEPT_JOBS: usize = 32;

/// Longest kept command line and device name, bytes.
const COMMAND_BYTES: usize = 4096;
const NAME_BYTES: usize = 128;

/// An empty record of the job with this first process.
pub fn begin(entry: &Arc<Entry>, user: &str, family: Job) -> PeakUsage {
    PeakUsage {
        family,
        pid: entry.pid,
        name: entry.name.clone(),
        command: entry.command.clone(),
        user: user.to_string(),
        uid: entry.uid,
        gpu: None,
        peak: 0,
        ran: 0,
        denied: false,
    }
}

/// Updates a job's usage from its processes when one of them ends.
pub fn observe<'a>(usage: &mut PeakUsage, entries: impl Iterator<Item = &'a Entry>) {
    let mut sum = 0u64;
    for entry in entries {
        sum = sum.saturating_add(entry.lane.counters.memory_peak.load(Ordering::Relaxed));
        usage.gpu = usage.gpu.take().or_else(|| entry.gpu());
    }
    usage.peak = usage.peak.max(sum);
}

/// Observed usage of jobs that ended recently.
#[derive(Debug, Default)]
pub struct ObservedUsage(VecDeque<PeakUsage>);

impl ObservedUsage {
    /// The records of earlier brokers, without their job numbers, which have no meaning here.
    pub fn go_on(known: Vec<PeakUsage>) -> ObservedUsage {
        let mut all = VecDeque::from(known);
        all.truncate(KEPT_JOBS);
        for took in &mut all {
            took.family = Job(0);
        }
        ObservedUsage(all)
    }

    /// All records, the latest last.
    pub fn all(&self) -> Vec<PeakUsage> {
        self.0.iter().cloned().collect()
    }

    /// Adds an ended job.
    pub fn add(&mut self, mut took: PeakUsage) {
        if took.peak == 0 {
            return;
        }
        took.command = brief(&took.command, COMMAND_BYTES);
        if let Some(gpu) = &mut took.gpu {
            (gpu.name, gpu.uuid) = (brief(&gpu.name, NAME_BYTES), brief(&gpu.uuid, NAME_BYTES));
        }
        // Parts on several devices belong to one job; its first process is on the first device.
        if let Some(known) = self.0.iter_mut().find(|known| known.family == took.family) {
            known.peak = known.peak.saturating_add(took.peak);
            known.ran = known.ran.max(took.ran);
            known.denied |= took.denied;
            return;
        }
        if self.0.len() == KEPT_JOBS {
            self.0.pop_front();
        }
        self.0.push_back(took);
    }

    /// The latest record; that of this process and user, if given.
    pub fn of(&self, pid: Option<u32>, user: Option<&str>) -> Option<&PeakUsage> {
        let mut latest = self.0.iter().rev();
        let his = |took: &PeakUsage| user.is_none_or(|user| user == took.user);
        latest.find(|took| his(took) && pid.is_none_or(|pid| pid == took.pid))
    }

    /// Rows for people, the latest first.
    pub fn rows(&self) -> Vec<LearntRow> {
        let row = |took: &PeakUsage| LearntRow {
            pid: took.pid,
            name: job_name::of(Some(&took.name), &took.command),
            user: took.user.clone(),
            uid: took.uid,
            peak: took.peak,
            ran_s: took.ran as f64 / 1e9,
            duration: DurationClass::from_expected(took.ran).name().to_string(),
            denied: took.denied,
            command: took.command.clone(),
        };
        self.0.iter().rev().map(row).collect()
    }
}
