// SPDX-License-Identifier: MIT OR Apache-2.0
//! Time that the rule adds to a job's calls now ([`crate::cost`]).
#![forbid(unsafe_code)]

use weft_scheduler::Mode;

use super::PlayedMachine;
use crate::cost::{AddedCost, WEFT_ALONE_NS, WEFT_BACKGROUND_NS, WEFT_FOREGROUND_NS};

impl PlayedMachine {
    /// Time that the rule adds to a job's calls now.
    pub(super) fn added(&self, job: usize) -> AddedCost {
        if !self.hosts.launch_costs {
            return AddedCost::default();
        }
        if let Some(own) = &self.own {
            return own.added();
        }
        if self.broker.is_none() {
            return AddedCost::default();
        }
        match self.processes[job].lane.mode {
            Mode::Foreground => WEFT_FOREGROUND_NS,
            Mode::Background => WEFT_BACKGROUND_NS,
            Mode::Free | Mode::Alone => WEFT_ALONE_NS,
        }
    }
}
