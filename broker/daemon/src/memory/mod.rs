// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory thread: runs the planner, reports clients to it, and passes its orders to clients'
//! migration threads.
//!
//! It is a thread because a plan over thousands of granules takes longer than a launch may wait at
//! the gate. Invariants:
//!
//! * Only clients on managed memory are planned for. For others, or if this thread fails, memory
//!   moves on demand.
//! * An order becomes a page operation in its client's lane. If a client does not answer for
//!   [`thread::PATIENCE`], it gets none for [`thread::PENANCE`], and its orders count as refused.
//!   It delays no other client.
//! * Clients' reports are untrusted: ranges are checked and bounded in number and size.
//!
//! The memory that a job touches is given by its client's forecast of a period ([`forecast`]).
//! Without a forecast, it is all ranges that launches named in the last [`client::RECENT_ROUNDS`]
//! rounds, all touched at once.
//!
//! | file | holds |
//! | --- | --- |
//! | `thread` | messages, the planner, page operations |
//! | `client` | the state of one client |
//! | `forecast` | a client's forecast of its period |
//! | `granules` | addresses to granules, orders to page operations |
//! | `residency` | an estimate: granules on the device, and faults |
//! | `room` | the memory to plan with |
//! | `link_rates` | the link's rates, from measured moves |
//! | `turns` | whether jobs fit together, and the lengths of their turns if not |
#![forbid(unsafe_code)]

mod client;
mod forecast;
mod granules;
mod link_rates;
mod residency;
mod room;
mod thread;
mod turns;

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use self::thread::MemoryThread;
use crate::base::options::Options;
use crate::base::trace::Trace;
use crate::clients::registry::Entry;
use crate::scheduler_mailbox::SchedulerHandle;
use weft_protocol::Ns;
use weft_protocol::control::GranuleUse;
use weft_protocol::lane::MAX_LONGEST_WAIT_NS;

/// A message to the memory thread.
#[derive(Debug)]
pub enum MemoryMessage {
    /// The handle of the scheduler, which gets the clients that do not fit.
    Scheduler(SchedulerHandle),
    /// A client attached.
    Joined(Arc<Entry>),
    /// A client ended.
    Left(u64),
    /// A client uses the device of this UUID and this many bytes.
    Device(u64, String, u64),
    /// A client's range became managed: client, start address, bytes.
    Backed(u64, u64, u64),
    /// A part of the forecast of a client's period.
    Forecast {
        client: u64,
        number: u32,
        period: Ns,
        uses: Vec<GranuleUse>,
        ends: bool,
    },
    /// A client's round ended: starts of the ranges that it named; `None`: all.
    Touched(u64, Option<Vec<u64>>),
    /// A client's range is no longer managed: client, start address.
    Unbacked(u64, u64),
    /// This client has the device from now on.
    Runs(u64),
    /// Whether a client is the foreground job from now on.
    Holds(u64, bool),
    /// The broker ends.
    Stop,
}

/// Handle on the memory thread.
#[derive(Debug, Clone)]
pub struct MemoryHandle {
    tells: Sender<MemoryMessage>,
}

impl MemoryHandle {
    /// A handle without a thread: nothing is planned.
    pub fn deaf() -> MemoryHandle {
        MemoryHandle { tells: channel().0 }
    }

    /// Sends a message. Never waits.
    pub fn tell(&self, tell: MemoryMessage) {
        // If the thread has died, memory moves on demand and nothing else is lost.
        let _ = self.tells.send(tell);
    }
}

/// Settings of the memory thread.
#[derive(Debug, Clone, Copy)]
pub struct MemorySettings {
    /// A turn's length among several jobs whose memory fits, ns.
    pub turn: Ns,
    /// Longest time for which a job is swapped out for other jobs' turns, ns.
    pub max_swapped_out: Ns,
    /// The same bound if such turns are too short for the memory that they move, ns; at least
    /// `max_swapped_out`.
    pub swapped_out_limit: Ns,
    /// Bound on a launch's wait at the gate, ns. It is raised for a job that is swapped out longer.
    pub longest_wait: Ns,
    /// [`Options::link_mb_per_s`].
    pub link_mb_per_s: u32,
}

impl MemorySettings {
    /// The settings from the broker's options.
    pub fn of(options: &Options) -> MemorySettings {
        let longest_wait = u64::try_from(options.longest_wait.as_nanos()).unwrap_or(u64::MAX);
        // A launch passes the gate after the longest wait, whichever job has its turn. Unless the
        // owner set it, that wait grows with the time swapped out.
        let longest = match options.longest_wait_said {
            true => longest_wait.min(MAX_LONGEST_WAIT_NS),
            false => MAX_LONGEST_WAIT_NS,
        };
        let most = longest / WAIT_RATIO.1 * WAIT_RATIO.0;
        let max_swapped_out = options.core.max_swapped_out.min(most);
        MemorySettings {
            turn: options.core.turn,
            max_swapped_out,
            swapped_out_limit: options.core.swapped_out_limit.min(most).max(max_swapped_out),
            longest_wait,
            link_mb_per_s: options.link_mb_per_s,
        }
    }
}

/// Part of a launch's longest wait for which its client is swapped out at most. The rest is a
/// margin.
const WAIT_RATIO: (Ns, Ns) = (3, 4);

/// Starts the memory thread.
pub fn start(settings: MemorySettings, trace: Trace) -> std::io::Result<(MemoryHandle, JoinHandle<()>)> {
    let (tells, incoming) = channel();
    let thread = std::thread::Builder::new()
        .name("weft-memory".into())
        .spawn(move || MemoryThread::new(settings, trace).run(&incoming))?;
    Ok((MemoryHandle { tells }, thread))
}

#[cfg(test)]
mod tests;
