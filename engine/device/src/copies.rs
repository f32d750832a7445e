// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two copy engines. Each runs one copy at a time, to its end. Contexts take turns copy by
//! copy, also in time-slice mode: copy engines are scheduled apart from the compute engine.

use crate::ready::Line;
use crate::slab::SlabKey;
use crate::state::EngineState;
use crate::time::Ns;

#[derive(Debug, Clone)]
pub(crate) struct CopyEngine {
    index: usize,
    /// The copy that runs: which, since, until.
    running: Option<(SlabKey, Ns, Ns)>,
    /// Contexts with ready copies.
    line: Line,
}

impl CopyEngine {
    pub(crate) fn new(index: usize) -> CopyEngine {
        CopyEngine {
            index,
            running: None,
            line: Line::default(),
        }
    }

    pub(crate) fn next_event(&self) -> Option<Ns> {
        self.running.map(|(_, _, until)| until)
    }

    pub(crate) fn running_since(&self, key: SlabKey) -> Option<Ns> {
        self.running.filter(|(op, _, _)| *op == key).map(|(_, since, _)| since)
    }

    /// A context got a copy ready.
    pub(crate) fn join(&mut self, context: SlabKey) {
        self.line.join(context);
    }

    /// Ends the copy that ends now.
    pub(crate) fn end_due(&mut self, state: &mut EngineState) {
        if let Some((op, since, until)) = self.running
            && until <= state.now()
        {
            self.running = None;
            state.end_copy(self.index, op, since);
        }
    }

    /// Starts the next copy if none runs.
    pub(crate) fn choose(&mut self, state: &mut EngineState) {
        while self.running.is_none() {
            let Some(context) = self.line.next() else { return };
            let Some((key, more)) = state.pop_copy(context, self.index) else {
                continue;
            };
            if more {
                self.line.join(context);
            }
            self.running = state.run(key).map(|until| (key, state.now(), until));
        }
    }

    /// Takes a context that is gone off the engine. Its operations are still known.
    pub(crate) fn leave(&mut self, context: SlabKey, state: &mut EngineState) {
        self.line.leave(context);
        if let Some((op, since, _)) = self.running
            && state.is_of(op, context)
        {
            self.running = None;
            let ran = state.now() - since;
            state.usage_mut().copies[self.index] += ran;
        }
    }
}
