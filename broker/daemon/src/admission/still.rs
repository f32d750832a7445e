//! Jobs that were let in and are suspended before they took anything: they hold up nobody.
//!
//! A waiter that somebody stopped (SIGSTOP, Ctrl-Z in its terminal) does not notice that it may
//! begin, and its memory would be kept for it for as long as it stays stopped. So who is seen
//! suspended for [`PATIENCE`] and has taken nothing waits again, at the place that it had, and is
//! let in when it goes on. Who has memory keeps it: it cannot be had back.
//!
//! What holds: only while others wait; one look at `/proc` a process and [`LOOK`]. The client, when
//! it goes on, looks at its admission slot before it takes memory, and waits.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;

use super::book::{Book, Gang};
use crate::clock;
use weft_admission::{Event, Job};
use weft_protocol::Ns;

/// So long a job may be suspended with what it was let in for: a person who stops a job for a
/// moment loses nothing.
const PATIENCE: Ns = 3_000_000_000;

/// Between two looks.
const LOOK: Ns = 250_000_000;

/// How a job is seen.
#[derive(Debug, Default)]
pub struct Still {
    since: Option<Ns>,
    /// It was put back into the queue.
    away: bool,
}

impl Gang {
    /// Whether all of its processes are suspended, none of them with memory.
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

impl Book {
    /// Puts back who was let in and does not stir, and lets on who stirs again.
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
                    // Should it go on before it has seen that it waits: nothing more than this.
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
