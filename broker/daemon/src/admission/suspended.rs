//! Admitted jobs that are suspended before they took memory, and must not keep others out.
//!
//! A stopped waiting job (SIGSTOP, Ctrl-Z) does not notice its admission, and its memory would be
//! kept for it. After [`PATIENCE`] it waits again, at its old place, until it goes on. A job with
//! memory keeps it, as it cannot be taken back.
//!
//! What holds: only while others wait, with one read of `/proc` per process and [`LOOK`]. A client
//! that goes on reads its admission slot before it takes memory, and waits.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;

use super::controller::{Controller, Gang};
use crate::clock;
use weft_admission::{Event, Job};
use weft_protocol::Ns;

/// How long an admitted job may be suspended: a short stop costs it nothing.
const PATIENCE: Ns = 3_000_000_000;

/// Interval of checks.
const LOOK: Ns = 250_000_000;

/// Suspension of a job.
#[derive(Debug, Default)]
pub struct Still {
    since: Option<Ns>,
    /// It was put back into the queue.
    away: bool,
}

impl Gang {
    /// Whether all its processes are suspended, without memory or context.
    fn is_still(&self) -> bool {
        let still = self.members.values().all(|member| {
            let lane = &member.entry.lane;
            lane.counters.memory.load(Ordering::Acquire) == 0
                && lane.moves.still_since(0).is_none()
                && member.process.suspended() == Some(true)
        });
        still && !self.members.is_empty() && self.absent.is_empty() && !self.managed
    }
}

impl Controller {
    /// Puts suspended jobs back into the queue, and lets resumed ones on.
    pub fn look_for_the_suspended(&mut self) {
        let now = clock::now();
        if self.machine.count().0 == 0 || now.saturating_sub(self.looked_for_suspended) < LOOK {
            return;
        }
        self.looked_for_suspended = now;
        let (mut away, mut back): (Vec<Job>, Vec<Job>) = (Vec::new(), Vec::new());
        for (job, gang) in &mut self.gangs {
            let runs = self.machine.share(*job).is_some();
            if !runs && !gang.still.away {
                gang.still.since = None;
                continue;
            }
            if !gang.is_still() {
                gang.still.since = None;
                if std::mem::take(&mut gang.still.away) && !runs {
                    back.push(*job);
                }
                continue;
            }
            let since = *gang.still.since.get_or_insert(now);
            if runs && now.saturating_sub(since) >= PATIENCE {
                gang.still.away = true;
                away.push(*job);
            }
        }
        for job in away {
            log::info!("{job:?} was let in and is suspended: it waits again");
            if let Some(gang) = self.gangs.get(&job) {
                for member in gang.members.values() {
                    // Quota until it sees that it waits, should it go on now.
                    member.entry.lane.admission_slot.quota.store(1, Ordering::Release);
                }
            }
            self.tell(Event::Away(job));
            self.waits(job);
            self.carry_out();
        }
        for job in back {
            self.tell(Event::Back(job));
            self.carry_out();
        }
    }
}
