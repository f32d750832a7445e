//! What the core knows of one client.

use super::{Client, ledger::Ledger, queue::Entry, timeline::Timeline, times::Times};
use crate::protocol::{Ns, lane::Mode};

#[derive(Debug)]
pub(super) struct ClientState {
    pub id: Client,
    pub priority: u8,
    /// The queue it waits in: its priority, where the policy goes by that.
    pub class: usize,
    pub mode: Mode,
    pub times: Times,
    pub timeline: Timeline,
    pub ledger: Ledger,
    /// The kernel at its gate.
    pub wait: Option<Wait>,
    /// As it stands in the queue, if it does.
    pub queued: Option<Entry>,
    /// Whether its credit was given under the condition that no holder launches.
    pub bound: bool,
    /// A kernel longer than half the delay bound that it was granted credit for.
    pub long: Option<Long>,
    /// A revocation was ordered at this time and not answered yet.
    pub revoking: Option<Ns>,
    /// It was granted credit after that order.
    pub granted_since: bool,
    /// Its credit word was empty at this time, and nothing was granted since.
    pub emptied_at: Option<Ns>,
    pub attached_at: Ns,
    pub granted_at: Ns,
    /// Last sign that its credit is used or its work ends.
    pub progress_at: Ns,
    /// Last sign of any work of its own.
    pub active_at: Ns,
    /// Credit used, on the scale by which turns are shared out.
    pub served: Ns,
    pub launches: u64,
    pub work: Ns,
    pub starved: u64,
    /// Its part of the sum of exposures.
    pub counted: Ns,
    /// Its place in the list of clients with exposure, if it is there.
    pub exposed_at: Option<usize>,
}

/// A kernel at the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    pub kernel: u64,
    pub cost: Ns,
    pub since: Ns,
    /// What the client had issued when the wait was told.
    pub issued: Ns,
}

/// A kernel that may be out alone for longer than the others together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Long {
    pub cost: Ns,
    /// What its client has issued, in all, once it is issued; and settled, once it has ended.
    pub total: Ns,
}

impl ClientState {
    pub(super) fn new(id: Client, priority: u8, class: usize, times: Times, doubt: f64, now: Ns) -> ClientState {
        ClientState {
            id,
            priority,
            class,
            mode: Mode::Free,
            times,
            timeline: Timeline::new(doubt),
            ledger: Ledger::default(),
            wait: None,
            queued: None,
            bound: false,
            long: None,
            revoking: None,
            granted_since: false,
            emptied_at: None,
            attached_at: now,
            granted_at: now,
            progress_at: now,
            active_at: now,
            served: 0,
            launches: 0,
            work: 0,
            starved: 0,
            counted: 0,
            exposed_at: None,
        }
    }

    /// The predicted time of the long kernel that it has on the device, or 0.
    pub(super) fn long_out(&self) -> Ns {
        match self.long {
            Some(long) if self.ledger.issued() >= long.total && self.ledger.settled() < long.total => long.cost,
            _ => 0,
        }
    }

    /// Whether there is credit in its word that could be taken back. What an empty word leaves in the books is on its way.
    pub(super) fn revocable(&self) -> bool {
        self.ledger.usable() > 0 && self.revoking.is_none() && self.emptied_at.is_none()
    }
}
