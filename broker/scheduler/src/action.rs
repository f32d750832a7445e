// SPDX-License-Identifier: MIT OR Apache-2.0
//! Actions for the clients that wait.

use weft_protocol::{Ns, credit::RunAheadWindow};

use crate::queue::ClientSlot;

/// Credit for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CreditGrant {
    pub slot: ClientSlot,
    /// Unused credit after the grant, ns.
    pub total: Ns,
    /// Whether a more important launch voids it.
    pub bound: bool,
    /// Number of such launches that the credit outlives.
    pub outlives: u64,
    /// Run-ahead window, and when to look at it again.
    pub window: Option<(RunAheadWindow, Ns)>,
}

impl CreditGrant {
    /// Credit that a more important launch voids.
    pub(crate) fn bound(slot: ClientSlot, total: Ns) -> CreditGrant {
        CreditGrant {
            slot,
            total,
            bound: true,
            outlives: 0,
            window: None,
        }
    }

    /// Credit that stays.
    pub(crate) fn kept(slot: ClientSlot, total: Ns) -> CreditGrant {
        CreditGrant {
            bound: false,
            ..CreditGrant::bound(slot, total)
        }
    }
}

/// Next action for the clients that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Grant a client credit.
    Grant(CreditGrant),
    /// Revoke this client's unused credit.
    Revoke(ClientSlot),
    /// Ask again at this time if nothing happens before.
    Nothing(Option<Ns>),
}
