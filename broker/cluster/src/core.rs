//! The state machine: nodes, jobs, and the round after each event.

mod engine;

use std::collections::{BTreeMap, BTreeSet};

use crate::Ns;
use crate::event::{ClusterDecision, ClusterEvent};
use crate::job::{ClusterJob, JobId, WorkerAsk};
use crate::node::{ClusterNode, NodeId, WorkerPlace};
use crate::placement::Placer;
use crate::policies::{ClusterPolicy, RankedJob};

/// One job.
#[derive(Debug, Clone)]
struct HeldJob {
    job: ClusterJob,
    /// What each worker is given: the policy may give more than was asked for.
    each: WorkerAsk,
    arrived: Ns,
    /// Empty while it waits.
    places: Vec<WorkerPlace>,
    /// Where it was when it was paused, empty if it must start anew.
    paused_at: Vec<WorkerPlace>,
    /// Since when it runs, or waits.
    since: Ns,
    /// How long it ran before that.
    ran: Ns,
    done_ppm: u32,
    level: u8,
    /// The empty cluster could run it.
    possible: bool,
    /// Its engine has put it where the books have no room: they do not count it.
    unbooked: bool,
    /// The run time that counts as attained service, where the engine measured it.
    attained: Option<Ns>,
}

impl HeldJob {
    fn runs(&self) -> bool {
        !self.places.is_empty()
    }

    fn ranked(&self, now: Ns) -> RankedJob {
        let lately = now.saturating_sub(self.since);
        RankedJob {
            id: self.job.id,
            tenant: self.job.tenant,
            gpu_milli: u64::from(self.job.workers) * self.each.total_milli(),
            arrived: self.arrived,
            running: self.runs(),
            lately,
            ran: self.attained.unwrap_or(self.ran + if self.runs() { lately } else { 0 }),
            expected: self.job.expected,
            done_ppm: self.done_ppm,
        }
    }
}

/// The cluster under one policy and one placement.
#[derive(Debug)]
pub struct Cluster {
    policy: Box<dyn ClusterPolicy>,
    placer: Placer,
    /// In the order in which they came: of equal nodes the first is taken.
    nodes: Vec<ClusterNode>,
    /// What the nodes have when they are empty, by the same index.
    empty: Vec<ClusterNode>,
    index: BTreeMap<NodeId, usize>,
    jobs: BTreeMap<JobId, HeldJob>,
    waiting: BTreeSet<JobId>,
    /// An engine starts jobs by itself, and asks for advice.
    advises: bool,
    /// Jobs that run make room, where the policy preempts.
    pauses: bool,
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
        }
    }

    /// Takes an event. Decisions are appended.
    pub fn handle(&mut self, now: Ns, event: ClusterEvent, out: &mut Vec<ClusterDecision>) {
        match event {
            ClusterEvent::NodeUp(node) => self.node_up(node),
            ClusterEvent::NodeDown(node) => self.node_down(now, node, out),
            ClusterEvent::Submitted(job) => {
                if !self.submitted(now, job, out) {
                    return;
                }
            }
            ClusterEvent::Ended(job) => self.ended(now, job),
            ClusterEvent::Progress(job, done_ppm) => {
                if let Some(entry) = self.jobs.get_mut(&job) {
                    entry.done_ppm = entry.done_ppm.max(done_ppm.min(1_000_000));
                }
                return;
            }
            ClusterEvent::Began(job, places, since) => self.began(job, places, since),
            ClusterEvent::Stopped(job) => self.stopped(now, job),
            ClusterEvent::Attained(job, ran) => return self.attained(job, ran),
            ClusterEvent::Look => {}
        }
        if !self.advises {
            self.round(now, out);
        }
    }

    /// How often the core wants [`ClusterEvent::Look`], ns.
    pub fn look_every(&self) -> Option<Ns> {
        self.policy.look_every()
    }

    /// The nodes with what is free of them, in the order in which they came.
    pub fn nodes(&self) -> &[ClusterNode] {
        &self.nodes
    }

    /// Where a job runs, empty if it does not.
    pub fn places(&self, job: JobId) -> &[WorkerPlace] {
        self.jobs.get(&job).map_or(&[], |entry| &entry.places)
    }

    /// Jobs that wait for GPUs.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn node_up(&mut self, node: ClusterNode) {
        if self.index.contains_key(&node.id) {
            return;
        }
        self.index.insert(node.id, self.nodes.len());
        self.empty.push(node.clone());
        self.nodes.push(node);
        self.look_whether_possible();
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
            self.release(now, id);
            out.push(ClusterDecision::Requeue(id));
        }
        for entry in self.jobs.values_mut().filter(|entry| on(&entry.paused_at)) {
            entry.paused_at = Vec::new();
        }
        self.nodes.remove(gone);
        self.empty.remove(gone);
        self.index = self.nodes.iter().enumerate().map(|(at, node)| (node.id, at)).collect();
        self.placer.forget_nodes();
        self.look_whether_possible();
    }

    /// Whether it waits now.
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
            since: now,
            ran: 0,
            done_ppm: 0,
            level: self.policy.level(job.id),
            possible: self.possible(&each, job.workers),
            unbooked: false,
            attained: None,
        };
        self.jobs.insert(job.id, entry);
        self.waiting.insert(job.id);
        true
    }

    fn ended(&mut self, now: Ns, job: JobId) {
        self.give_back(job);
        self.waiting.remove(&job);
        if let Some(entry) = self.jobs.remove(&job) {
            self.policy.ended(&entry.ranked(now));
        }
    }

    /// Whether an empty cluster runs so many of these workers. They are equal, so it is enough to
    /// count how many each node takes.
    fn possible(&self, each: &WorkerAsk, workers: u32) -> bool {
        let mut left = workers;
        self.empty.iter().any(|node| {
            left = left.saturating_sub(node.room(each));
            left == 0
        })
    }

    fn look_whether_possible(&mut self) {
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
    }

    /// The job's GPUs are free again; its account is as it was.
    fn give_back(&mut self, job: JobId) {
        let Some(entry) = self.jobs.get(&job).filter(|entry| !entry.unbooked) else {
            return;
        };
        for place in &entry.places {
            if let Some(at) = self.index.get(&place.node) {
                self.nodes[*at].give_back(&entry.each, place);
            }
        }
    }

    /// The job's GPUs are taken again. All of them are free, or none is taken.
    fn retake(&mut self, job: JobId) -> bool {
        let Some(entry) = self.jobs.get(&job) else { return false };
        if entry.unbooked {
            return true;
        }
        let mut taken = Vec::new();
        for place in &entry.places {
            let node = self.index.get(&place.node).map(|at| &mut self.nodes[*at]);
            if !node.is_some_and(|node| node.retake(&entry.each, place)) {
                for place in taken {
                    self.nodes[self.index[&NodeId::of(place)]].give_back(&entry.each, place);
                }
                return false;
            }
            taken.push(place);
        }
        true
    }

    /// The job waits from now on.
    fn release(&mut self, now: Ns, job: JobId) {
        self.give_back(job);
        self.stop(now, job);
    }

    fn stop(&mut self, now: Ns, job: JobId) {
        if let Some(entry) = self.jobs.get_mut(&job) {
            entry.ran += now.saturating_sub(entry.since);
            entry.since = now;
            entry.places = Vec::new();
            entry.unbooked = false;
            self.waiting.insert(job);
        }
    }

    fn round(&mut self, now: Ns, out: &mut Vec<ClusterDecision>) {
        let preempts = self.policy.preempts();
        if self.waiting.is_empty() && !preempts {
            return;
        }
        let ranked: Vec<RankedJob> = if preempts {
            self.jobs
                .values()
                .filter(|entry| entry.possible)
                .map(|entry| entry.ranked(now))
                .collect()
        } else {
            let entries = self.waiting.iter().filter_map(|id| self.jobs.get(id));
            entries
                .filter(|entry| entry.possible)
                .map(|entry| entry.ranked(now))
                .collect()
        };
        let order = self.policy.order(now, &ranked);
        for (rank, id) in order.iter().enumerate() {
            if !self.waiting.contains(id) {
                continue;
            }
            let pauses = preempts && self.pauses;
            let began =
                self.place(now, *id, out) || (pauses && self.place_by_pausing(now, *id, &order[rank + 1..], out));
            if !began && self.policy.strict() {
                break;
            }
        }
        for id in order {
            let level = self.policy.level(id);
            if let Some(entry) = self.jobs.get_mut(&id).filter(|entry| entry.level != level) {
                entry.level = level;
                out.push(ClusterDecision::Priority(id, level));
            }
        }
    }

    /// Places a job on what is free.
    fn place(&mut self, now: Ns, job: JobId, out: &mut Vec<ClusterDecision>) -> bool {
        let Some(entry) = self.jobs.get(&job) else { return false };
        let Some(places) = self.placer.gang(
            &mut self.nodes,
            &self.index,
            &entry.each,
            entry.job.workers,
            &entry.paused_at,
        ) else {
            return false;
        };
        self.begin(now, job, places, out);
        true
    }

    fn begin(&mut self, now: Ns, job: JobId, places: Vec<WorkerPlace>, out: &mut Vec<ClusterDecision>) {
        let Some(entry) = self.jobs.get_mut(&job) else { return };
        let nodes = |places: &[WorkerPlace]| places.iter().map(NodeId::of).collect::<Vec<NodeId>>();
        out.push(if entry.paused_at.is_empty() {
            ClusterDecision::Start(job, places.clone())
        } else if nodes(&entry.paused_at) == nodes(&places) {
            ClusterDecision::Resume(job, places.clone())
        } else {
            ClusterDecision::Move(job, places.clone())
        });
        entry.paused_at = Vec::new();
        entry.places = places;
        entry.since = now;
        self.waiting.remove(&job);
    }

    /// Places a job, with jobs after it in the order paused as far as that is needed.
    fn place_by_pausing(&mut self, now: Ns, job: JobId, after: &[JobId], out: &mut Vec<ClusterDecision>) -> bool {
        let running: Vec<JobId> = after
            .iter()
            .copied()
            .filter(|id| self.jobs.get(id).is_some_and(HeldJob::runs))
            .collect();
        let milli = |entry: &HeldJob| u64::from(entry.job.workers) * entry.each.total_milli();
        let Some(needed) = self.jobs.get(&job).map(milli) else {
            return false;
        };
        let mut free: u64 = self.nodes.iter().map(ClusterNode::free_milli).sum();
        let mut paused = Vec::new();
        let mut places = None;
        for id in running.iter().rev() {
            free += self.jobs.get(id).map_or(0, milli);
            self.give_back(*id);
            paused.push(*id);
            if free < needed {
                continue;
            }
            let Some(entry) = self.jobs.get(&job) else { break };
            places = self.placer.gang(
                &mut self.nodes,
                &self.index,
                &entry.each,
                entry.job.workers,
                &entry.paused_at,
            );
            if places.is_some() {
                break;
            }
        }
        // The best of them first: it goes on if what it has was not taken.
        for id in paused.into_iter().rev() {
            if self.retake(id) {
                continue;
            }
            let places = self.jobs.get(&id).map(|entry| entry.places.clone()).unwrap_or_default();
            self.stop(now, id);
            if let Some(entry) = self.jobs.get_mut(&id) {
                entry.paused_at = places;
            }
            out.push(ClusterDecision::Pause(id));
        }
        let began = places.is_some();
        if let Some(places) = places {
            self.begin(now, job, places, out);
        }
        began
    }
}

impl NodeId {
    fn of(place: &WorkerPlace) -> NodeId {
        place.node
    }
}
