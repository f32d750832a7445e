// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory thread's state of one client.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::forecast::StepForecast;
use super::granules::{granules, held};
use crate::base::trace;
use crate::clients::registry::Entry;
use weft_paging::{Access, GranuleRange, OrderId, OrderKind, PagingOrder, Use, WorkingSet};
use weft_protocol::Ns;
use weft_protocol::page_ops::{PageOp, PageOpProducer};

/// Assumed number of times per turn that a job without a forecast touches its working set.
const USES_A_TURN: u64 = 16;

/// Rounds after which an unnamed range is not part of the working set. A round is half a second
/// with launches; a training step may take seconds.
pub(super) const RECENT_ROUNDS: u64 = 8;

/// Time without activity after which a job is idle: its memory may be evicted, and no turns are
/// planned for it. A job that writes a checkpoint is idle.
pub(super) const IDLE: Duration = Duration::from_secs(2);

/// A page operation under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Out {
    pub order: OrderId,
    pub what: OrderKind,
    pub range: GranuleRange,
    pub since: Instant,
}

#[derive(Debug)]
pub(super) struct ManagedClient {
    pub entry: Arc<Entry>,
    pub producer: PageOpProducer,
    pub device: Option<String>,
    /// The device's size as the client reports it, bytes.
    pub bytes: Option<u64>,
    /// Ranges by start: size, and the last round that named them.
    pub ranges: BTreeMap<u64, (u64, u64)>,
    /// Granules of all ranges.
    pub granules: u64,
    pub round: u64,
    /// Number of touched ranges that the planner knows.
    pub touches: usize,
    /// Confirmations to send at the begin of its turn, because the driver's own evictions are not
    /// visible here.
    pub confirms: VecDeque<PageOp>,
    /// Orders that do not fit into the lane yet.
    pub waiting: VecDeque<PagingOrder>,
    pub out: HashMap<u64, Out>,
    /// Time until which it gets no page operations.
    pub penance: Option<Instant>,
    /// Granules that the planner knows.
    pub told: HashSet<u64>,
    /// Whether it changed since the planner last got its memory.
    pub dirty: bool,
    /// Whether it is a foreground job: while active, its granules remain on the device.
    pub pinned: bool,
    /// Time of its last activity.
    pub active_at: Instant,
    /// Counters at the last call of [`ManagedClient::look`].
    progress: [u64; 4],
    /// Time at which it last had the device.
    pub ran_at: Option<Instant>,
    pub forecast: StepForecast,
    /// Confirmations under way.
    pub confirming: HashMap<u64, GranuleRange>,
    /// Time at which its working set last counted as touched, if it has no forecast.
    pub counted: Option<Instant>,
    /// Launches at that time.
    pub launched: u64,
    /// Host bytes left by its control groups, as the planner knows them; `None`: not reported.
    pub host_left: Option<u64>,
    pub drawn: trace::MemoryFigures,
}

impl ManagedClient {
    pub fn new(entry: Arc<Entry>) -> ManagedClient {
        ManagedClient {
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
            progress: [0; 4],
            ran_at: None,
            forecast: StepForecast::default(),
            confirming: HashMap::new(),
            counted: None,
            launched: 0,
            host_left: None,
            drawn: trace::MemoryFigures::default(),
            entry,
        }
    }

    /// Records activity since the last call, or a wait for its turn.
    pub fn look(&mut self, now: Instant) {
        let (lane, read) = (&self.entry.lane, |word: &AtomicU64| word.load(Ordering::Relaxed));
        let progress = [
            lane.written(),
            read(&lane.counters.launches),
            read(&lane.counters.graph_launches),
            read(&lane.reports.completed),
        ];
        if std::mem::replace(&mut self.progress, progress) != progress
            || lane.reports.waiting.load(Ordering::Relaxed) != 0
        {
            self.active_at = now;
        }
    }

    /// Whether it was active within `IDLE`.
    pub fn is_active(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.active_at) < IDLE
    }

    /// Whether a range last named in round `named` counts as touched.
    pub fn is_touched(&self, named: u64) -> bool {
        named + RECENT_ROUNDS >= self.round
    }

    /// The working set with times: the forecast, or all touched ranges at once.
    pub fn working_set(&mut self, turn: Ns) -> WorkingSet {
        if self.forecast.is_there() {
            let ranges = &self.ranges;
            return self.forecast.working_set(|range| held(ranges, range));
        }
        let round = self.round;
        let touched = self
            .ranges
            .iter()
            .filter(|(_, (_, named))| named + RECENT_ROUNDS >= round);
        let uses: Vec<Use> = touched
            .map(|(start, (bytes, _))| Use {
                at: 0,
                range: granules(*start, *bytes),
                access: Access::ReadWrite,
            })
            .collect();
        self.touches = uses.len();
        WorkingSet {
            period: (turn / USES_A_TURN).max(1),
            uses,
        }
    }

    /// Records a round that named these ranges; `None`: all.
    pub fn touched(&mut self, starts: Option<Vec<u64>>) {
        if starts.as_ref().is_some_and(Vec::is_empty) {
            // An idle round leaves the working set unchanged.
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
