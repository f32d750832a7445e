// SPDX-License-Identifier: MIT OR Apache-2.0
//! History for `weft queue`: counts of decisions, and processes that ended recently.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use crate::base::clock;
use weft_api::queue::FreedRow;

/// Most ended processes that are kept.
const FREED_ROWS: usize = 64;

/// Counts since the first broker of the ledger.
#[derive(Debug, Default)]
pub struct AdmissionHistory {
    /// Jobs admitted.
    pub admitted: u64,
    /// Admitted jobs that had to wait, counted at admission.
    pub waited: u64,
    /// Jobs that could never run.
    pub refused: u64,
    /// Requests for more that were denied.
    pub denied: u64,
    freed: VecDeque<FreedRow>,
}

impl AdmissionHistory {
    /// Continues the last broker's counts: see [`AdmissionHistory::counts`].
    pub fn from_counts([admitted, waited, refused, denied]: [u64; 4]) -> AdmissionHistory {
        AdmissionHistory {
            admitted,
            waited,
            refused,
            denied,
            freed: VecDeque::new(),
        }
    }

    /// The counts: admitted, waited, refused, denied.
    pub fn counts(&self) -> [u64; 4] {
        [self.admitted, self.waited, self.refused, self.denied]
    }

    /// Records an ended process. `share`: bytes that became free; 0: its job has other processes.
    pub fn note_freed(&mut self, pid: u32, share: u64) {
        if self.freed.len() == FREED_ROWS {
            self.freed.pop_front();
        }
        let at = clock::now();
        self.freed.push_back(FreedRow { pid, share, at });
    }

    /// Processes that ended recently, the latest first.
    pub fn freed(&self) -> Vec<FreedRow> {
        self.freed.iter().rev().cloned().collect()
    }
}
