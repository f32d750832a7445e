//! What the memory thread knows of one client.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::forecast::Forecast;
use super::granules::{granules, held};
use crate::registry::Entry;
use crate::trace;
use weft_paging::{Access, Order, OrderId, Range, Use, What, WorkingSet};
use weft_protocol::Ns;
use weft_protocol::page_ops::{PageOp, PageOpProducer};

/// A job's working set is taken to be touched so many times in a turn: what it has touched once in
/// its turn it will touch again in it.
const TIMES_A_TURN: u64 = 16;

/// A range that was not named in so many rounds (of half a second, in which something was named) is
/// not part of what the job touches: a training step may take seconds.
pub(super) const ROUNDS: u64 = 8;

/// A job that did nothing for so long is idle: its memory may go, and nobody's turns are planned
/// with it. A training job that writes a checkpoint is.
pub(super) const IDLE: Duration = Duration::from_secs(2);

/// A page operation that is out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Out {
    pub order: OrderId,
    pub what: What,
    pub range: Range,
    pub since: Instant,
}

/// One client.
#[derive(Debug)]
pub(super) struct Known {
    pub entry: Arc<Entry>,
    pub producer: PageOpProducer,
    pub device: Option<String>,
    /// How large it says that is.
    pub bytes: Option<u64>,
    /// By start, with sizes and the round in which they were named last.
    pub ranges: BTreeMap<u64, (u64, u64)>,
    /// Granules of each of them, in sum.
    pub granules: u64,
    /// Rounds so far.
    pub round: u64,
    /// The ranges that it touches, as the planner was told.
    pub touches: usize,
    /// What should be on the device at the begin of its turn, and is asked for once more: pages
    /// that the driver has moved away by itself are not seen from here.
    pub confirms: VecDeque<PageOp>,
    /// What does not fit into the lane yet.
    pub waiting: VecDeque<Order>,
    /// Page operations that are out.
    pub out: HashMap<u64, Out>,
    /// No page operations until then.
    pub penance: Option<Instant>,
    /// Granules that the planner knows of.
    pub told: HashSet<u64>,
    /// It has changed since the planner was told.
    pub dirty: bool,
    /// It is a foreground job: its granules stay on the device, while it is at work.
    pub pinned: bool,
    /// When it was last seen at work, and by which launch epochs.
    pub active_at: Instant,
    epochs: [u64; 4],
    /// When it last had the device.
    pub ran_at: Option<Instant>,
    pub forecast: Forecast,
    /// Confirmations that are out.
    pub confirming: HashMap<u64, Range>,
    /// When, and at how many launches, what it touches was counted last; where there is no
    /// forecast.
    pub counted: Option<Instant>,
    pub launched: u64,
    /// What its control groups leave of the host, as it said when the planner was told; `None`: the
    /// planner was not.
    pub host_left: Option<u64>,
    /// What the trace has of it.
    pub drawn: trace::Memory,
}

impl Known {
    /// One that has just attached.
    pub fn new(entry: Arc<Entry>) -> Known {
        Known {
            producer: PageOpProducer::default(),
            device: None,
            bytes: None,
            ranges: BTreeMap::new(),
            granules: 0,
            round: 0,
            touches: 0,
            confirms: VecDeque::new(),
            waiting: VecDeque::new(),
            out: HashMap::new(),
            penance: None,
            told: HashSet::new(),
            dirty: false,
            pinned: false,
            active_at: Instant::now(),
            epochs: [0; 4],
            ran_at: None,
            forecast: Forecast::default(),
            confirming: HashMap::new(),
            counted: None,
            launched: 0,
            host_left: None,
            drawn: trace::Memory::default(),
            entry,
        }
    }

    /// Sees whether it has done anything since the last look, or waits for its turn.
    pub fn look(&mut self, now: Instant) {
        let (lane, read) = (&self.entry.lane, |word: &AtomicU64| word.load(Ordering::Relaxed));
        let epochs = [
            lane.written(),
            read(&lane.counters.launches),
            read(&lane.counters.graph_launches),
            read(&lane.reports.settled),
        ];
        if std::mem::replace(&mut self.epochs, epochs) != epochs || lane.reports.waiting.load(Ordering::Relaxed) != 0 {
            self.active_at = now;
        }
    }

    /// Whether it has not been idle for long.
    pub fn is_active(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.active_at) < IDLE
    }

    /// Whether a range that was named last in this round counts as touched.
    pub fn is_touched(&self, named: u64) -> bool {
        named + ROUNDS >= self.round
    }

    /// What it touches, and when in its own time.
    pub fn working_set(&mut self, turn: Ns) -> WorkingSet {
        if self.forecast.is_there() {
            let ranges = &self.ranges;
            return self.forecast.working_set(|range| held(ranges, range));
        }
        let round = self.round;
        let touched = self.ranges.iter().filter(|(_, (_, named))| named + ROUNDS >= round);
        let uses: Vec<Use> = touched
            .map(|(start, (bytes, _))| Use {
                at: 0,
                range: granules(*start, *bytes),
                access: Access::ReadWrite,
            })
            .collect();
        self.touches = uses.len();
        WorkingSet {
            period: (turn / TIMES_A_TURN).max(1),
            uses,
        }
    }

    /// A round in which these were named, or all.
    pub fn touched(&mut self, starts: Option<Vec<u64>>) {
        if starts.as_ref().is_some_and(Vec::is_empty) {
            // It did nothing: what it touches when it goes on is what it touched before.
            return;
        }
        self.round += 1;
        match starts {
            None => self.ranges.values_mut().for_each(|(_, named)| *named = self.round),
            Some(starts) => {
                for start in starts {
                    if let Some((_, named)) = self.ranges.get_mut(&start) {
                        *named = self.round;
                    }
                }
            }
        }
        let touches = self
            .ranges
            .values()
            .filter(|(_, named)| self.is_touched(*named))
            .count();
        self.dirty |= touches != self.touches && !self.forecast.is_there();
    }
}
