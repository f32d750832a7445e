//! The memory thread: keeps the planner, tells it what clients have and who runs, and has its
//! orders carried out by the clients' helpers.
//!
//! A thread of its own, because a plan over thousands of granules takes longer than jobs may wait
//! at the gate. What holds:
//!
//! * Only clients on managed memory are planned for. All others, and all of this where it fails,
//!   are as without it: memory moves on demand.
//! * An order becomes a page operation in its client's lane. A client whose helper does not answer
//!   within [`thread::PATIENCE`] gets none for [`thread::PENANCE`], and what it was to do counts as
//!   refused: it holds up nobody else.
//! * What a client says of its memory is an allegation: ranges are checked for sense and bounded in
//!   number and size.
//!
//! What a job touches, and in which order, is what its client says of its last period
//! ([`forecast`]). Where there is no period, it is taken to be the ranges that its launches named
//! in the last [`known::ROUNDS`] rounds, whole and all at once.
//!
//! | file | holds |
//! | --- | --- |
//! | `thread` | the thread: takes what it is told, keeps the planner, gives page operations |
//! | `known` | what is known of one client |
//! | `limits` | how much of what clients say is kept |
//! | `forecast` | what a client says of its period |
//! | `granules` | from addresses to granules, from orders to page operations |
//! | `residency` | which granules lie on the device, and what came there by faults: an estimate |
//! | `faults` | what it rests on: where clients are, and how page operations end |
//! | `room` | how much room there is to plan with |
//! | `carried` | what the link carries, by what moves took |
//! | `turns` | whether jobs find room together, and how long their turns are where they do not |
#![forbid(unsafe_code)]

mod carried;
mod faults;
mod forecast;
mod granules;
mod known;
mod limits;
mod residency;
mod room;
mod thread;
mod turns;

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use self::thread::Thread;
use super::mailbox::SchedulerHandle;
use super::options::Options;
use super::registry::Entry;
use super::trace::Trace;
use weft_protocol::Ns;
use weft_protocol::control::GranuleUse;

/// What the thread is told.
#[derive(Debug)]
pub enum MemoryMessage {
    /// The way to the scheduler, which hears whose memory finds no room.
    Scheduler(SchedulerHandle),
    /// A client attached.
    Joined(Arc<Entry>),
    /// A client ended.
    Left(u64),
    /// A client uses a device of so many bytes.
    Device(u64, String, u64),
    /// A client's range came to be managed.
    Backed(u64, u64, u64),
    /// A part of what a client touches in its periods.
    Forecast {
        client: u64,
        number: u32,
        period: Ns,
        uses: Vec<GranuleUse>,
        ends: bool,
    },
    /// A round of a client has ended, in which it named these ranges, or all.
    Touched(u64, Option<Vec<u64>>),
    /// It is no more.
    Unbacked(u64, u64),
    /// The device is this client's from now on.
    Runs(u64),
    /// A client is the foreground job from now on, or is it no more.
    Holds(u64, bool),
    /// The broker ends.
    Stop,
}

/// The way to the thread.
#[derive(Debug, Clone)]
pub struct Memory {
    tells: Sender<MemoryMessage>,
}

impl Memory {
    /// One that plans nothing.
    pub fn deaf() -> Memory {
        Memory { tells: channel().0 }
    }

    /// Tells it something. Never waits.
    pub fn tell(&self, tell: MemoryMessage) {
        // Should it have died, memory moves on demand and nothing else is lost.
        let _ = self.tells.send(tell);
    }
}

/// What the thread is set to.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// How long the core lets one of several run whose memory fits.
    pub turn: Ns,
    /// How long nobody may be away while others whose memory does not fit beside his have their
    /// turns.
    pub max_swapped_out: Ns,
    /// How many times slower than a real one's the device's link is.
    pub dilation: f64,
}

impl Settings {
    /// As the broker was told.
    pub fn of(options: &Options) -> Settings {
        // A launch that waits for longer goes through whoever's turn it is.
        let most = u64::try_from(options.longest_wait.as_nanos() / 4 * 3).unwrap_or(u64::MAX);
        Settings {
            turn: options.core.turn,
            max_swapped_out: options.core.max_swapped_out.min(most),
            dilation: options.dilation.max(1.0),
        }
    }
}

/// Starts the thread.
pub fn start(settings: Settings, trace: Trace) -> std::io::Result<(Memory, JoinHandle<()>)> {
    let (tells, incoming) = channel();
    let thread = std::thread::Builder::new()
        .name("weft-memory".into())
        .spawn(move || Thread::new(settings, trace).run(&incoming))?;
    Ok((Memory { tells }, thread))
}

#[cfg(test)]
mod tests;
