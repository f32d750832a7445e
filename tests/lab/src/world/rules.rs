//! Rules of the lab's own ([`crate::policy`]) in the place of weft's gate: who is asked when, and
//! who asks again.
#![forbid(unsafe_code)]

use super::{LabMachine, MachineEvent};

impl LabMachine {
    pub(super) fn own_permits(&mut self, job: usize) -> bool {
        let now = self.now;
        let Some(own) = &mut self.own else { return true };
        let allowed = own.may_launch(now, job, &self.views);
        if self.views[job].waits == allowed {
            self.views[job].waits = !allowed;
            own.changed(now, job, &self.views);
        }
        self.ask_later();
        allowed
    }

    /// A job's launch queue is in use, or empty: for a rule of the lab's own.
    pub(super) fn queue_changed(&mut self, job: usize) {
        let now = self.now;
        if let Some(own) = &mut self.own {
            own.changed(now, job, &self.views);
            self.ask_later();
        }
    }

    /// Something changed for a rule of the lab's own: those who wait ask again.
    pub(super) fn ask_own(&mut self, ended: Option<usize>) {
        let now = self.now;
        let Some(own) = &mut self.own else { return };
        if let Some(job) = ended {
            self.views[job].outstanding = self.processes[job].outstanding;
            self.views[job].active_at = now;
            own.changed(now, job, &self.views);
        }
        for job in 0..self.processes.len() {
            if self.processes[job].held_since.is_some() {
                self.launch_queued(job);
            }
        }
        self.ask_later();
    }

    pub(super) fn ask_later(&mut self) {
        let Some(at) = self.own.as_ref().and_then(|own| own.next_wake(self.now)) else {
            return;
        };
        if self.asked.is_none_or(|asked| at < asked) {
            self.asked = Some(at);
            self.at(at, MachineEvent::Ask);
        }
    }
}
