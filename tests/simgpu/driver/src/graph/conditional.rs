//! Conditional nodes: IF, WHILE and SWITCH over a value that kernels set on the device.
//!
//! Here kernels do not run, so nothing ever sets the value: it is what the client gave as the
//! default for each launch, or 0 without one. IF runs its first body where that is not 0, else its
//! second if there is one; SWITCH runs the body of that number; WHILE runs its body **once** where
//! the value is not 0, since the kernel that would end the loop computes nothing. A test that needs
//! another count sets `SIMGPU_WHILE_TRIPS`.
#![deny(unsafe_code)]

use std::sync::{Arc, OnceLock};

use crate::abi::{Error, Handle, Out, R};
use crate::export::export;
use crate::graph::model::{GRAPHS, Graph};
use crate::registry::{Kind as HandleKind, Registry};
use crate::state;

/// The values that conditional nodes look at.
pub(crate) static VALUES: Registry<Value> = Registry::new(HandleKind::Conditional);

/// One value on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Value {
    /// What it is at each launch of the graph.
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
    fn runs(self, value: u32, bodies: usize, trips: u32) -> Option<(usize, u32)> {
        let (body, times) = match self {
            Choice::If => (usize::from(value == 0), 1),
            Choice::While => (0, if value == 0 { 0 } else { trips }),
            Choice::Switch => (value as usize, 1),
        };
        (body < bodies && times > 0).then_some((body, times))
    }
}

/// What one conditional node holds.
pub(crate) struct Conditional {
    pub(crate) value: Handle,
    pub(crate) choice: Choice,
    pub(crate) bodies: Vec<Arc<Graph>>,
    /// The bodies' handles, which the client looks at for as long as the node lives.
    pub(crate) handles: Box<[Handle]>,
}

impl Conditional {
    /// A node with empty bodies, for the client to fill.
    pub(crate) fn new(value: Handle, choice: u32, size: u32) -> R<Conditional> {
        let choice = Choice::new(choice)?;
        VALUES.get(value)?;
        let most = match choice {
            Choice::If => 2,
            Choice::While => 1,
            Choice::Switch => u32::MAX,
        };
        if size == 0 || size > most {
            return Err(Error::INVALID_VALUE);
        }
        let bodies: Vec<_> = (0..size).map(|_| Graph::create()).collect();
        Ok(Conditional {
            value,
            choice,
            handles: bodies.iter().map(|body| body.handle).collect(),
            bodies,
        })
    }

    /// The body that the launch value chooses, and how often it runs.
    pub(crate) fn chosen(&self) -> Option<(&Arc<Graph>, u32)> {
        let value = VALUES.find(self.value).map_or(0, |value| value.at_launch);
        let (body, times) = self.choice.runs(value, self.bodies.len(), trips())?;
        Some((&self.bodies[body], times))
    }
}

/// How often a WHILE runs its body.
fn trips() -> u32 {
    static TRIPS: OnceLock<u32> = OnceLock::new();
    *TRIPS.get_or_init(|| {
        std::env::var("SIMGPU_WHILE_TRIPS")
            .ok()
            .and_then(|trips| trips.parse().ok())
            .unwrap_or(1)
    })
}

/// `CU_GRAPH_COND_ASSIGN_DEFAULT`.
const ASSIGN_DEFAULT: u32 = 1;

export! {
    fn cuGraphConditionalHandleCreate(value: Out<u64>, graph: Handle, context: Handle, default: u32, flags: u32) {
        let _ = context;
        state::driver()?;
        GRAPHS.get(graph)?;
        if flags & !ASSIGN_DEFAULT != 0 || value.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let at_launch = if flags & ASSIGN_DEFAULT != 0 { default } else { 0 };
        value.set(VALUES.add(Value { at_launch }) as u64)
    }
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
