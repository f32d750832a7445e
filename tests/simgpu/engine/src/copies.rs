//! The two copy engines. Each runs one copy at a time, to its end; contexts take turns copy by
//! copy, also in time-slice mode: copy engines are scheduled apart from the compute engine.

use crate::Ns;
use crate::engine::{Engine, State};
use crate::ready::Line;
use crate::slab::Key;

#[derive(Debug, Clone, Default)]
pub(crate) struct CopyEngine {
    /// The copy that runs: which, since, until.
    running: Option<(Key, Ns, Ns)>,
    /// Contexts with ready copies.
    pub(crate) line: Line,
}

impl CopyEngine {
    pub(crate) fn next_event(&self) -> Option<Ns> {
        self.running.map(|(_, _, until)| until)
    }

    pub(crate) fn running_since(&self, key: Key) -> Option<Ns> {
        self.running.filter(|(op, _, _)| *op == key).map(|(_, since, _)| since)
    }
}

impl Engine {
    /// Ends the copies that end now.
    pub(crate) fn end_copies(&mut self) {
        for index in 0..self.copies.len() {
            let Some((op, since, until)) = self.copies[index].running else {
                continue;
            };
            if until <= self.now {
                self.copies[index].running = None;
                self.account_copy(index, op, self.now - since);
                self.end(op);
            }
        }
    }

    /// Starts the next copy on each idle copy engine.
    pub(crate) fn choose_copies(&mut self) {
        for index in 0..self.copies.len() {
            while self.copies[index].running.is_none() {
                let Some(context) = self.copies[index].line.next() else {
                    break;
                };
                let Some(owner) = self.contexts.get_mut(context) else {
                    continue;
                };
                let Some(key) = owner.copies[index].pop() else { continue };
                if !owner.copies[index].is_empty() {
                    self.copies[index].line.join(context);
                }
                let touches = self.ops.get_mut(key).map(|op| std::mem::take(&mut op.touches));
                let stall = match touches {
                    Some(touches) if !touches.is_empty() => self.stall(&touches),
                    _ => 0,
                };
                let Some(op) = self.ops.get_mut(key) else { continue };
                op.left = op.left.saturating_add(stall);
                op.start = Some(self.now);
                op.state = State::Running;
                self.copies[index].running = Some((key, self.now, self.now.saturating_add(op.left)));
            }
        }
    }

    /// Takes a context that is gone off the copy engines. Called before its operations are
    /// forgotten.
    pub(crate) fn leave_copies(&mut self, context: Key) {
        for index in 0..self.copies.len() {
            self.copies[index].line.leave(context);
            if let Some((op, since, _)) = self.copies[index].running
                && self.ops.get(op).is_some_and(|op| op.context == context)
            {
                self.copies[index].running = None;
                self.usage.copies[index] += self.now - since;
            }
        }
    }

    fn account_copy(&mut self, index: usize, op: Key, ran: Ns) {
        self.usage.copies[index] += ran;
        if let Some(op) = self.ops.get(op)
            && let Some(context) = self.contexts.get_mut(op.context)
        {
            context.usage.copies[index] += ran;
        }
    }
}
