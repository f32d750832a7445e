// SPDX-License-Identifier: MIT OR Apache-2.0
//! A caller of the core that checks each decision, and random events for it. The tests of other
//! crates' policies include this file (`#[path]`).

use super::*;

pub(super) const S: Ns = 1_000_000_000;

/// State as a caller sees it: it applies decisions in their order and knows no core.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    nodes: BTreeMap<NodeId, ClusterNode>,
    pub(super) jobs: BTreeMap<JobId, ClusterJob>,
    pub(super) running: BTreeMap<JobId, Vec<WorkerPlace>>,
    paused: BTreeMap<JobId, Vec<NodeId>>,
    /// Whether jobs may be in second seats. GPUs are then counted by [`Pair::seats_hold`].
    shares: bool,
}

impl Ledger {
    fn given(&self, job: JobId) -> WorkerAsk {
        self.jobs[&job].each
    }

    fn free(&mut self, job: JobId) -> Vec<WorkerPlace> {
        let each = self.given(job);
        let places = self.running.remove(&job).unwrap_or_default();
        for place in &places {
            if let Some(node) = self.nodes.get_mut(&place.node) {
                node.cpu_milli += each.cpu_milli;
                node.memory_mib += each.memory_mib;
                for gpu in place.gpus.iter().filter(|_| !self.shares) {
                    node.gpus[usize::from(*gpu)] += each.gpu_milli;
                }
            }
        }
        places
    }

    fn begin(&mut self, job: JobId, places: &[WorkerPlace]) {
        assert!(!self.running.contains_key(&job), "{job:?} is begun twice");
        let each = self.given(job);
        assert_eq!(
            places.len(),
            self.jobs[&job].workers as usize,
            "a gang is all or nothing"
        );
        for place in places {
            let node = self.nodes.get_mut(&place.node).expect("a node that is there");
            assert_eq!(place.gpus.len(), each.gpus as usize);
            node.cpu_milli = node
                .cpu_milli
                .checked_sub(each.cpu_milli)
                .expect("CPU is not given twice");
            node.memory_mib = node.memory_mib.checked_sub(each.memory_mib).expect("nor memory");
            for gpu in place.gpus.iter().filter(|_| !self.shares) {
                let free = &mut node.gpus[usize::from(*gpu)];
                *free = free.checked_sub(each.gpu_milli).expect("no GPU is given twice");
            }
        }
        self.running.insert(job, places.to_vec());
    }

    fn apply(&mut self, decision: &ClusterDecision) {
        let nodes = |places: &[WorkerPlace]| places.iter().map(|place| place.node).collect::<Vec<NodeId>>();
        match decision {
            ClusterDecision::Start(job, places) => {
                assert!(!self.paused.contains_key(job), "a paused job is not started anew");
                self.begin(*job, places);
            }
            ClusterDecision::Resume(job, places) => {
                assert_eq!(self.paused.remove(job).as_ref(), Some(&nodes(places)));
                self.begin(*job, places);
            }
            ClusterDecision::Move(job, places) => {
                assert_ne!(self.paused.remove(job).expect("it was paused"), nodes(places));
                self.begin(*job, places);
            }
            ClusterDecision::Pause(job) => {
                let places = self.free(*job);
                assert!(!places.is_empty(), "only what runs is paused");
                self.paused.insert(*job, nodes(&places));
            }
            ClusterDecision::Requeue(job) => assert!(!self.free(*job).is_empty()),
            ClusterDecision::Priority(_, level) => assert!(*level <= 9),
            ClusterDecision::Route(job, _) => assert!(self.running.contains_key(job)),
            ClusterDecision::Refuse(job) => {
                let refused = self.jobs.remove(job).expect("a job that was submitted");
                assert!(!refused.each.valid() || refused.workers == 0);
            }
        }
    }
}

/// The core and the ledger.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) core: Cluster,
    pub(super) ledger: Ledger,
    pub(super) now: Ns,
    pub(super) all: Vec<ClusterDecision>,
}

impl Pair {
    pub(super) fn new(policy: Box<dyn ClusterPolicy>, rule: PlacementRule) -> Pair {
        let shares = policy.sharing().is_some();
        Pair {
            core: Cluster::new(policy, Placer::new(rule)),
            ledger: Ledger {
                shares,
                ..Ledger::default()
            },
            now: 0,
            all: Vec::new(),
        }
    }

    pub(super) fn on(policy: Box<dyn ClusterPolicy>, gpus: &[usize]) -> Pair {
        let mut pair = Pair::new(policy, PlacementRule::MostFree);
        for (at, gpus) in gpus.iter().enumerate() {
            pair.event(ClusterEvent::NodeUp(ClusterNode::new(
                NodeId(at as u32),
                64_000,
                65_536,
                *gpus,
            )));
        }
        pair
    }

    pub(super) fn event(&mut self, event: ClusterEvent) -> Vec<ClusterDecision> {
        match &event {
            ClusterEvent::NodeUp(node) => {
                self.ledger.nodes.entry(node.id).or_insert_with(|| node.clone());
            }
            ClusterEvent::NodeDown(node) => {
                self.ledger.nodes.remove(node);
                self.ledger.paused.retain(|_, nodes| !nodes.contains(node));
            }
            ClusterEvent::Submitted(job) => {
                self.ledger.jobs.entry(job.id).or_insert(*job);
            }
            ClusterEvent::Ended(job) if self.ledger.jobs.contains_key(job) => {
                self.ledger.free(*job);
                self.ledger.paused.remove(job);
            }
            _ => {}
        }
        let mut out = Vec::new();
        self.core.handle(self.now, event.clone(), &mut out);
        for decision in &out {
            self.ledger.apply(decision);
        }
        if let ClusterEvent::Ended(job) = event {
            self.ledger.jobs.remove(&job);
        }
        for node in self.core.nodes() {
            let believed = &self.ledger.nodes[&node.id];
            assert_eq!(node.cpu_milli, believed.cpu_milli);
            assert!(self.ledger.shares || node.gpus == believed.gpus);
        }
        self.seats_hold();
        self.all.extend(out.iter().cloned());
        out
    }

    /// Asserts that every GPU is held once, and has at most one second seat.
    fn seats_hold(&self) {
        let mut held: BTreeMap<(NodeId, u16, bool), u32> = BTreeMap::new();
        for (job, places) in &self.ledger.running {
            assert_eq!(
                self.core.places(*job),
                &places[..],
                "{job:?} is where the decisions say"
            );
            let second = self.core.second_seat(*job);
            for place in places {
                for gpu in &place.gpus {
                    let one = if second {
                        1_000
                    } else {
                        self.ledger.given(*job).gpu_milli
                    };
                    *held.entry((place.node, *gpu, second)).or_default() += one;
                }
            }
        }
        assert!(held.values().all(|milli| *milli <= 1_000), "{held:?}");
        for node in self.core.nodes() {
            for (at, free) in node.gpus.iter().enumerate() {
                let taken = held.get(&(node.id, at as u16, false)).copied().unwrap_or(0);
                assert_eq!(free + taken, 1_000, "{:?}, GPU {at}", node.id);
            }
        }
    }

    pub(super) fn submit(&mut self, id: u64, workers: u32, gpu_milli: u32) -> Vec<ClusterDecision> {
        self.event(ClusterEvent::Submitted(job(id, workers, gpu_milli)))
    }
}

pub(super) fn ask(gpus: u32, gpu_milli: u32) -> WorkerAsk {
    WorkerAsk {
        cpu_milli: 1_000,
        memory_mib: 1_024,
        gpus,
        gpu_milli,
    }
}

pub(super) fn job(id: u64, workers: u32, gpu_milli: u32) -> ClusterJob {
    ClusterJob {
        id: JobId(id),
        tenant: TenantId(id as u32 % 3),
        workers,
        each: ask(1, gpu_milli),
        expected: Some((id % 7 + 1) * 100 * S),
    }
}

/// Event as numbers, made real against the present state.
pub(super) type Raw = (u8, u64, u32, u32, u32);

pub(super) fn raws() -> impl Strategy<Value = Vec<Raw>> {
    prop::collection::vec((0u8..12, 0u64..24, 0u32..5, 0u32..3, 1u32..=10), 1..120)
}

fn real((what, id, workers, gpus, tenths): Raw) -> ClusterEvent {
    match what {
        0 => ClusterEvent::NodeUp(ClusterNode::new(
            NodeId(id as u32 % 6),
            8_000,
            8_192,
            (workers as usize).max(1),
        )),
        1 => ClusterEvent::NodeDown(NodeId(id as u32 % 12)),
        2..=4 => ClusterEvent::Ended(JobId(id)),
        5 if gpus == 0 => ClusterEvent::Progress(JobId(id), tenths * 100_000),
        5 => ClusterEvent::Measured(
            JobId(id),
            JobMeasure {
                duty_milli: tenths * 100,
                speed_milli: 1_000 - workers * 200,
                traffic_milli: (gpus - 1) * 300,
                serves: workers == 4,
            },
        ),
        6 => ClusterEvent::Look,
        _ => {
            let gpu_milli = if gpus == 1 { tenths * 100 } else { 1_000 * gpus.min(1) };
            ClusterEvent::Submitted(ClusterJob {
                each: WorkerAsk {
                    // Sometimes memory is the scarce resource.
                    memory_mib: 512 * tenths,
                    ..ask(gpus, gpu_milli)
                },
                ..job(id, workers, 0)
            })
        }
    }
}

pub(super) fn play_under(policy: Box<dyn ClusterPolicy>, rule: PlacementRule, raws: &[Raw]) -> Pair {
    let mut pair = Pair::new(policy, rule);
    for node in 0..3 {
        pair.event(ClusterEvent::NodeUp(ClusterNode::new(NodeId(node), 8_000, 6_144, 2)));
    }
    for raw in raws {
        pair.now += u64::from(raw.4) * 40 * S;
        pair.event(real(*raw));
    }
    pair
}

/// Jobs run for as long as expected: all of them end, and no sooner than their GPUs allow.
pub(super) fn every_job_ends_under(policy: Box<dyn ClusterPolicy>, sizes: &[(u32, u32)]) {
    let name = policy.name();
    let mut pair = Pair::on(policy, &[4, 4]);
    let mut left: BTreeMap<JobId, Ns> = BTreeMap::new();
    for (id, (workers, tenths)) in sizes.iter().enumerate() {
        left.insert(JobId(id as u64), job(id as u64, 1, 100).expected.unwrap());
        pair.submit(id as u64, *workers, tenths * 100);
    }
    let work: u128 = sizes
        .iter()
        .enumerate()
        .map(|(id, (workers, tenths))| u128::from(left[&JobId(id as u64)]) * u128::from(workers * tenths))
        .sum();
    let longest: Ns = left.values().sum();
    while !left.is_empty() {
        assert!(pair.now <= longest, "{name}: {left:?} are left");
        // A second seat has gaps at best. Here it has none, so that GPUs are counted once.
        let seated = |job: &JobId| !pair.core.second_seat(*job);
        let running: Vec<JobId> = pair.ledger.running.keys().copied().filter(seated).collect();
        let next = running.iter().map(|job| left[job]).min().unwrap_or(60 * S).min(60 * S);
        pair.now += next;
        let mut done = Vec::new();
        for job in running {
            let left_now = left.get_mut(&job).unwrap();
            *left_now -= next;
            if *left_now == 0 {
                done.push(job);
            }
        }
        for job in done {
            left.remove(&job);
            pair.event(ClusterEvent::Ended(job));
        }
        pair.event(ClusterEvent::Look);
    }
    assert!(u128::from(pair.now) * 80 >= work, "{name}: faster than eight GPUs");
}
