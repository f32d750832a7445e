//! The core's state of one client.

use super::{
    Client, Config, foresight::Foresight, ledger::Ledger, pace::Pace, queue::Entry, slack::Slack, timeline::Timeline,
    times::Times,
};
use weft_protocol::{Ns, credit::RunAheadWindow, lane::Mode};

#[derive(Debug)]
pub(super) struct ClientState {
    pub id: Client,
    pub priority: u8,
    /// Class in the queue: the priority, where the policy goes by it.
    pub class: usize,
    pub mode: Mode,
    pub times: Times,
    pub timeline: Timeline,
    /// Gap model of a foreground job, under `weft`.
    pub foresight: Foresight,
    /// Kernel-time model of a background job, under `weft`.
    pub pace: Pace,
    pub slack: Slack,
    pub ledger: Ledger,
    /// The kernel at its gate.
    pub wait: Option<Wait>,
    /// The wait's entry in the queue, if it is there.
    pub queued: Option<Entry>,
    /// Whether a foreground job's launch voids the credit.
    pub bound: bool,
    /// Run-ahead window.
    pub window: Option<RunAheadWindow>,
    /// The last granted kernel longer than half the delay bound.
    pub long: Option<Long>,
    /// When a revocation was ordered that is not answered yet.
    pub revoking: Option<Ns>,
    /// Length of its turns in ns, where its memory does not fit beside others'.
    pub crowded: Option<Ns>,
    /// Out of turn, so not in the queue.
    pub barred: bool,
    /// When its last long turn ended.
    pub turned_at: Ns,
    /// Credit was granted after that order.
    pub granted_since: bool,
    /// Credit was granted, and no use of it reported since.
    pub unreported: bool,
    /// Credit in the books but not in its word while it waited: taken by its threads and not
    /// reported yet.
    pub untold: Ns,
    /// Since when its credit word is empty without a new grant.
    pub emptied_at: Option<Ns>,
    pub attached_at: Ns,
    pub granted_at: Ns,
    /// Last sign that its credit is used or its work ends.
    pub progress_at: Ns,
    /// When its work was last seen to end, or came to a device without any of it.
    pub ended_at: Ns,
    /// Last sign of work of its own.
    pub active_at: Ns,
    /// Starvation deadline: gaps that it had keep it from starving until then.
    pub fed_until: Ns,
    /// Credit used, by which turns are shared out, ns.
    pub served: Ns,
    pub launches: u64,
    pub work: Ns,
    pub starved: u64,
    /// Its part of the sum of exposures, in ns.
    pub counted: Ns,
    /// Index in the list of exposed clients.
    pub exposed_at: Option<usize>,
}

/// A kernel at the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    pub kernel: u64,
    pub cost: Ns,
    pub since: Ns,
    /// Work that the client had issued when the wait was told, ns.
    pub issued: Ns,
}

/// A kernel that may be out alone for longer than the others together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Long {
    pub cost: Ns,
    /// Total issued by the ledger once it is issued; total settled once it has ended, ns.
    pub total: Ns,
}

/// Highest chance of keeping a foreground job waiting that is unknown or about to launch.
const UNKNOWN: f64 = 0.5;

impl ClientState {
    pub(super) fn new(id: Client, priority: u8, class: usize, times: Times, doubt: f64, now: Ns) -> ClientState {
        ClientState {
            id,
            priority,
            class,
            mode: Mode::Free,
            times,
            timeline: Timeline::new(doubt),
            foresight: Foresight::default(),
            pace: Pace::default(),
            slack: Slack::default(),
            ledger: Ledger::default(),
            wait: None,
            queued: None,
            bound: false,
            window: None,
            long: None,
            revoking: None,
            crowded: None,
            barred: false,
            turned_at: 0,
            granted_since: false,
            unreported: false,
            untold: 0,
            emptied_at: None,
            attached_at: now,
            granted_at: now,
            progress_at: now,
            ended_at: now,
            active_at: now,
            fed_until: 0,
            served: 0,
            launches: 0,
            work: 0,
            starved: 0,
            counted: 0,
            exposed_at: None,
        }
    }

    /// [`State::opening_for`](super::state::State::opening_for) of this foreground job.
    pub(super) fn opening(&self, now: Ns, chance: f64, kernel: Ns, lead: Ns, config: &Config) -> Result<Ns, Ns> {
        let chance = self.slack.risk(chance, kernel);
        let slack = match config.switch_cost {
            0 if self.foresight.stirred_at().is_none() => self.slack.allows().min(config.delay_bound),
            _ => 0,
        };
        if slack == 0 {
            return self.room(now, chance, lead, config);
        }
        let Some(end) = self.timeline.end_if_launched() else {
            return self.room(now, chance, lead, config);
        };
        // No wait follows, so an end that is only predicted is believed.
        let end = end.saturating_add(self.timeline.slip(config).min(slack));
        match self.room(now, chance, lead, config) {
            Ok(room) => Ok(room.saturating_add(slack)),
            Err(_) if now.saturating_add(lead) >= end => Ok(slack.saturating_add(end.saturating_sub(now))),
            Err(until) => Err(until.min(end.saturating_sub(lead))),
        }
    }

    /// [`State::room`](super::state::State::room) of this foreground job. `lead`: time in ns from
    /// an order to its work on the device.
    pub(super) fn room(&self, now: Ns, chance: f64, lead: Ns, config: &Config) -> Result<Ns, Ns> {
        let foresight = &self.foresight;
        let knows = foresight.knows();
        let room = |elapsed: Ns| match knows {
            true => foresight.room(elapsed, chance),
            // Less is risked where nothing is known.
            false => foresight.room_unknown(elapsed, chance.min(UNKNOWN)),
        };
        if let Some(stirred) = foresight.stirred_at().or(self.timeline.stirred_at()) {
            let until = stirred.saturating_add(config.open_after);
            let elapsed = now.saturating_sub(stirred);
            return match knows || now >= until {
                true if knows => Ok(foresight.room(elapsed, chance.min(UNKNOWN))),
                true => Ok(room(elapsed)),
                false => Err(until),
            };
        }
        let Some(end) = self.timeline.end_if_launched() else {
            return Ok(Ns::MAX);
        };
        let end = end.saturating_add(self.timeline.slip(config));
        let followed = knows && foresight.expects().is_some_and(|(low, _)| low > config.small_gap / 4);
        if now < end {
            // With a gap known to follow, an order given now arrives as the work ends. A launch
            // would void it.
            let ready = end.saturating_sub(if followed { lead } else { 0 });
            return match now >= ready {
                true => Ok(room(0).saturating_add(end - now)),
                false => Err(ready),
            };
        }
        // Unless a gap is known to follow, an unseen end may be a launching thread that lost its
        // core for a moment.
        let silent = end.saturating_add(config.open_unseen);
        if now < silent && !followed && !self.timeline.is_seen() {
            return Err(silent);
        }
        Ok(room(now - end))
    }

    /// The wait that has no credit, in the queue or out of turn.
    pub(super) fn wants(&self) -> Option<Wait> {
        self.wait.filter(|_| self.queued.is_some() || self.barred)
    }

    /// Takes in work launched in a gap: starvation is put off by
    /// `lasts * min(work, enough) / enough`, ns.
    pub(super) fn fed(&mut self, work: Ns, now: Ns, enough: Ns, lasts: Ns) {
        let most = now.saturating_add(lasts);
        let lasts = (lasts as f64 * work.min(enough) as f64 / enough.max(1) as f64) as Ns;
        self.fed_until = self.fed_until.max(now).saturating_add(lasts).min(most);
    }

    /// Predicted time of the long kernel on the device, or 0.
    pub(super) fn long_out(&self) -> Ns {
        let ledger = &self.ledger;
        match self.long {
            // Streams end in no order: with less than its cost out, the kernel has ended.
            Some(long) if ledger.outstanding() < long.cost => 0,
            Some(long) if ledger.issued() >= long.total && ledger.settled() < long.total => long.cost,
            _ => 0,
        }
    }

    /// Whether its word has credit to revoke. What an empty word leaves in the books is on its way.
    pub(super) fn revocable(&self) -> bool {
        self.ledger.usable() > 0 && self.revoking.is_none() && self.emptied_at.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Ns = 500;

    #[test]
    fn a_long_kernel_is_out_from_its_launch_to_its_end() {
        let mut client = ClientState::new(Client(1), 5, 5, Times::default(), 0.0, 0);
        client.ledger.grant(1_100);
        client.ledger.report(100, 0, BOUND);
        assert_eq!(client.long_out(), 0, "none was granted");
        client.long = Some(Long {
            cost: 1_000,
            total: 1_100,
        });
        assert_eq!(client.long_out(), 0, "it is not launched yet");
        client.ledger.report(1_100, 0, BOUND);
        assert_eq!(client.long_out(), 1_000);
        client.ledger.report(1_100, 100, BOUND);
        assert_eq!(client.long_out(), 1_000, "what was before it has ended");
        // Less is out than the kernel takes: it has ended, on whatever stream.
        client.ledger.report(1_100, 200, BOUND);
        assert_eq!(client.long_out(), 0);
        client.ledger.report(1_100, 1_100, BOUND);
        assert_eq!(client.long_out(), 0);
    }
}
