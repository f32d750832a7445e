// SPDX-License-Identifier: MIT OR Apache-2.0
//! State machine of the cluster: nodes, jobs, and the round after each event.

mod engine;

use std::collections::{BTreeMap, BTreeSet};

use crate::Ns;
use crate::event::{ClusterDecision, ClusterEvent};
use crate::job::{ClusterJob, JobId, JobMeasure, WHOLE_GPU_MILLI, WorkerAsk};
use crate::links::{ClusterLinks, Flow, FlowRoute};
use crate::node::{ClusterNode, NodeId, WorkerPlace};
use crate::placement::{GangSurroundings, Placer};
use crate::policies::{ClusterPolicy, OrderKey, RankedJob, SharingRule};

/// One job.
#[derive(Debug, Clone)]
struct HeldJob {
    job: ClusterJob,
    /// Resources of each worker. The policy may give more than the job asked for.
    each: WorkerAsk,
    arrived: Ns,
    /// Empty while it waits.
    places: Vec<WorkerPlace>,
    /// Whether it has the second seat of those GPUs.
    second: bool,
    /// How busy it keeps a GPU by its nodes' records, thousandths.
    load: u32,
    /// Its places when it was paused, empty if it must start anew.
    paused_at: Vec<WorkerPlace>,
    /// Start of its present run or wait.
    since: Ns,
    /// Its run time up to `counted`.
    ran: Ns,
    counted: Ns,
    done_ppm: u32,
    /// Its run time when `done_ppm` was reported.
    done_at: Ns,
    measure: JobMeasure,
    level: u8,
    /// Whether the empty cluster could run it.
    possible: bool,
    /// Whether its engine put it on places without room in the books. They do not count it.
    unbooked: bool,
    /// Run time that counts as attained service, if the engine measured it.
    attained: Option<Ns>,
    /// Its position among the waiting jobs, under a keyed policy.
    queued: Option<FullKey>,
}

/// A job's place in the order: by the policy, then by arrival.
type FullKey = (OrderKey, Ns, JobId);

/// Common properties of jobs of which one fits wherever the other does.
type GangShape = (WorkerAsk, u32);

/// State of a job before the round.
#[derive(Debug)]
struct Before {
    places: Vec<WorkerPlace>,
    second: bool,
    paused_at: Vec<WorkerPlace>,
    since: Ns,
}

/// Waiting jobs for which one round tries a seat on held GPUs, from the first in the order on.
const SEAT_TRIES: usize = 64;
/// Jobs of one shape that one round tries while the policy bounds the nodes of each differently.
const SPREAD_TRIES: usize = 16;

impl HeldJob {
    fn runs(&self) -> bool {
        !self.places.is_empty()
    }

    fn shape(&self) -> GangShape {
        (self.each, self.job.workers)
    }

    fn milli(&self) -> u64 {
        u64::from(self.job.workers) * self.each.total_milli()
    }

    /// Run time. In a second seat time counts by its speed.
    fn ran_at(&self, now: Ns) -> Ns {
        let lately = now.saturating_sub(self.counted);
        let speed = if self.second {
            u64::from(self.measure.speed_milli)
        } else {
            1_000
        };
        self.ran
            + if self.runs() {
                lately / 1_000 * speed + lately % 1_000 * speed / 1_000
            } else {
                0
            }
    }

    fn count(&mut self, now: Ns) {
        self.ran = self.ran_at(now);
        self.counted = now;
    }

    /// How busy a worker keeps each GPU, thousandths.
    fn load(&self) -> u32 {
        self.measure.duty_milli.min(1_000) * self.each.gpu_milli / WHOLE_GPU_MILLI
    }

    /// Time left after a run of `ran`, ns, if progress continues as before. A job past its
    /// estimated end is assumed to run on for as long as it has overrun.
    fn left_after(&self, ran: Ns) -> Option<Ns> {
        let (done, whole) = (u128::from(self.done_ppm), 1_000_000);
        let run = (u128::from(self.done_at) * whole).checked_div(done)?;
        Some(u64::try_from(run).unwrap_or(Ns::MAX).abs_diff(ran).max(1))
    }

    fn ranked(&self, now: Ns) -> RankedJob {
        let mut nodes = 0;
        let mut last = None;
        for place in &self.places {
            // A gang's workers on one node follow each other.
            nodes += u32::from(last != Some(place.node));
            last = Some(place.node);
        }
        let ran = self.attained.unwrap_or_else(|| self.ran_at(now));
        RankedJob {
            id: self.job.id,
            tenant: self.job.tenant,
            gpu_milli: self.milli(),
            arrived: self.arrived,
            running: self.runs(),
            lately: now.saturating_sub(self.since),
            ran,
            expected: self.job.expected,
            done_ppm: self.done_ppm,
            left: self.left_after(ran),
            measure: self.measure,
            workers: self.job.workers,
            nodes,
            second: self.second,
        }
    }
}

/// The cluster under one policy and one placement.
#[derive(Debug)]
pub struct Cluster {
    policy: Box<dyn ClusterPolicy>,
    placer: Placer,
    /// In the order of arrival: the first of equal nodes is taken.
    nodes: Vec<ClusterNode>,
    /// Resources of the empty nodes, by the same index.
    empty: Vec<ClusterNode>,
    index: BTreeMap<NodeId, usize>,
    jobs: BTreeMap<JobId, HeldJob>,
    waiting: BTreeSet<JobId>,
    /// Whether an engine starts jobs by itself and asks for advice.
    advises: bool,
    /// Whether running jobs make room, if the policy preempts.
    pauses: bool,
    running: BTreeSet<JobId>,
    /// Waiting jobs that the cluster could run, under a keyed policy.
    queues: BTreeMap<GangShape, BTreeSet<FullKey>>,
    /// Former state of the jobs that this round changed.
    before: BTreeMap<JobId, Before>,
    /// Jobs that the round began, and jobs that it paused, in that order.
    begun: Vec<JobId>,
    paused: Vec<JobId>,
    /// Measures of jobs that are yet to come, whose program ran before.
    foreknown: BTreeMap<JobId, JobMeasure>,
    links: Option<ClusterLinks>,
    routes: BTreeMap<JobId, FlowRoute>,
}

impl Cluster {
    /// A cluster without nodes and jobs.
    pub fn new(policy: Box<dyn ClusterPolicy>, placer: Placer) -> Cluster {
        Cluster {
            policy,
            placer,
            nodes: Vec::new(),
            empty: Vec::new(),
            index: BTreeMap::new(),
            jobs: BTreeMap::new(),
            waiting: BTreeSet::new(),
            advises: false,
            pauses: true,
            running: BTreeSet::new(),
            queues: BTreeMap::new(),
            before: BTreeMap::new(),
            begun: Vec::new(),
            paused: Vec::new(),
            foreknown: BTreeMap::new(),
            links: None,
            routes: BTreeMap::new(),
        }
    }

    /// Takes an event. Decisions are appended.
    pub fn handle(&mut self, now: Ns, event: ClusterEvent, out: &mut Vec<ClusterDecision>) {
        let look = event == ClusterEvent::Look;
        match event {
            ClusterEvent::NodeUp(node) => self.node_up(now, node),
            ClusterEvent::NodeDown(node) => self.node_down(now, node, out),
            ClusterEvent::Submitted(job) => {
                if !self.submitted(now, job, out) {
                    return;
                }
            }
            ClusterEvent::Ended(job) => self.ended(now, job),
            ClusterEvent::Progress(job, done_ppm) => {
                if let Some(entry) = self.jobs.get_mut(&job)
                    && done_ppm.min(1_000_000) > entry.done_ppm
                {
                    entry.done_ppm = done_ppm.min(1_000_000);
                    entry.done_at = entry.attained.unwrap_or_else(|| entry.ran_at(now));
                }
                return;
            }
            ClusterEvent::Began(job, places, since) => self.began(job, places, since),
            ClusterEvent::Stopped(job) => self.stopped(now, job),
            ClusterEvent::Attained(job, ran) => return self.attained(job, ran),
            ClusterEvent::Measured(job, measure) => {
                self.measured(now, job, measure);
                return;
            }
            ClusterEvent::Links(links) => self.links = Some(links),
            ClusterEvent::Look => {}
        }
        if !self.advises {
            self.round(now, look, out);
        }
    }

    /// Interval at which the core needs [`ClusterEvent::Look`], ns.
    pub fn look_every(&self) -> Option<Ns> {
        self.policy.look_every()
    }

    /// Nodes with their free resources, in the order of arrival.
    pub fn nodes(&self) -> &[ClusterNode] {
        &self.nodes
    }

    /// Places of a job, empty if it does not run.
    pub fn places(&self, job: JobId) -> &[WorkerPlace] {
        self.jobs.get(&job).map_or(&[], |entry| &entry.places)
    }

    /// Whether it runs in the second seat of its GPUs.
    pub fn second_seat(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|entry| entry.second)
    }

    /// Number of jobs that run in a second seat.
    pub fn guests(&self) -> usize {
        self.running.iter().filter(|job| self.second_seat(**job)).count()
    }

    /// Number of jobs that wait for GPUs.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn node_up(&mut self, now: Ns, node: ClusterNode) {
        if self.index.contains_key(&node.id) {
            return;
        }
        self.index.insert(node.id, self.nodes.len());
        self.empty.push(node.clone());
        self.nodes.push(node);
        self.look_whether_possible(now);
    }

    fn node_down(&mut self, now: Ns, node: NodeId, out: &mut Vec<ClusterDecision>) {
        let Some(gone) = self.index.get(&node).copied() else {
            return;
        };
        let on = |places: &[WorkerPlace]| places.iter().any(|place| place.node == node);
        let lost: Vec<JobId> = self
            .jobs
            .iter()
            .filter(|(_, entry)| on(&entry.places))
            .map(|(id, _)| *id)
            .collect();
        for id in lost {
            self.give_back(id);
            self.stop(now, id);
            out.push(ClusterDecision::Requeue(id));
        }
        for entry in self.jobs.values_mut().filter(|entry| on(&entry.paused_at)) {
            entry.paused_at = Vec::new();
        }
        self.nodes.remove(gone);
        self.empty.remove(gone);
        self.index = self.nodes.iter().enumerate().map(|(at, node)| (node.id, at)).collect();
        self.placer.forget_nodes();
        self.look_whether_possible(now);
    }

    /// Returns whether the job waits now.
    fn submitted(&mut self, now: Ns, job: ClusterJob, out: &mut Vec<ClusterDecision>) -> bool {
        if self.jobs.contains_key(&job.id) {
            return false;
        }
        if job.workers == 0 || !job.each.valid() {
            out.push(ClusterDecision::Refuse(job.id));
            return false;
        }
        let each = self.policy.grant(job.each);
        let entry = HeldJob {
            job,
            each,
            arrived: now,
            places: Vec::new(),
            paused_at: Vec::new(),
            second: false,
            load: 0,
            since: now,
            ran: 0,
            counted: now,
            done_ppm: 0,
            done_at: 0,
            measure: self.foreknown.remove(&job.id).unwrap_or_default(),
            level: self.policy.level(job.id),
            possible: self.possible(&each, job.workers),
            unbooked: false,
            attained: None,
            queued: None,
        };
        self.jobs.insert(job.id, entry);
        self.waits(now, job.id);
        true
    }

    fn ended(&mut self, now: Ns, job: JobId) {
        self.give_back(job);
        self.waits_no_more(job);
        self.running.remove(&job);
        self.routes.remove(&job);
        self.foreknown.remove(&job);
        if let Some(entry) = self.jobs.remove(&job) {
            self.policy.ended(&entry.ranked(now));
        }
    }

    fn measured(&mut self, now: Ns, job: JobId, measure: JobMeasure) {
        let Some(entry) = self.jobs.get_mut(&job) else {
            self.foreknown.insert(job, measure);
            return;
        };
        entry.count(now);
        entry.measure = measure;
        if entry.runs() {
            // Updates its load in the nodes' records.
            self.give_back(job);
            self.retake(job);
        } else if let Some(queued) = entry.queued.take() {
            // Its position in the queue may have changed.
            let shape = entry.shape();
            if let Some(queue) = self.queues.get_mut(&shape) {
                queue.remove(&queued);
            }
            self.waits(now, job);
        }
    }

    /// Makes the job wait from now on.
    fn waits(&mut self, now: Ns, job: JobId) {
        self.waiting.insert(job);
        if !self.policy.keyed() {
            return;
        }
        let Some(entry) = self
            .jobs
            .get_mut(&job)
            .filter(|entry| entry.possible && entry.queued.is_none())
        else {
            return;
        };
        let key = (self.policy.key(now, &entry.ranked(now)), entry.arrived, job);
        entry.queued = Some(key);
        self.queues.entry(entry.shape()).or_default().insert(key);
    }

    fn waits_no_more(&mut self, job: JobId) {
        self.waiting.remove(&job);
        let Some(entry) = self.jobs.get_mut(&job) else { return };
        if let Some(key) = entry.queued.take() {
            let shape = entry.shape();
            if let Some(queue) = self.queues.get_mut(&shape) {
                queue.remove(&key);
                if queue.is_empty() {
                    self.queues.remove(&shape);
                }
            }
        }
    }

    /// Requeues all waiting jobs, whose positions have changed.
    fn queue_anew(&mut self, now: Ns) {
        self.queues.clear();
        let waiting: Vec<JobId> = self.waiting.iter().copied().collect();
        for job in waiting {
            if let Some(entry) = self.jobs.get_mut(&job) {
                entry.queued = None;
            }
            self.waits(now, job);
        }
    }

    /// Whether an empty cluster can run this number of these workers. They are equal, so it is
    /// enough to count the room for them on each node.
    fn possible(&self, each: &WorkerAsk, workers: u32) -> bool {
        let mut left = workers;
        self.empty.iter().any(|node| {
            left = left.saturating_sub(node.room(each));
            left == 0
        })
    }

    fn look_whether_possible(&mut self, now: Ns) {
        let fits: Vec<(JobId, bool)> = self
            .waiting
            .iter()
            .filter_map(|id| self.jobs.get(id))
            .map(|entry| (entry.job.id, self.possible(&entry.each, entry.job.workers)))
            .collect();
        for (id, possible) in fits {
            if let Some(entry) = self.jobs.get_mut(&id) {
                entry.possible = possible;
            }
        }
        self.queue_anew(now);
    }

    /// Frees the job's GPUs; its account is as it was.
    fn give_back(&mut self, job: JobId) {
        let Some(entry) = self.jobs.get(&job).filter(|entry| !entry.unbooked) else {
            return;
        };
        for place in &entry.places {
            let Some(node) = self.index.get(&place.node).map(|at| &mut self.nodes[*at]) else {
                continue;
            };
            if entry.second {
                node.give_back_second(&entry.each, place);
            } else {
                node.give_back(&entry.each, place);
                node.add_busy(place, -i64::from(entry.load));
            }
        }
    }

    /// Takes the job's GPUs again, in its seat. Takes all of them, or none if one is not free.
    fn retake(&mut self, job: JobId) -> bool {
        let Some(entry) = self.jobs.get_mut(&job) else {
            return false;
        };
        if entry.unbooked {
            return true;
        }
        entry.load = entry.load();
        let mut taken = Vec::new();
        for place in &entry.places {
            let node = self.index.get(&place.node).map(|at| &mut self.nodes[*at]);
            let took = node.is_some_and(|node| {
                if entry.second {
                    return node.take_second(&entry.each, place, entry.load);
                }
                let took = node.retake(&entry.each, place);
                if took {
                    node.add_busy(place, i64::from(entry.load));
                }
                took
            });
            if !took {
                for place in taken {
                    let node = &mut self.nodes[self.index[&NodeId::of(place)]];
                    if entry.second {
                        node.give_back_second(&entry.each, place);
                    } else {
                        node.give_back(&entry.each, place);
                        node.add_busy(place, -i64::from(entry.load));
                    }
                }
                return false;
            }
            taken.push(place);
        }
        true
    }

    /// Remembers a job's state before this round touched it.
    fn touch(&mut self, job: JobId) {
        if let Some(entry) = self.jobs.get(&job) {
            self.before.entry(job).or_insert_with(|| Before {
                places: entry.places.clone(),
                second: entry.second,
                paused_at: entry.paused_at.clone(),
                since: entry.since,
            });
        }
    }

    /// Makes the job wait from now on. Its GPUs were given back before.
    fn stop(&mut self, now: Ns, job: JobId) {
        if let Some(entry) = self.jobs.get_mut(&job) {
            entry.count(now);
            entry.since = now;
            entry.places = Vec::new();
            entry.unbooked = false;
            entry.second = false;
            self.running.remove(&job);
            self.waits(now, job);
        }
    }

    /// Running jobs in the order, by their keys. Empty if no job makes room and none is in a second
    /// seat: then the order is not needed, and an event costs nothing for running jobs.
    fn running_in_order(&mut self, now: Ns) -> Vec<FullKey> {
        if !self.policy.preempts() && self.policy.sharing().is_none() {
            return Vec::new();
        }
        self.in_order(now, |_| true)
    }

    /// The wanted running jobs in the order, by their keys.
    fn in_order(&mut self, now: Ns, wanted: fn(&HeldJob) -> bool) -> Vec<FullKey> {
        let mut running = Vec::with_capacity(self.running.len());
        for id in &self.running {
            if let Some(entry) = self.jobs.get(id).filter(|entry| wanted(entry)) {
                running.push((self.policy.key(now, &entry.ranked(now)), entry.arrived, *id));
            }
        }
        running.sort_unstable();
        running
    }

    fn round(&mut self, now: Ns, look: bool, out: &mut Vec<ClusterDecision>) {
        let preempts = self.policy.preempts();
        let idle = self.waiting.is_empty() && !preempts && self.policy.sharing().is_none();
        let mut shifted = !self.policy.keyed();
        if !idle {
            self.unseat(now);
            self.policy.see(&self.nodes);
            let running = if self.policy.keyed() {
                shifted = self.policy.shifted();
                if shifted {
                    self.queue_anew(now);
                }
                self.running_in_order(now)
            } else {
                self.queue_by_order(now)
            };
            self.paused.clear();
            self.walk(now, &running, preempts && self.pauses);
            self.seat(now);
        }
        if look {
            self.gather(now);
            self.reseat(now);
        }
        let mut told: BTreeSet<JobId> = self.before.keys().copied().collect();
        if shifted {
            told.extend(&self.waiting);
        }
        self.tell(now, out);
        self.tell_levels(told, out);
        self.tell_routes(out);
    }

    /// Asks the policy for the order of all jobs, and keeps it as keys. Returns the running jobs.
    fn queue_by_order(&mut self, now: Ns) -> Vec<FullKey> {
        let all = self.policy.preempts() || self.policy.sharing().is_some();
        let ids: Vec<JobId> = if all {
            self.jobs.keys().copied().collect()
        } else {
            self.waiting.iter().copied().collect()
        };
        let entries = ids.iter().filter_map(|id| self.jobs.get(id));
        let ranked: Vec<RankedJob> = entries
            .filter(|entry| entry.possible)
            .map(|entry| entry.ranked(now))
            .collect();
        let order = self.policy.order(now, &ranked);
        self.queues.clear();
        let mut running = Vec::new();
        for (rank, id) in order.into_iter().enumerate() {
            let Some(entry) = self.jobs.get_mut(&id) else { continue };
            let key = (OrderKey(rank as u128, 0), entry.arrived, id);
            if entry.runs() {
                running.push(key);
            } else {
                entry.queued = Some(key);
                self.queues.entry(entry.shape()).or_default().insert(key);
            }
        }
        running
    }

    /// Walks through the order: places waiting jobs, and gives jobs in second seats GPUs of their
    /// own.
    fn walk(&mut self, now: Ns, running: &[FullKey], preempts: bool) {
        let mut heads: BTreeMap<FullKey, (GangShape, usize)> = BTreeMap::new();
        for (shape, queue) in &self.queues {
            if let Some(first) = queue.first() {
                heads.insert(*first, (*shape, 0));
            }
        }
        // GPUs that could be gained by pausing the running jobs from each position in the order on.
        let mut behind: Vec<u64> = vec![0; running.len() + 1];
        for at in (0..running.len()).rev() {
            let of = self.jobs.get(&running[at].2).filter(|entry| !entry.second);
            behind[at] = behind[at + 1] + of.map_or(0, HeldJob::milli);
        }
        let mut failed: BTreeSet<GangShape> = BTreeSet::new();
        let mut guests: Vec<FullKey> = running
            .iter()
            .filter(|key| self.second_seat(key.2))
            .rev()
            .copied()
            .collect();
        // Jobs that this round paused have their turn at their former position, and only once.
        let mut loose: BTreeSet<FullKey> = BTreeSet::new();
        loop {
            let head = heads.first_key_value().map(|(key, of)| (*key, *of));
            let guest = guests.last().copied();
            let candidates = [head.map(|(key, _)| key), guest, loose.first().copied()];
            let Some(key) = candidates.into_iter().flatten().min() else {
                break;
            };
            let after = running.partition_point(|of| *of <= key);
            if guest == Some(key) {
                guests.pop();
                self.own_seat(now, key.2, &running[after..], behind[after], preempts, &mut failed);
                self.turn_of_paused(running, &mut loose);
                continue;
            }
            if loose.remove(&key) {
                let shape = self.jobs.get(&key.2).map(HeldJob::shape);
                if self.waiting.contains(&key.2) && shape.is_none_or(|shape| !failed.contains(&shape)) {
                    self.begin_somewhere(now, key.2, &running[after..], behind[after], preempts);
                    self.turn_of_paused(running, &mut loose);
                }
                continue;
            }
            let Some((_, (shape, tries))) = heads.pop_first() else {
                break;
            };
            let mut began = false;
            // A job that ran when the round began was paused in it.
            let mut over = self.before.get(&key.2).is_some_and(|before| !before.places.is_empty());
            if !over {
                began = self.begin_somewhere(now, key.2, &running[after..], behind[after], preempts);
                self.turn_of_paused(running, &mut loose);
                if !began && self.policy.strict() {
                    break;
                }
                let spread = self
                    .jobs
                    .get(&key.2)
                    .map(|entry| self.policy.spread(now, &entry.ranked(now)));
                over = began || (spread != Some(u32::MAX) && tries < SPREAD_TRIES);
            }
            if !over {
                failed.insert(shape);
                continue;
            }
            let next = self.queues.get(&shape).and_then(|queue| {
                let after = (std::ops::Bound::Excluded(key), std::ops::Bound::Unbounded);
                queue.range(after).next().copied()
            });
            if let Some(next) = next {
                heads.insert(next, (shape, tries + usize::from(!began)));
            }
        }
    }

    /// Gives jobs that were just paused their turn in the same round.
    fn turn_of_paused(&mut self, running: &[FullKey], loose: &mut BTreeSet<FullKey>) {
        for id in std::mem::take(&mut self.paused) {
            let Some(entry) = self.jobs.get_mut(&id).filter(|entry| !entry.runs()) else {
                continue;
            };
            let Some(stood) = running.iter().find(|key| key.2 == id).copied() else {
                continue;
            };
            loose.insert(stood);
            if !self.policy.keyed() {
                entry.queued = Some(stood);
                self.queues.entry(entry.shape()).or_default().insert(stood);
            }
        }
    }

    /// Places a waiting job on free resources, or on those of others after it in the order.
    fn begin_somewhere(&mut self, now: Ns, job: JobId, after: &[FullKey], behind: u64, preempts: bool) -> bool {
        if let Some(places) = self.places_for(now, job) {
            self.begin(now, job, places, false);
            return true;
        }
        preempts && self.place_by_pausing(now, job, after, behind)
    }

    /// Takes places on free resources.
    fn places_for(&mut self, now: Ns, job: JobId) -> Option<Vec<WorkerPlace>> {
        self.look_around(job);
        let entry = self.jobs.get(&job)?;
        let spread = self.policy.spread(now, &entry.ranked(now));
        if spread == 0 {
            return None;
        }
        let ((each, workers), load) = (entry.shape(), entry.load());
        let mut places = self
            .placer
            .gang(&mut self.nodes, &self.index, &each, workers, &entry.paused_at)?;
        if nodes_of(&places).len() > spread as usize {
            self.untake(&each, &places);
            // The rule has put the gang on too many nodes: there may be room on fewer.
            places = self.placer.gang_on_few(&mut self.nodes, &self.index, &each, workers)?;
            if nodes_of(&places).len() > spread as usize {
                self.untake(&each, &places);
                return None;
            }
        }
        for place in &places {
            self.nodes[self.index[&place.node]].add_busy(place, i64::from(load));
        }
        Some(places)
    }

    /// Gives back places on which no job has begun.
    fn untake(&mut self, each: &WorkerAsk, places: &[WorkerPlace]) {
        for place in places {
            self.nodes[self.index[&place.node]].give_back(each, place);
        }
    }

    /// Passes a gang's surroundings to the placement, if it needs them.
    fn look_around(&mut self, job: JobId) {
        let Some(entry) = self.jobs.get(&job).filter(|_| self.placer.looks_around()) else {
            return;
        };
        let traffic_milli = entry.measure.traffic_milli;
        let others = self.running.iter().filter(|id| **id != job);
        let others = others.filter_map(|id| self.jobs.get(id));
        let flow = |entry: &HeldJob| {
            let links = self.links.as_ref()?;
            Flow::of(entry.job.id, entry.milli(), entry.measure, &entry.places, links)
        };
        let around = GangSurroundings {
            traffic_milli,
            links: self.links,
            flows: others.filter_map(flow).collect(),
        };
        self.placer.look_around(around);
    }

    /// Gives the job these places from now on. The nodes have booked them.
    fn begin(&mut self, now: Ns, job: JobId, places: Vec<WorkerPlace>, second: bool) {
        self.touch(job);
        self.waits_no_more(job);
        let Some(entry) = self.jobs.get_mut(&job) else { return };
        entry.count(now);
        entry.load = entry.load();
        entry.paused_at = Vec::new();
        entry.places = places;
        entry.second = second;
        entry.since = now;
        entry.counted = now;
        self.running.insert(job);
        self.begun.push(job);
    }

    /// Pauses a job whose GPUs were given back.
    fn pause(&mut self, now: Ns, job: JobId) {
        self.touch(job);
        let places = self
            .jobs
            .get(&job)
            .map(|entry| entry.places.clone())
            .unwrap_or_default();
        self.stop(now, job);
        if let Some(entry) = self.jobs.get_mut(&job) {
            entry.paused_at = places;
        }
        self.paused.push(job);
    }

    /// Places a job, and pauses jobs after it in the order as far as needed.
    fn place_by_pausing(&mut self, now: Ns, job: JobId, after: &[FullKey], behind: u64) -> bool {
        let Some(needed) = self.jobs.get(&job).map(HeldJob::milli) else {
            return false;
        };
        if after.is_empty() {
            return false;
        }
        let mut free: u64 = self.nodes.iter().map(ClusterNode::free_milli).sum();
        if free + behind < needed {
            return false;
        }
        let mut paused = Vec::new();
        let mut places = None;
        for (.., id) in after.iter().rev() {
            let Some(entry) = self.jobs.get(id).filter(|entry| entry.runs() && *id != job) else {
                continue;
            };
            if entry.measure.serves {
                continue;
            }
            if !entry.second {
                free += entry.milli();
            }
            self.give_back(*id);
            paused.push(*id);
            if free < needed {
                continue;
            }
            places = self.places_for(now, job);
            if places.is_some() {
                break;
            }
        }
        // The first of them in the order first: it continues if its GPUs were not taken.
        let rule = self.policy.sharing();
        for id in paused.into_iter().rev() {
            if self.retake(id) {
                continue;
            }
            let had = self.jobs.get(&id).filter(|entry| !entry.second);
            let had = had.map(|entry| entry.places.clone()).unwrap_or_default();
            let stays = |core: &mut Cluster| {
                let rule = rule.filter(|_| !had.is_empty())?;
                (core.may_be_second(now, id) && core.second_of(id, &had, &rule)).then_some(())
            };
            if stays(self).is_some() {
                self.begin(now, id, had, true);
            } else {
                self.pause(now, id);
            }
        }
        let began = places.is_some();
        if let Some(places) = places {
            self.begin(now, job, places, false);
        }
        began
    }

    /// Gives a job in a second seat GPUs of its own: those that it is on if they are free, others,
    /// or those of jobs after it.
    fn own_seat(
        &mut self,
        now: Ns,
        job: JobId,
        after: &[FullKey],
        behind: u64,
        preempts: bool,
        failed: &mut BTreeSet<GangShape>,
    ) {
        let Some(entry) = self.jobs.get(&job).filter(|entry| entry.second) else {
            return;
        };
        let (shape, places) = (entry.shape(), entry.places.clone());
        self.touch(job);
        self.give_back(job);
        if let Some(entry) = self.jobs.get_mut(&job) {
            entry.count(now);
            entry.second = false;
        }
        if self.retake(job) {
            self.begin(now, job, places, false);
            return;
        }
        if !failed.contains(&shape) {
            // It counts as waiting, so that it prefers the nodes that it is on.
            if let Some(entry) = self.jobs.get_mut(&job) {
                entry.paused_at = std::mem::take(&mut entry.places);
            }
            if self.begin_somewhere(now, job, after, behind, preempts) {
                return;
            }
            failed.insert(shape);
            if let Some(entry) = self.jobs.get_mut(&job) {
                entry.places = std::mem::take(&mut entry.paused_at);
            }
        }
        if let Some(entry) = self.jobs.get_mut(&job) {
            entry.second = true;
        }
        if !self.retake(job) {
            // Another job took the CPU that it had.
            self.pause(now, job);
        }
    }

    /// Pauses jobs in second seats that may not be there.
    fn unseat(&mut self, now: Ns) {
        if self.policy.sharing().is_none() {
            return;
        }
        let guests = self.running.iter().copied().filter(|id| self.second_seat(*id));
        let guests: Vec<JobId> = guests.collect();
        let leave: Vec<JobId> = guests.into_iter().filter(|id| !self.may_be_second(now, *id)).collect();
        for id in leave {
            self.give_back(id);
            self.pause(now, id);
        }
    }

    /// Whether this job may have a second seat: it takes whole GPUs, and answers no requests.
    fn may_be_second(&mut self, now: Ns, job: JobId) -> bool {
        let Some(entry) = self.jobs.get(&job) else { return false };
        let whole = entry.each.gpus > 0 && !entry.each.shares();
        whole && !entry.measure.serves && self.policy.seconds(&entry.ranked(now))
    }

    /// Gives second seats to waiting jobs. An engine that starts jobs by itself has none.
    fn seat(&mut self, now: Ns) {
        let Some(rule) = self.policy.sharing().filter(|_| !self.advises) else {
            return;
        };
        let mut first: Vec<FullKey> = Vec::new();
        for queue in self.queues.values() {
            first.extend(queue.iter().take(SEAT_TRIES));
        }
        first.sort_unstable();
        let mut failed: BTreeSet<(GangShape, u32)> = BTreeSet::new();
        for (.., id) in first.into_iter().take(SEAT_TRIES) {
            let Some(entry) = self.jobs.get(&id) else { continue };
            let shape = (entry.shape(), entry.load());
            if !self.may_be_second(now, id) {
                continue;
            }
            let had = self
                .before
                .get(&id)
                .map(|before| before.places.clone())
                .unwrap_or_default();
            let places = if !had.is_empty() && self.second_of(id, &had, &rule) {
                Some(had)
            } else if failed.contains(&shape) {
                None
            } else {
                self.second_anywhere(id, &rule)
            };
            match places {
                Some(places) => self.begin(now, id, places, true),
                None => {
                    failed.insert(shape);
                }
            }
        }
    }

    /// Takes the second seat of exactly these places.
    fn second_of(&mut self, job: JobId, places: &[WorkerPlace], rule: &SharingRule) -> bool {
        let Some(entry) = self.jobs.get(&job) else { return false };
        let (ask, load) = (entry.each, entry.load());
        for (taken, place) in places.iter().enumerate() {
            let node = self.index.get(&place.node).map(|at| &mut self.nodes[*at]);
            let took = node.is_some_and(|node| {
                let seats = node.seats(rule.most_host_milli, rule.most_load_milli, load);
                let seats: Vec<u16> = seats.collect();
                place.gpus.iter().all(|gpu| seats.contains(gpu)) && node.take_second(&ask, place, load)
            });
            if !took {
                self.leave_seconds(&ask, &places[..taken]);
                return false;
            }
        }
        true
    }

    fn leave_seconds(&mut self, ask: &WorkerAsk, places: &[WorkerPlace]) {
        for place in places {
            self.nodes[self.index[&place.node]].give_back_second(ask, place);
        }
    }

    /// Load of the busiest GPU of these, thousandths.
    fn busiest(&self, places: &[WorkerPlace]) -> u32 {
        let busy = |place: &WorkerPlace| {
            let node = self.index.get(&place.node).map(|at| &self.nodes[*at]);
            let each = place
                .gpus
                .iter()
                .filter_map(|gpu| node.map(|node| node.busy_milli(usize::from(*gpu))));
            each.max()
        };
        places.iter().filter_map(busy).max().unwrap_or(0)
    }

    /// Moves jobs in second seats to GPUs that are less busy, if that is worth a move.
    fn reseat(&mut self, now: Ns) {
        let Some((rule, gain)) = self.policy.sharing().zip(self.policy.moves_seats()) else {
            return;
        };
        for (.., id) in self.in_order(now, |entry| entry.second) {
            let before = self.busiest(self.places(id));
            if before < gain {
                continue;
            }
            self.give_back(id);
            match self.second_anywhere(id, &rule) {
                Some(places) if self.busiest(&places) + gain <= before => {
                    self.pause(now, id);
                    self.begin(now, id, places, true);
                }
                found => {
                    let ask = self.jobs.get(&id).map(|entry| entry.each);
                    if let Some((ask, places)) = ask.zip(found) {
                        self.leave_seconds(&ask, &places);
                    }
                    self.retake(id);
                }
            }
        }
    }

    /// Takes the second seats of the least busy GPUs, wherever they are.
    fn second_least_busy(&mut self, job: JobId, rule: &SharingRule) -> Option<Vec<WorkerPlace>> {
        let entry = self.jobs.get(&job)?;
        let (ask, load, workers) = (entry.each, entry.load(), entry.job.workers as usize);
        // Each worker's seat, by the busiest of its GPUs.
        let mut seats: Vec<(u32, usize, Vec<u16>)> = Vec::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let mut gpus: Vec<u16> = node.seats(rule.most_host_milli, rule.most_load_milli, load).collect();
            gpus.sort_by_key(|gpu| (node.busy_milli(usize::from(*gpu)), *gpu));
            let room = |have: u32, each: u32| have.checked_div(each).unwrap_or(u32::MAX) as usize;
            let most = room(node.cpu_milli, ask.cpu_milli).min(room(node.memory_mib, ask.memory_mib));
            for gpus in gpus.chunks_exact(ask.gpus.max(1) as usize).take(most) {
                let busy = gpus.iter().map(|gpu| node.busy_milli(usize::from(*gpu))).max();
                seats.push((busy.unwrap_or(0), at, gpus.to_vec()));
            }
        }
        if seats.len() < workers {
            return None;
        }
        seats.sort_unstable();
        seats.truncate(workers);
        // Workers on one node follow each other.
        seats.sort_unstable_by_key(|(busy, at, _)| (*at, *busy));
        let mut places = Vec::with_capacity(workers);
        for (_, at, gpus) in seats {
            let place = WorkerPlace {
                node: self.nodes[at].id,
                gpus,
            };
            if !self.nodes[at].take_second(&ask, &place, load) {
                self.leave_seconds(&ask, &places);
                return None;
            }
            places.push(place);
        }
        Some(places)
    }

    /// Takes second seats for a gang. A gang that sends goes on few nodes. The least busy seats
    /// come first.
    fn second_anywhere(&mut self, job: JobId, rule: &SharingRule) -> Option<Vec<WorkerPlace>> {
        let entry = self.jobs.get(&job)?;
        if entry.measure.traffic_milli == 0 && self.policy.moves_seats().is_some() {
            return self.second_least_busy(job, rule);
        }
        let (ask, load, workers) = (entry.each, entry.load(), entry.job.workers);
        let wanted = ask.gpus as usize;
        let most = wanted * workers as usize;
        let mut places: Vec<WorkerPlace> = Vec::new();
        while places.len() < workers as usize {
            let mut best: Option<(usize, std::cmp::Reverse<u32>, usize, Vec<u16>)> = None;
            for (at, node) in self.nodes.iter().enumerate() {
                if node.cpu_milli < ask.cpu_milli || node.memory_mib < ask.memory_mib {
                    continue;
                }
                let seats = node.seats(rule.most_host_milli, rule.most_load_milli, load);
                let mut seats: Vec<u16> = seats.collect();
                if seats.len() < wanted {
                    continue;
                }
                seats.sort_by_key(|gpu| (node.busy_milli(usize::from(*gpu)), *gpu));
                let count = seats.len().min(most - places.len() * wanted);
                let busy = seats[..count]
                    .iter()
                    .map(|gpu| node.busy_milli(usize::from(*gpu)))
                    .max();
                let score = (count, std::cmp::Reverse(busy.unwrap_or(0)));
                if best.as_ref().is_none_or(|(count, busy, ..)| score > (*count, *busy)) {
                    seats.truncate(wanted);
                    best = Some((score.0, score.1, at, seats));
                }
            }
            let place = best.map(|(.., at, gpus)| {
                (
                    at,
                    WorkerPlace {
                        node: self.nodes[at].id,
                        gpus,
                    },
                )
            });
            let Some((at, place)) = place else {
                self.leave_seconds(&ask, &places);
                return None;
            };
            self.nodes[at].take_second(&ask, &place, load);
            places.push(place);
        }
        Some(places)
    }

    /// Moves one gang that the policy wants on fewer nodes.
    fn gather(&mut self, now: Ns) {
        let spread = |entry: &&HeldJob| !entry.second && entry.job.workers > 1 && entry.places.len() > 1;
        let entries = self.running.iter().filter_map(|id| self.jobs.get(id)).filter(spread);
        let wanted = entries.filter(|entry| self.policy.moves(now, &entry.ranked(now)));
        let wanted: Vec<JobId> = wanted.map(|entry| entry.job.id).collect();
        for id in wanted {
            let Some(entry) = self.jobs.get_mut(&id) else { continue };
            let had = nodes_of(&entry.places).len();
            let (shape, kept) = (entry.shape(), entry.places.clone());
            self.give_back(id);
            self.look_around(id);
            let found = self.placer.gang(&mut self.nodes, &self.index, &shape.0, shape.1, &[]);
            if let Some(places) = &found {
                self.untake(&shape.0, places);
            }
            match found.filter(|places| nodes_of(places).len() < had) {
                Some(places) => {
                    self.pause(now, id);
                    if let Some(entry) = self.jobs.get_mut(&id) {
                        entry.paused_at = Vec::new();
                        entry.places = places.clone();
                    }
                    self.retake(id);
                    self.begin(now, id, places, false);
                    return;
                }
                None => {
                    debug_assert!(!kept.is_empty());
                    self.retake(id);
                }
            }
        }
    }

    /// Reports the changes of the round: pauses, then beginnings.
    fn tell(&mut self, now: Ns, out: &mut Vec<ClusterDecision>) {
        let nodes = |places: &[WorkerPlace]| places.iter().map(NodeId::of).collect::<Vec<NodeId>>();
        let mut before = std::mem::take(&mut self.before);
        before.retain(|id, before| {
            let Some(entry) = self.jobs.get_mut(id) else {
                return false;
            };
            if before.places == entry.places {
                if before.second == entry.second {
                    entry.since = before.since;
                }
                if !entry.runs() {
                    entry.paused_at = std::mem::take(&mut before.paused_at);
                }
                return false;
            }
            if !entry.runs() {
                // Wherever else it was in this round, it never ran there.
                entry.paused_at = before.places.clone();
            }
            if !before.places.is_empty() {
                out.push(ClusterDecision::Pause(*id));
            }
            true
        });
        for id in std::mem::take(&mut self.begun) {
            let Some(before) = before.remove(&id) else { continue };
            let Some(entry) = self.jobs.get_mut(&id).filter(|entry| entry.runs()) else {
                continue;
            };
            entry.since = now;
            let paused = before.places.is_empty();
            let was = if paused { &before.paused_at } else { &before.places };
            out.push(if was.is_empty() {
                ClusterDecision::Start(id, entry.places.clone())
            } else if nodes(was) == nodes(&entry.places) {
                ClusterDecision::Resume(id, entry.places.clone())
            } else {
                ClusterDecision::Move(id, entry.places.clone())
            });
        }
    }

    /// Reports changed priorities of these jobs. If the policy moves levels by itself, also those
    /// of the running jobs.
    fn tell_levels(&mut self, mut told: BTreeSet<JobId>, out: &mut Vec<ClusterDecision>) {
        let beside = self.policy.sharing().and_then(|rule| rule.level);
        if self.policy.levels_move() {
            told.extend(&self.running);
        }
        let mut changed = Vec::new();
        for id in &told {
            let Some(entry) = self.jobs.get(id).filter(|entry| entry.possible) else {
                continue;
            };
            let own = self.policy.level(*id);
            let level = beside.filter(|_| entry.second).unwrap_or(own);
            if entry.level != level {
                changed.push((*id, level));
            }
        }
        for (id, level) in changed {
            if let Some(entry) = self.jobs.get_mut(&id) {
                entry.level = level;
            }
            out.push(ClusterDecision::Priority(id, level));
        }
    }

    /// Reports changed routes of flows.
    fn tell_routes(&mut self, out: &mut Vec<ClusterDecision>) {
        let Some(links) = self.links else { return };
        let running = self.running.iter().filter_map(|id| self.jobs.get(id));
        let flow = |entry: &HeldJob| Flow::of(entry.job.id, entry.milli(), entry.measure, &entry.places, &links);
        let flows: Vec<Flow> = running.filter_map(flow).collect();
        let mut routes: BTreeMap<JobId, FlowRoute> = BTreeMap::new();
        if !flows.is_empty() {
            routes = self.policy.routes(&flows, &links).into_iter().collect();
        }
        for (job, route) in &routes {
            if self.routes.get(job) != Some(route) {
                out.push(ClusterDecision::Route(*job, *route));
            }
        }
        self.routes = routes;
    }
}

/// Nodes of these places, each once.
fn nodes_of(places: &[WorkerPlace]) -> BTreeSet<NodeId> {
    places.iter().map(NodeId::of).collect()
}

impl NodeId {
    fn of(place: &WorkerPlace) -> NodeId {
        place.node
    }
}
