// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies between host and device while a foreground job's kernels run.
//!
//! A copy engine takes no time from kernels, so a background copy needs no gap. It goes if it is
//! predicted to end before the foreground job's kernels, because that job's own copies come with
//! its next request. It is charged like a kernel: at most the delay bound of copies is out. Work
//! behind it waits at the gate.

use weft_protocol::{Ns, PRIORITIES, lane::HOST_COPY};

use crate::{
    action::{Action, CreditGrant},
    queue::ClientSlot,
    state::SchedulerState,
};

/// Action while the foreground job is busy until `until`.
pub(super) fn beside_foreground(state: &SchedulerState, until: Ns, now: Ns) -> Action {
    match (0..PRIORITIES).find_map(|class| admitted(state, class, until, now)) {
        // The foreground job's next kernel is not a reason to stop a copy.
        Some((slot, cost)) => Action::Grant(CreditGrant::kept(slot, cost)),
        None => Action::Nothing(Some(until)),
    }
}

/// Whether this client waits with such a copy.
pub(super) fn waits_with_one(state: &SchedulerState, slot: ClientSlot) -> bool {
    let wait = state.get(slot).and_then(|client| client.wait);
    wait.is_some_and(|wait| wait.kernel == HOST_COPY)
}

/// The copy and its cost, if the client whose turn it is may launch one.
fn admitted(state: &SchedulerState, class: usize, until: Ns, now: Ns) -> Option<(ClientSlot, Ns)> {
    let slot = state.queue.first_in_turn(class)?;
    let client = state.get(slot)?;
    let cost = client.queued?.cost;
    let copies = waits_with_one(state, slot);
    // Else the kernels behind the copy would go too.
    let nothing_more = client.ledger.usable() == 0 && client.revoking.is_none();
    let ends_before = until.saturating_sub(now) >= cost;
    (copies && nothing_more && ends_before && state.admits(slot, cost)).then_some((slot, cost))
}
