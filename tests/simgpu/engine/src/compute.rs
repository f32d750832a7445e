//! The compute engine: whose turn it is, what runs, and what is frozen.
//!
//! Time slices: `holder` is the context that has the engine or is about to. It is not in the line.
//! A slice begins when a context gets the engine and is renewed as long as nobody else wants it, so
//! a newcomer waits for the end of the running slice, not for a whole new one. MPS: nobody holds
//! the engine; every context with ready work is in the line.

use crate::engine::{Engine, State, earlier};
use crate::ready::Line;
use crate::slab::Key;
use crate::{ContextId, Mode, Ns, Output, Work};

#[derive(Debug, Clone, Copy, Default)]
enum Doing {
    #[default]
    Nothing,
    /// Saving one context and loading another.
    Switching { until: Ns },
    /// Running a kernel or memset since `since`; it ends at `until` unless it is stopped.
    Running { op: Key, since: Ns, until: Ns },
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Compute {
    doing: Doing,
    holder: Option<Key>,
    /// When the holder's first slice began.
    slice_start: Ns,
    /// When the holder must go, once somebody else waits.
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

    pub(crate) fn running_since(&self, key: Key) -> Option<Ns> {
        match self.doing {
            Doing::Running { op, since, .. } if op == key => Some(since),
            _ => None,
        }
    }
}

impl Engine {
    /// A context got something ready.
    pub(crate) fn want_compute(&mut self, context: Key) {
        if self.settings.mode == Mode::Mps || self.compute.holder != Some(context) {
            self.compute.line.join(context);
        }
    }

    /// Ends what ends now: a switch or a kernel.
    pub(crate) fn end_compute(&mut self) {
        match self.compute.doing {
            Doing::Switching { until } if until <= self.now => {
                self.compute.doing = Doing::Nothing;
                self.begin_slice();
            }
            Doing::Running { until, .. } if until <= self.now => self.end_running(),
            _ => {}
        }
    }

    /// Decides what the compute engine does now.
    pub(crate) fn choose_compute(&mut self) {
        match self.settings.mode {
            Mode::Mps => self.choose_shared(),
            Mode::TimeSlice => self.choose_sliced(),
        }
    }

    fn choose_shared(&mut self) {
        if !matches!(self.compute.doing, Doing::Nothing) {
            return;
        }
        while let Some(context) = self.compute.line.next() {
            if self.run_next_of(context) {
                if self.has_ready(context) {
                    self.compute.line.join(context);
                }
                return;
            }
        }
    }

    fn choose_sliced(&mut self) {
        loop {
            let contended = !self.compute.line.is_empty();
            match self.compute.doing {
                Doing::Switching { .. } => return,
                Doing::Running { .. } => {
                    if !contended {
                        self.compute.deadline = None;
                        return;
                    }
                    if self.deadline() > self.now {
                        return;
                    }
                    self.freeze();
                }
                Doing::Nothing => {
                    if let Some(holder) = self.compute.holder
                        && self.has_ready(holder)
                    {
                        if self.compute.idle {
                            self.begin_slice();
                        }
                        if !contended {
                            self.compute.deadline = None;
                            self.run_next_of(holder);
                            return;
                        }
                        if self.deadline() > self.now {
                            self.run_next_of(holder);
                            return;
                        }
                        self.compute.line.join(holder);
                    }
                    let Some(next) = self.compute.line.next() else {
                        self.compute.idle = true;
                        return;
                    };
                    self.hand_over(next);
                }
            }
        }
    }

    /// The end of the slice that runs now. Fixed when first asked for, until the engine changes
    /// hands or nobody waits.
    fn deadline(&mut self) -> Ns {
        let slice = self.settings.slice;
        let start = self.compute.slice_start;
        let now = self.now;
        *self.compute.deadline.get_or_insert_with(|| {
            let renewed = now.saturating_sub(start) / slice;
            start.saturating_add(slice.saturating_mul(renewed + 1))
        })
    }

    fn begin_slice(&mut self) {
        self.compute.slice_start = self.now;
        self.compute.deadline = None;
        self.compute.idle = false;
    }

    /// Gives the engine to `next`, at the cost of a switch if another context had it.
    fn hand_over(&mut self, next: Key) {
        let cost = match self.compute.holder {
            Some(holder) if holder != next => self.settings.switch,
            _ => 0,
        };
        self.compute.holder = Some(next);
        self.begin_slice();
        if cost == 0 {
            return;
        }
        let until = self.now.saturating_add(cost);
        self.compute.doing = Doing::Switching { until };
        self.usage.switches += 1;
        self.usage.switching += cost;
        if self.settings.trace {
            self.outputs.push_back(Output::Switch {
                to: ContextId(next),
                start: self.now,
                end: until,
            });
        }
    }

    /// Stops the running kernel at the end of its context's slice and sends the context to the back
    /// of the line.
    fn freeze(&mut self) {
        let Doing::Running { op, since, .. } = self.compute.doing else {
            return;
        };
        self.account_piece();
        let (now, trace) = (self.now, self.settings.trace);
        self.compute.doing = Doing::Nothing;
        let Some(state) = self.ops.get_mut(op) else { return };
        state.left = state.left.saturating_sub(now - since);
        state.state = State::Frozen;
        if trace {
            state.segments.push((since, now));
        }
        let context = state.context;
        if let Some(context) = self.contexts.get_mut(context) {
            context.frozen = Some(op);
        }
        self.usage.preemptions += 1;
        // The choice that follows sees a holder with work and a slice that is over, and sends it to
        // the back of the line.
    }

    /// Ends the running operation now.
    pub(crate) fn end_running(&mut self) {
        let Doing::Running { op, since, .. } = self.compute.doing else {
            return;
        };
        self.account_piece();
        self.compute.doing = Doing::Nothing;
        if let Some(state) = self.ops.get_mut(op)
            && !state.segments.is_empty()
        {
            state.segments.push((since, self.now));
        }
        self.end(op);
    }

    /// Books the piece that ran up to now.
    fn account_piece(&mut self) {
        let Doing::Running { op, since, .. } = self.compute.doing else {
            return;
        };
        let ran = self.now - since;
        self.usage.compute += ran;
        if let Some(state) = self.ops.get(op)
            && let Some(context) = self.contexts.get_mut(state.context)
        {
            context.usage.compute += ran;
        }
    }

    fn has_ready(&self, context: Key) -> bool {
        self.contexts
            .get(context)
            .is_some_and(|context| context.frozen.is_some() || !context.compute.is_empty())
    }

    /// Starts the frozen kernel of a context, else its best ready operation.
    fn run_next_of(&mut self, context: Key) -> bool {
        let Some(owner) = self.contexts.get_mut(context) else {
            return false;
        };
        let Some(key) = owner.frozen.take().or_else(|| owner.compute.pop()) else {
            return false;
        };
        let now = self.now;
        let touches = match self.ops.get_mut(key) {
            Some(op) if op.start.is_none() => std::mem::take(&mut op.touches),
            _ => Vec::new(),
        };
        let stall = if touches.is_empty() { 0 } else { self.stall(&touches) };
        let Some(op) = self.ops.get_mut(key) else { return false };
        op.left = op.left.saturating_add(stall);
        let first = op.start.is_none();
        op.start.get_or_insert(now);
        op.state = State::Running;
        self.compute.doing = Doing::Running {
            op: key,
            since: now,
            until: now.saturating_add(op.left),
        };
        let held = matches!(op.work, Work::Kernel { held: true, .. });
        if first && held && !op.released {
            self.announce(key);
        }
        true
    }

    /// Takes a context that is gone off the engine.
    pub(crate) fn leave_compute(&mut self, context: Key) {
        self.compute.line.leave(context);
        if let Doing::Running { op, since, .. } = self.compute.doing
            && self.ops.get(op).is_some_and(|op| op.context == context)
        {
            self.usage.compute += self.now - since;
            self.compute.doing = Doing::Nothing;
        }
        if self.compute.holder == Some(context) {
            // Nothing is left to be saved: whoever comes next pays nothing, and a switch towards
            // the dead ends here.
            self.compute.holder = None;
            self.compute.deadline = None;
            if let Doing::Switching { until } = self.compute.doing {
                self.usage.switching -= until - self.now;
                self.compute.doing = Doing::Nothing;
            }
        }
    }
}
