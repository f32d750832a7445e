// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client process: its memory, its queue at the gate, its threads.
//!
//! The lane and the epoch page are the real ones, and so is the code that changes the credit word
//! (`Orders::take`). So are the gate's accounts, fences, tickets and rules (`weft_gate`). The waits
//! and sleeps of the real interposer cannot be stepped in virtual time. `thread` repeats their
//! steps; each names the function that it follows.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weft_daemon::server::Host;
use weft_gate::accounts::StreamAccounts;
use weft_gate::active_streams::{ActiveStreams, RemainingWork};
use weft_gate::charge;
use weft_gate::fences::{FenceState, PendingFences};
use weft_gate::tickets::TicketOrder;
use weft_protocol::lane::{Kind, Lane, LaneRecord, bells, flags};
use weft_protocol::transport::map::SharedLane;
use weft_scheduler::{Client, Mode, Ns};

use crate::chance::SeededChance;
use crate::device::DeviceStream;
use crate::scenario::{CHANCE_OF_THREADS, ClientOp, ScenarioJob};
use crate::thread::{Sleep, Stage};

/// An event of weft in a thread's stream, reached when this number of the stream's kernels and
/// copies have ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SimEvent {
    pub thread: usize,
    pub behind: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct SimThread {
    pub ops: Vec<ClientOp>,
    pub at: usize,
    pub stage: Stage,
    pub next_at: Ns,
    pub chance: SeededChance,
    pub stream: DeviceStream,
    /// Time, ns, until which it has no core.
    pub stalled_until: Ns,
}

/// State of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessLife {
    Lives,
    /// Dead, whether or not the broker already knows.
    Dead,
}

#[derive(Clone)]
pub(crate) struct SimProcess {
    pub number: usize,
    /// Number at the broker; a forked child has none.
    pub client: Option<Client>,
    pub lane: Arc<SharedLane>,
    pub host: Arc<Host>,
    pub life: ProcessLife,
    pub lies: bool,
    pub costs: HashMap<u64, Ns>,
    pub threads: Vec<SimThread>,
    /// Order at the gate.
    pub tickets: TicketOrder,
    /// Work of each thread's stream; a stream's handle is its thread's number.
    pub accounts: StreamAccounts,
    pub fences: PendingFences<SimEvent>,
    pub active: ActiveStreams,
    /// `Completion::progress`.
    pub progress: Ns,
    pub standstill: Option<u32>,
    pub clock_offset: i64,
    pub stalled_until: Ns,
    /// Time, ns, since which its lane has shown it as a foreground job.
    pub foreground_since: Option<Ns>,
    /// Total taken from its credit word, with and without cover.
    pub taken: i64,
    /// The part of it without cover.
    pub overdrawn: i64,
    /// Whether the broker let go of it, because its lane lied.
    pub let_go: bool,
}

impl SimProcess {
    pub(crate) fn new(
        job: &ScenarioJob,
        seed: u64,
        now: Ns,
        client: Client,
        lane: Arc<SharedLane>,
        host: Arc<Host>,
    ) -> SimProcess {
        let threads = job.threads.iter().enumerate().map(|(number, ops)| SimThread {
            ops: ops.clone(),
            at: 0,
            stage: Stage::Next,
            next_at: now,
            chance: SeededChance::new(seed, CHANCE_OF_THREADS + (job.number * 10 + number) as u64),
            stream: DeviceStream::default(),
            stalled_until: 0,
        });
        SimProcess {
            number: job.number,
            client: Some(client),
            lane,
            host,
            life: ProcessLife::Lives,
            lies: job.lies,
            costs: job
                .profile
                .as_ref()
                .map_or_else(HashMap::new, |profile| profile.mean_costs().into_iter().collect()),
            threads: threads.collect(),
            tickets: TicketOrder::default(),
            accounts: StreamAccounts::default(),
            fences: PendingFences::default(),
            active: ActiveStreams::default(),
            progress: 0,
            standstill: None,
            clock_offset: 0,
            stalled_until: 0,
            foreground_since: None,
            taken: 0,
            overdrawn: 0,
            let_go: false,
        }
    }

    /// A forked child: the thread that forked, in private memory that reads as no broker.
    pub(crate) fn child(&self, number: usize, lane: Arc<SharedLane>, host: Arc<Host>) -> SimProcess {
        let mut child = self.clone();
        child.number = number;
        child.client = None;
        child.lane = lane;
        child.host = host;
        child.threads.truncate(1);
        child
    }

    pub(crate) fn lane(&self) -> &Lane {
        &self.lane
    }

    /// A launch of an honest background job that waits at the gate and may not go now.
    pub(crate) fn at_the_gate(&self) -> Option<Sleep> {
        if self.lies || self.life != ProcessLife::Lives || self.mode() != Mode::Background {
            return None;
        }
        let orders = &self.lane.orders;
        self.threads.iter().find_map(|thread| match thread.stage {
            Stage::Asleep(sleep) => {
                let bound = orders.flags.load(Ordering::Relaxed) & flags::CREDIT_BOUND_TO_EPOCHS != 0;
                let bound_to = bound.then(|| orders.epochs.load(Ordering::Relaxed));
                let above = self.host.epoch_page.sum_above(self.epoch());
                let credit = orders.credit.load(Ordering::Relaxed);
                (!charge::covers(credit, sleep.launch.cost, bound_to, above)).then_some(sleep)
            }
            _ => None,
        })
    }

    /// A thread of a foreground job at the gate, and for how long, ns, the process has known its
    /// mode and had a core.
    pub(crate) fn holds_up_a_foreground(&self, now: Ns) -> Option<(usize, Ns)> {
        if self.lies
            || self.let_go
            || self.life != ProcessLife::Lives
            || self.client.is_none()
            || self.mode() != Mode::Foreground
        {
            return None;
        }
        let stalled = self.threads.iter().map(|thread| thread.stalled_until).max();
        let since = self.foreground_since?.max(self.stalled_until).max(stalled.unwrap_or(0));
        let at = |thread: &SimThread| matches!(thread.stage, Stage::Queued { .. } | Stage::Asleep(_));
        Some((self.threads.iter().position(at)?, now.saturating_sub(since)))
    }

    /// Time by its own clock, ns.
    pub(crate) fn clock(&self, now: Ns) -> Ns {
        now.saturating_add_signed(self.clock_offset)
    }

    pub(crate) fn mode(&self) -> Mode {
        Mode::from_word(self.lane.orders.mode.load(Ordering::Relaxed)).unwrap_or(Mode::Free)
    }

    pub(crate) fn epoch(&self) -> usize {
        self.lane.orders.epoch.load(Ordering::Relaxed) as usize
    }

    pub(crate) fn cost(&self, kernel: u64) -> Ns {
        let unknown = || self.lane.orders.unknown_cost.load(Ordering::Relaxed);
        self.costs.get(&kernel).copied().unwrap_or_else(unknown)
    }

    pub(crate) fn write(&self, kind: Kind, thread: usize, at: Ns, kernel: u64, a: u64, b: u64) {
        self.lane.record(LaneRecord {
            kind,
            thread: thread as u32,
            at,
            kernel,
            a,
            b,
        });
    }

    /// `BrokerLink::ring`: true if the broker's bell is to be rung.
    pub(crate) fn ring(&self) -> bool {
        let sleeps = &self.lane.broker_sleeps;
        sleeps.load(Ordering::Relaxed) == bells::ALL && sleeps.swap(bells::NONE, Ordering::AcqRel) == bells::ALL
    }

    /// `BrokerLink::ring_idle`: as `ring`, for a process that became idle.
    pub(crate) fn ring_idle(&self) -> bool {
        let sleeps = &self.lane.broker_sleeps;
        sleeps.load(Ordering::Relaxed) != bells::NONE && sleeps.swap(bells::NONE, Ordering::AcqRel) != bells::NONE
    }

    pub(crate) fn take_credit(&mut self, cost: Ns) -> bool {
        let cost = charge::in_credit(cost);
        let took = self.lane.orders.take(&self.host.epoch_page, cost);
        if took {
            self.taken = self.taken.saturating_add(cost);
        }
        took
    }

    pub(crate) fn overdraw(&mut self, cost: Ns) {
        let cost = charge::in_credit(cost);
        self.lane.orders.overdraw(cost);
        self.taken = self.taken.saturating_add(cost);
        self.overdrawn = self.overdrawn.saturating_add(cost);
    }

    /// Ends the work of a synchronised stream. Returns whether the process became idle, and whether
    /// that is certain.
    pub(crate) fn synced(&self, thread: usize) -> (bool, bool) {
        match self.active.synced(thread).left {
            RemainingWork::AsBefore => (false, false),
            RemainingWork::NothingProbably => (true, false),
            RemainingWork::Nothing => (true, true),
        }
    }

    /// Counts work as ended, of all streams or of this thread's; returns it, ns.
    pub(crate) fn complete(&self, thread: usize, all: bool) -> Ns {
        if all {
            return self.accounts.complete_all();
        }
        let account = self.accounts.account(self.accounts.place(thread).at);
        account.map_or(0, |account| account.complete(Ns::MAX))
    }

    /// `Completion::ask_device`: predicted work newly seen to have ended.
    pub(crate) fn ask_device(&mut self, now: Ns) -> Ns {
        let clock = self.clock(now);
        let threads = &mut self.threads;
        // A forked child has one thread: its parent's other streams are not its own.
        let ask = |event: SimEvent| {
            let ended = threads.get_mut(event.thread).map(|thread| thread.stream.ended(now));
            match ended.is_some_and(|ended| ended >= event.behind) {
                true => FenceState::Reached,
                false => FenceState::Pending,
            }
        };
        let by_fences = self.fences.poll(&self.accounts, ask, |_, _| {});
        let gained = by_fences + self.accounts.complete_overdue(clock, 0);
        if gained > 0 {
            self.progress = clock;
        }
        self.report_settled(gained);
        gained
    }

    pub(crate) fn report_settled(&self, gained: Ns) {
        if gained > 0 {
            self.lane.reports.completed.fetch_add(gained, Ordering::AcqRel);
            self.lane.orders.replenish(&self.lane.reports, &self.host.epoch_page);
        }
    }

    /// `Completion::fence`: an event behind the launches on this thread's stream.
    pub(crate) fn put_fence(&mut self, thread: usize) {
        let place = self.accounts.place(thread);
        let wanted = self
            .accounts
            .account(place.at)
            .and_then(|account| self.fences.wanted(account));
        if let Some(upto) = wanted {
            let behind = self.threads[thread].stream.queued();
            self.fences
                .add(&self.accounts, place, upto, SimEvent { thread, behind });
        }
    }
}
