//! Copies between host and device while the foreground job's kernels run: they use engines of their
//! own.
//!
//! A copy engine takes no time from kernels, so a background job's copy need not wait for a gap.
//! The paper behind `fikit` holds kernels back and nothing else. Here a copy goes while the
//! foreground job is busy if it is predicted to end before the foreground job does: the foreground
//! job's own next copies come with its next request. It is charged like a kernel all the same, so
//! no more than the delay bound of copies is out, and everything behind it in its process still
//! waits at the gate.

use super::{
    super::{queue::Slot, state::State},
    Verdict,
};
use weft_protocol::{Ns, PRIORITIES, lane::HOST_COPY};

/// What to do while the foreground job is busy until `until`.
pub(super) fn beside_foreground(state: &State, until: Ns, now: Ns) -> Verdict {
    match (0..PRIORITIES).find_map(|class| admitted(state, class, until, now)) {
        // Not bound to the foreground job's launch epoch: its next kernel is no reason to stop a
        // copy.
        Some((slot, cost)) => Verdict::Grant {
            slot,
            total: cost,
            bound: false,
        },
        None => Verdict::Nothing(Some(until)),
    }
}

/// Whether what this client waits with is such a copy.
pub(super) fn waits_with_one(state: &State, slot: Slot) -> bool {
    let wait = state.get(slot).and_then(|client| client.wait);
    wait.is_some_and(|wait| wait.kernel == HOST_COPY)
}

/// The copy of the one in this class whose turn it is, if that is what he waits with and it may go.
fn admitted(state: &State, class: usize, until: Ns, now: Ns) -> Option<(Slot, Ns)> {
    let slot = state.queue.first_in_turn(class)?;
    let client = state.get(slot)?;
    let cost = client.queued?.cost;
    let copies = waits_with_one(state, slot);
    // Credit that is left, or on its way back, would let the kernels behind the copy go as well.
    let nothing_more = client.ledger.usable() == 0 && client.revoking.is_none();
    let ends_before = until.saturating_sub(now) >= cost;
    (copies && nothing_more && ends_before && state.admits(slot, cost)).then_some((slot, cost))
}
