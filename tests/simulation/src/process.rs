//! A client process: its memory, its queue at the gate, its threads.
//!
//! The lane and the epoch page are the real ones, and so is the code that changes the credit word
//! (`Orders::take`). What waits and sleeps in the real interposer cannot be stepped in virtual
//! time, so its rules are written down again in `thread`; each names the place it follows.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weft_daemon::server::Host;
use weft_gate::charge;
use weft_gate::fences::{MAX_FENCES, SILENT_SYNCS, is_overdue};
use weft_protocol::lane::{Kind, Lane, Record, bells, flags};
use weft_protocol::transport::map::SharedLane;
use weft_scheduler::{Client, Mode, Ns};

use crate::chance::SeededChance;
use crate::device::DeviceStream;
use crate::scenario::{CHANCE_OF_THREADS, ClientOp, ScenarioJob};
use crate::thread::{Sleep, Stage};

/// Work of one stream (`streams::Account`).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StreamAccount {
    pub issued: Ns,
    pub marked: Ns,
    pub settled: Ns,
    pub last: Ns,
}

impl StreamAccount {
    pub(crate) fn outstanding(&self) -> Ns {
        self.issued - self.settled
    }

    pub(crate) fn unmarked(&self) -> Ns {
        self.issued.saturating_sub(self.marked.max(self.settled))
    }

    /// Raises `settled`, says by how much.
    pub(crate) fn settle(&mut self, upto: Ns) -> Ns {
        let upto = upto.min(self.issued);
        let gained = upto.saturating_sub(self.settled);
        self.settled += gained;
        gained
    }
}

/// An event of ours in the stream (`settle::Mark`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamMark {
    pub upto: Ns,
    /// Reached when so many of the stream's works have ended.
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
    pub account: StreamAccount,
    pub marks: Vec<StreamMark>,
    /// `busy::Busy`: whether the stream has work, and how often others were synchronised since it
    /// had new work.
    pub busy: bool,
    pub silence: u32,
    /// It has no core until then.
    pub stalled_until: Ns,
}

/// What became of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessLife {
    Lives,
    /// Dead; the broker does not know yet, or does.
    Dead,
}

#[derive(Clone)]
pub(crate) struct SimProcess {
    pub number: usize,
    /// Its number at the broker; a forked child has none.
    pub client: Option<Client>,
    pub lane: Arc<SharedLane>,
    pub host: Arc<Host>,
    pub life: ProcessLife,
    pub lies: bool,
    pub costs: HashMap<u64, Ns>,
    pub threads: Vec<SimThread>,
    /// `turn::Turn`.
    pub next_ticket: u64,
    pub serving: u64,
    /// `Settle::progress`.
    pub progress: Ns,
    pub standstill: Option<u32>,
    pub clock_offset: i64,
    pub stalled_until: Ns,
    /// Since when its lane says that it is a foreground job.
    pub foreground_since: Option<Ns>,
    /// All that was ever taken from its credit word, with and without credit in it.
    pub taken: i64,
    /// Of that, without.
    pub overdrawn: i64,
    /// The broker let go of it (a lane that lied).
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
            account: StreamAccount::default(),
            marks: Vec::new(),
            busy: false,
            silence: 0,
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
            next_ticket: 0,
            serving: 0,
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

    /// A child of a fork: the thread that forked, in private memory that reads as no broker
    /// (`map::Place::clear`).
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

    /// The launch of an honest background job that waits at the gate and, as things stand, may not
    /// go.
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

    /// A thread at the gate of a foreground job, and how long after the process was told that it is
    /// one, and had a core, it stands there.
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

    /// What its own clock says.
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
        self.lane.record(Record {
            kind,
            thread: thread as u32,
            at,
            kernel,
            a,
            b,
        });
    }

    /// `Session::ring`: true if the broker's bell is to be rung.
    pub(crate) fn ring(&self) -> bool {
        let sleeps = &self.lane.broker_sleeps;
        sleeps.load(Ordering::Relaxed) == bells::ALL && sleeps.swap(bells::NONE, Ordering::AcqRel) == bells::ALL
    }

    /// `Session::ring_idle`: the same where the process has become idle.
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

    pub(crate) fn outstanding(&self) -> Ns {
        self.threads.iter().map(|thread| thread.account.outstanding()).sum()
    }

    /// `Settle::expects`: predicted time of the next mark.
    pub(crate) fn expected_end(&self) -> Option<Ns> {
        let end = |thread: &SimThread| {
            let mark = thread.marks.first()?;
            let left = mark.upto.saturating_sub(thread.account.settled);
            Some(self.progress.saturating_add(left))
        };
        self.threads.iter().filter_map(end).min()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.threads.iter().all(|thread| !thread.busy)
    }

    /// `Busy::mark`: true if there was no work anywhere.
    pub(crate) fn mark_busy(&mut self, thread: usize) -> bool {
        let was_idle = self.is_idle();
        let thread = &mut self.threads[thread];
        (thread.busy, thread.silence) = (true, 0);
        was_idle
    }

    /// `Busy::synced`: whether the process became idle, and whether that is certain.
    pub(crate) fn busy_synced(&mut self, synced: usize) -> (bool, bool) {
        let (mut had_work, mut left, mut certain) = (false, false, true);
        for (at, thread) in self.threads.iter_mut().enumerate().filter(|(_, thread)| thread.busy) {
            had_work = true;
            if at == synced {
                thread.busy = false;
            } else {
                thread.silence += 1;
                if thread.silence >= SILENT_SYNCS {
                    thread.busy = false;
                    certain = false;
                } else {
                    left = true;
                }
            }
        }
        (had_work && !left, certain)
    }

    /// `Settle::poll`: predicted work newly seen to have ended.
    pub(crate) fn ask_device(&mut self, now: Ns) -> Ns {
        let clock = self.clock(now);
        let mut gained = 0;
        for thread in &mut self.threads {
            let ended = thread.stream.ended(now);
            while let Some(mark) = thread.marks.first().copied().filter(|mark| mark.behind <= ended) {
                thread.marks.remove(0);
                gained += thread.account.settle(mark.upto);
            }
            let account = &mut thread.account;
            let outstanding = account.outstanding();
            let unfenced = outstanding > 0 && account.marked <= account.settled;
            if unfenced && is_overdue(clock, account.last, outstanding) {
                gained += account.settle(Ns::MAX);
            }
        }
        if gained > 0 {
            self.progress = clock;
        }
        self.report_settled(gained);
        gained
    }

    pub(crate) fn report_settled(&self, gained: Ns) {
        if gained > 0 {
            self.lane.reports.settled.fetch_add(gained, Ordering::AcqRel);
            self.lane.orders.renew(&self.lane.reports, &self.host.epoch_page);
        }
    }

    /// `Settle::mark`: an event behind what was launched on this thread's stream.
    pub(crate) fn put_mark(&mut self, thread: usize) {
        if self.threads.iter().map(|thread| thread.marks.len()).sum::<usize>() >= MAX_FENCES {
            return;
        }
        let thread = &mut self.threads[thread];
        if thread.account.issued <= thread.account.marked {
            return;
        }
        thread.account.marked = thread.account.issued;
        thread.marks.push(StreamMark {
            upto: thread.account.issued,
            behind: thread.stream.queued(),
        });
    }

    /// `Turn::leave`.
    pub(crate) fn leave_turn(&mut self, ticket: u64) {
        self.serving = self.serving.max(ticket + 1);
    }
}
