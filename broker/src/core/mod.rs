//! The scheduler as a pure state machine: events and the time go in, decisions come out. No clock, no thread, no socket.
//!
//! The same core runs in the daemon (real time) and in the lab (virtual time), so a failing schedule is a seed. What holds: a holder is
//! never told to wait; a filler's outstanding work never exceeds the delay bound plus the one kernel it was given for; a client
//! that is gone holds nothing.
#![forbid(unsafe_code)]

use std::sync::Arc;

use weft_profiles::Profile;

pub use crate::protocol::{Ns, lane::Mode};

/// A client's number at this broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Client(pub u64);

/// What happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// A client attached. It starts in [`Mode::Alone`] until the core decides.
    Attached {
        /// Who.
        client: Client,
        /// 0 (most important) to 9.
        priority: u8,
        /// What is known about its job.
        profile: Option<Arc<Profile>>,
    },
    /// A client is gone (goodbye or death).
    Gone(Client),
    /// `weft set` changed a priority.
    Priority(Client, u8),
    /// A client launched a kernel, graph or transfer. `cost` is the predicted time on the device, from the client's own table.
    Launched {
        /// Who.
        client: Client,
        /// Hash of the kernel.
        kernel: u64,
        /// Predicted time, ns.
        cost: Ns,
        /// When the launch was made.
        at: Ns,
    },
    /// Nothing of the client is left on the device, seen by a synchronising call at this time.
    Idle(Client, Ns),
    /// A filler waits at the gate with this kernel.
    Waits {
        /// Who.
        client: Client,
        /// Hash of the kernel.
        kernel: u64,
        /// Predicted time, ns.
        cost: Ns,
        /// Since when.
        since: Ns,
    },
    /// A filler's cumulative reports: work issued under credit and work whose end was seen, predicted ns.
    Progress {
        /// Who.
        client: Client,
        /// In all.
        issued: Ns,
        /// In all.
        settled: Ns,
    },
    /// Time passed.
    Tick,
}

/// What to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Tell a client its mode.
    Mode(Client, Mode),
    /// Give a filler credit. Bound to the signs above it if `bound`.
    Grant {
        /// To whom.
        client: Client,
        /// Predicted GPU time, ns.
        credit: Ns,
        /// Void as soon as a more important holder launches.
        bound: bool,
    },
    /// Take back what is left of a filler's credit.
    Revoke(Client),
}
