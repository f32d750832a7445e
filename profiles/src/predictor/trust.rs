// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trust in a kind of context, by its length and count: its forecasts' error over that of the next
//! shorter contexts on the same values.
//!
//! A context seen once may be almost exact (a training step) or worthless (a server that mixes
//! requests). Some dozen launches show which case the job is.

use super::cell::MIN_DISTANCE_NS;

/// Part of the past that each new value keeps: about the last 100 values count.
const STAYS: f32 = 0.99;

/// Error assumed at first, ns. A longer context then counts as slightly better.
const FIRST_NS: f32 = 2_000.0;
const BETTER: f32 = 0.8;

#[derive(Debug, Clone, Copy)]
pub(super) struct Trust {
    own: f32,
    shorter: f32,
    /// `(own + 1) / (shorter + 1)`, kept because it is read more often than it changes.
    usual: f32,
}

impl Default for Trust {
    fn default() -> Trust {
        Trust {
            own: FIRST_NS * BETTER,
            shorter: FIRST_NS,
            usual: BETTER,
        }
    }
}

impl Trust {
    /// Learns the errors, ns, of such a context's forecast and of the next shorter one's.
    pub(super) fn learn(&mut self, own: f32, shorter: f32) {
        self.own = (self.own * STAYS + own).max(MIN_DISTANCE_NS);
        self.shorter = (self.shorter * STAYS + shorter).max(MIN_DISTANCE_NS);
        self.usual = (self.own + 1.0) / (self.shorter + 1.0);
    }

    /// Error of such contexts over that of shorter ones.
    pub(super) fn usual(&self) -> f32 {
        self.usual
    }
}
