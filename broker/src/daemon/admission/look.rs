//! What contexts and strangers take of a device: what is not free there and nobody is known to hold.
//!
//! A client looks at what is free when it has its first memory, and the broker knows what the others hold. The two make one picture only if nobody took or gave back anything between
//! the client's look and the broker's; else the memory that somebody was just given would be taken for a context's or a stranger's, and whoever wants it later is told there is none.
//! So a look counts only where all others were still ([`crate::protocol::seat::Moves`]), where each of them has its context, and where the memory of those who left is the
//! driver's again. A client whose look does not count looks once more with its next memory.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use super::book::{Book, Member};
use super::process::Process;
use crate::core::admission::{DeviceId, Event, Job};
use crate::daemon::clock;
use crate::protocol::Ns;

/// No context is taken for larger than this part of a device: then others than weft's jobs hold memory.
const LARGEST_CONTEXT: u64 = 8;

/// A client that was let in has its context after this, if it is to have one without memory; and what one that left held is the driver's again (clients
/// allow as much: [`SETTLES`] in `interposer/src/session/seat.rs`).
const SETTLES: Ns = 2_000_000_000;

/// The driver has the memory of a process again that ended so long ago: it is given back while the process ends, and told of a moment later at most.
const GRACE: Ns = 200_000_000;

/// What a client saw.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// Bytes that were free.
    pub free: u64,
    /// Bytes that it held itself.
    pub held: u64,
    /// When it began to look.
    pub at: Ns,
}

/// Somebody who left a device.
#[derive(Debug)]
pub struct Departed {
    device: DeviceId,
    process: Process,
    /// When its memory is the driver's again at the latest.
    settled: Ns,
}

/// When a client was let in; 0: it was not yet.
#[derive(Debug, Default)]
pub struct Seated(AtomicU64);

impl Seated {
    /// Now, if not before.
    pub fn now(&self) {
        let _ = self
            .0
            .compare_exchange(0, clock::now(), Ordering::Relaxed, Ordering::Relaxed);
    }

    fn long_before(&self, at: Ns) -> bool {
        let since = self.0.load(Ordering::Relaxed);
        since != 0 && since.saturating_add(SETTLES) <= at
    }
}

impl Book {
    /// A client with memory on this device is gone.
    pub fn departs(&mut self, device: DeviceId, process: Process) {
        let settled = clock::now().saturating_add(SETTLES);
        self.departed.push(Departed {
            device,
            process,
            settled,
        });
    }

    /// Looks which of those who left have ended.
    pub fn look_after_the_departed(&mut self) {
        if self.departed.is_empty() {
            return;
        }
        let now = clock::now();
        for one in &mut self.departed {
            if now.saturating_add(GRACE) < one.settled && one.process.runs() == Some(false) {
                one.settled = now.saturating_add(GRACE);
            }
        }
        // A look that is under way is from a moment ago at most.
        self.departed.retain(|one| now < one.settled.saturating_add(SETTLES));
    }

    /// A client has looked at the device that it runs on. What contexts take is what nobody is known to hold; the first figure that makes sense counts, and what is more than that
    /// later is others'.
    pub fn context(&mut self, client: u64, look: Look) {
        let Some(job) = self.clients.get(&client).copied() else {
            return;
        };
        let Some((device, _)) = self.machine.share(job) else {
            return;
        };
        let Some((held, contexts)) = self.held(device, client, look) else {
            let member = self.gangs.get(&job).and_then(|gang| gang.members.get(&client));
            if let Some(member) = member {
                member.entry.lane.seat.looks.fetch_add(1, Ordering::Release);
            }
            return;
        };
        let Some(mut about) = self.about(device).copied() else {
            return;
        };
        let unknown = about.memory.saturating_sub(look.free).saturating_sub(held);
        let each = unknown / contexts.max(1);
        let first = about.context == 0 && each > 0 && each <= about.memory / LARGEST_CONTEXT;
        if first {
            about.context = each;
            about.foreign = 0;
        } else {
            about.foreign = unknown.saturating_sub(about.context.saturating_mul(contexts));
        }
        self.tell(Event::Device(about));
        if first {
            // They were let in before a context's size was known. A fact, whether it fits or not.
            let there: Vec<(Job, u64)> = self
                .gangs
                .iter()
                .filter(|(job, _)| self.machine.share(**job).is_some_and(|(at, _)| at == device))
                .map(|(job, gang)| (*job, about.context.saturating_mul(gang.members.len() as u64)))
                .collect();
            for (job, contexts) in there {
                self.tell(Event::Has(job, contexts));
            }
        }
        self.carry_out();
    }

    /// What all clients on a device held when one of them looked, and how many they were; `None` where that is not known.
    fn held(&self, device: DeviceId, client: u64, look: Look) -> Option<(u64, u64)> {
        let left = |one: &Departed| one.device == device && one.settled > look.at;
        if self.departed.iter().any(left) {
            return None;
        }
        let (mut held, mut contexts) = (0u64, 0u64);
        for (job, gang) in &self.gangs {
            if self.machine.share(*job).is_none_or(|(at, _)| at != device) {
                continue;
            }
            // Who has not come back holds nobody knows how much.
            if !gang.absent.is_empty() {
                return None;
            }
            for (other, member) in &gang.members {
                held = held.saturating_add(match *other == client {
                    true => look.held,
                    false => Book::held_by(member, look.at)?,
                });
                contexts += 1;
            }
        }
        Some((held, contexts))
    }

    /// What a client held then and holds still; `None` where that may not be so, or it may not have had its context.
    fn held_by(member: &Member, at: Ns) -> Option<u64> {
        let lane = &member.entry.lane;
        // Before the last word on whether it was still.
        let held = lane.counters.memory.load(Ordering::Acquire);
        let still = lane
            .moves
            .still_since(at)
            .unwrap_or_else(|| member.seated.long_before(at));
        still.then_some(held)
    }
}
