// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conditional nodes: IF, WHILE and SWITCH over a value that kernels set on the device.
//!
//! Kernels do not run here, so nothing ever sets the value. It is the client's default for each
//! launch, or 0 without one. IF runs its first body if the value is not 0, else its second if there
//! is one. SWITCH runs the body of that number. WHILE runs its body **once** if the value is not 0,
//! since the kernel that would end the loop computes nothing. A test that needs another count sets
//! `SIMGPU_WHILE_TRIPS`.
#![forbid(unsafe_code)]

use std::sync::OnceLock;

use crate::abi::{Error, R};
use crate::registry::{HandleKind, Registry};

/// The values that conditional nodes look at.
pub(crate) static VALUES: Registry<ConditionalValue> = Registry::new(HandleKind::Conditional);

/// One value on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConditionalValue {
    /// Its value at each launch of the graph.
    pub(crate) at_launch: u32,
}

/// `CUgraphConditionalNodeType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    If,
    While,
    Switch,
}

impl Choice {
    pub(crate) fn new(kind: u32) -> R<Choice> {
        match kind {
            0 => Ok(Choice::If),
            1 => Ok(Choice::While),
            2 => Ok(Choice::Switch),
            _ => Err(Error::INVALID_VALUE),
        }
    }

    /// Which body runs, and how often.
    pub(crate) fn runs(self, value: u32, bodies: usize, trips: u32) -> Option<(usize, u32)> {
        let (body, times) = match self {
            Choice::If => (usize::from(value == 0), 1),
            Choice::While => (0, if value == 0 { 0 } else { trips }),
            Choice::Switch => (value as usize, 1),
        };
        (body < bodies && times > 0).then_some((body, times))
    }
}

/// How often a WHILE runs its body.
pub(crate) fn trips() -> u32 {
    static TRIPS: OnceLock<u32> = OnceLock::new();
    *TRIPS.get_or_init(|| {
        std::env::var("SIMGPU_WHILE_TRIPS")
            .ok()
            .and_then(|trips| trips.parse().ok())
            .unwrap_or(1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_chooses_the_body() {
        assert_eq!(Choice::If.runs(1, 2, 9), Some((0, 1)));
        assert_eq!(Choice::If.runs(0, 2, 9), Some((1, 1)));
        assert_eq!(Choice::If.runs(0, 1, 9), None);
        assert_eq!(Choice::While.runs(7, 1, 9), Some((0, 9)));
        assert_eq!(Choice::While.runs(0, 1, 9), None);
        assert_eq!(Choice::Switch.runs(2, 3, 9), Some((2, 1)));
        assert_eq!(Choice::Switch.runs(3, 3, 9), None);
    }
}
