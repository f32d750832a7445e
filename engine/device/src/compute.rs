// SPDX-License-Identifier: MIT OR Apache-2.0
//! The compute engine: its current context, and the work that runs.
//!
//! Time slices: `holder` is the context that has the engine or is about to. It is not in the line.
//! A slice begins when a context gets the engine and is renewed as long as no other context wants
//! it. So an arriving context waits for the end of the running slice, not for a whole new one.
//!
//! MPS: no context holds the engine; every context with ready work is in the line.

use crate::ready::Line;
use crate::slab::SlabKey;
use crate::state::EngineState;
use crate::time::{Ns, earlier};
use crate::{ContextId, Mode, Output};

#[derive(Debug, Clone, Copy, Default)]
enum Doing {
    #[default]
    Nothing,
    /// Saving one context and loading another.
    Switching { until: Ns },
    /// Running a kernel or memset since `since`; it ends at `until` unless it is stopped.
    Running { op: SlabKey, since: Ns, until: Ns },
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Compute {
    doing: Doing,
    holder: Option<SlabKey>,
    /// When the holder's first slice began.
    slice_start: Ns,
    /// When the holder must go, once another context waits.
    deadline: Option<Ns>,
    /// The holder had nothing to run; its next slice begins when it has.
    idle: bool,
    line: Line,
}

impl Compute {
    pub(crate) fn next_event(&self) -> Option<Ns> {
        match self.doing {
            Doing::Nothing => None,
            Doing::Switching { until } => Some(until),
            Doing::Running { until, .. } => earlier(Some(until), self.deadline),
        }
    }

    pub(crate) fn running_since(&self, key: SlabKey) -> Option<Ns> {
        match self.doing {
            Doing::Running { op, since, .. } if op == key => Some(since),
            _ => None,
        }
    }

    /// A context got something ready.
    pub(crate) fn join(&mut self, context: SlabKey, mode: Mode) {
        if mode == Mode::Mps || self.holder != Some(context) {
            self.line.join(context);
        }
    }

    /// Ends a switch or a kernel that ends now.
    pub(crate) fn end_due(&mut self, state: &mut EngineState) {
        match self.doing {
            Doing::Switching { until } if until <= state.now() => {
                self.doing = Doing::Nothing;
                self.begin_slice(state.now());
            }
            Doing::Running { until, .. } if until <= state.now() => self.end_running(state),
            _ => {}
        }
    }

    /// Decides the engine's next step.
    pub(crate) fn choose(&mut self, state: &mut EngineState) {
        match state.settings().mode {
            Mode::Mps => self.choose_shared(state),
            Mode::TimeSlice => self.choose_sliced(state),
            // `crate::shared`'s.
            Mode::MpsShared(_) => {}
        }
    }

    fn choose_shared(&mut self, state: &mut EngineState) {
        if !matches!(self.doing, Doing::Nothing) {
            return;
        }
        while let Some(context) = self.line.next_by(|context| state.rank(context)) {
            if self.run_next_of(context, state) {
                if state.has_compute(context) {
                    self.line.join(context);
                }
                return;
            }
        }
    }

    fn choose_sliced(&mut self, state: &mut EngineState) {
        let (now, slice) = (state.now(), state.settings().slice);
        loop {
            let contended = !self.line.is_empty();
            match self.doing {
                Doing::Switching { .. } => return,
                Doing::Running { op, since, .. } => {
                    if !contended {
                        self.deadline = None;
                        return;
                    }
                    if self.deadline(now, slice) > now {
                        return;
                    }
                    // The next round sees a holder with work and a slice that is over, and sends it
                    // to the back of the line.
                    self.doing = Doing::Nothing;
                    state.freeze(op, since);
                }
                Doing::Nothing => {
                    if let Some(holder) = self.holder
                        && state.has_compute(holder)
                    {
                        if self.idle {
                            self.begin_slice(now);
                        }
                        if !contended {
                            self.deadline = None;
                            self.run_next_of(holder, state);
                            return;
                        }
                        if self.deadline(now, slice) > now {
                            self.run_next_of(holder, state);
                            return;
                        }
                        self.line.join(holder);
                    } else if self.holder.is_some_and(|holder| state.pauses(holder))
                        && (!contended || self.deadline(now, slice) > now)
                    {
                        return;
                    }
                    let Some(next) = self.line.next() else {
                        self.idle = true;
                        return;
                    };
                    self.hand_over(next, state);
                }
            }
        }
    }

    /// The end of the slice that runs now. Fixed when first asked for, until the engine changes
    /// hands or no other context waits.
    fn deadline(&mut self, now: Ns, slice: Ns) -> Ns {
        let start = self.slice_start;
        *self.deadline.get_or_insert_with(|| {
            let renewed = now.saturating_sub(start) / slice;
            start.saturating_add(slice.saturating_mul(renewed + 1))
        })
    }

    fn begin_slice(&mut self, now: Ns) {
        self.slice_start = now;
        self.deadline = None;
        self.idle = false;
    }

    /// Gives the engine to `next`, at the cost of a switch if another context had it.
    fn hand_over(&mut self, next: SlabKey, state: &mut EngineState) {
        let (now, trace) = (state.now(), state.settings().trace);
        let cost = match self.holder {
            Some(holder) if holder != next => state.settings().switch,
            _ => 0,
        };
        self.holder = Some(next);
        self.begin_slice(now);
        if cost == 0 {
            return;
        }
        let until = now.saturating_add(cost);
        self.doing = Doing::Switching { until };
        state.usage_mut().switches += 1;
        state.usage_mut().switching += cost;
        if trace {
            state.push_output(Output::Switch {
                to: ContextId(next),
                start: now,
                end: until,
            });
        }
    }

    /// Ends the running operation now.
    pub(crate) fn end_running(&mut self, state: &mut EngineState) {
        if let Doing::Running { op, since, .. } = self.doing {
            self.doing = Doing::Nothing;
            state.end_compute(op, since);
        }
    }

    /// Starts the frozen kernel of a context, else its best ready operation.
    fn run_next_of(&mut self, context: SlabKey, state: &mut EngineState) -> bool {
        let Some(op) = state.pop_compute(context) else {
            return false;
        };
        let Some(until) = state.run(op) else { return false };
        self.doing = Doing::Running {
            op,
            since: state.now(),
            until,
        };
        true
    }

    /// Takes a context that is gone off the engine. Its operations are still known.
    pub(crate) fn leave(&mut self, context: SlabKey, state: &mut EngineState) {
        let now = state.now();
        self.line.leave(context);
        if let Doing::Running { op, since, .. } = self.doing
            && state.is_of(op, context)
        {
            state.usage_mut().compute += now - since;
            self.doing = Doing::Nothing;
        }
        if self.holder == Some(context) {
            // Nothing is left to be saved: the next context pays nothing, and a switch towards the
            // dead ends here.
            self.holder = None;
            self.deadline = None;
            if let Doing::Switching { until } = self.doing {
                state.usage_mut().switching -= until - now;
                self.doing = Doing::Nothing;
            }
        }
    }
}
