// SPDX-License-Identifier: MIT OR Apache-2.0
//! First in, first out. Strict: a job that does not fit bars all behind it, so no job waits longer
//! than those before it need. Passing: a later job may start if an earlier one does not fit, so a
//! large gang may wait for ever.

use super::ClusterPolicy;

/// Order by arrival.
#[derive(Debug, Clone)]
pub struct FifoOrder {
    strict: bool,
}

impl FifoOrder {
    /// Creates the order in which no job passes another.
    pub fn strict() -> FifoOrder {
        FifoOrder { strict: true }
    }

    /// Creates the order in which a job passes those that do not fit.
    pub fn passing() -> FifoOrder {
        FifoOrder { strict: false }
    }
}

impl ClusterPolicy for FifoOrder {
    fn name(&self) -> &'static str {
        if self.strict { "fifo" } else { "fifo-backfill" }
    }

    fn keyed(&self) -> bool {
        true
    }

    fn strict(&self) -> bool {
        self.strict
    }
}
