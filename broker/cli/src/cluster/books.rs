// SPDX-License-Identifier: MIT OR Apache-2.0
//! Translation of Slurm's state into events of the cluster core, and of the core's advice into an
//! order and pauses. Pure.
//!
//! Slurm places jobs and checks CPUs and memory, so the core gets only GPUs. A shard is a part of
//! one GPU. A gang is a job's nodes, each with the same GPUs.

use std::collections::{BTreeMap, BTreeSet};

use weft_cluster::placement::{PlacementRule, Placer};
use weft_cluster::policies::ClusterPolicy;
use weft_cluster::{
    Cluster, ClusterDecision, ClusterEvent, ClusterJob, ClusterNode, JobId, NodeId, Ns, TenantId, WHOLE_GPU_MILLI,
    WorkerAsk, WorkerPlace,
};

use super::slurm::{self, QueuedJob, SlurmNode, SlurmState};

const SECOND_NS: Ns = 1_000_000_000;
/// Placeholder for a node that the core does not know.
const ELSEWHERE: NodeId = NodeId(u32::MAX);

/// Advice of the policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Advice {
    /// Waiting jobs in the order in which they should start.
    pub order: Vec<u64>,
    /// Jobs that should make room, each with the job that gets the room.
    pub pauses: Vec<(u64, u64)>,
}

/// The core, and the state of Slurm that it has received.
#[derive(Debug)]
pub struct QueueBooks {
    core: Cluster,
    nodes: BTreeMap<String, KnownNode>,
    /// Jobs, with the start time of their run.
    jobs: BTreeMap<u64, u64>,
    /// Whether the rest of a run follows from the time limit: then run time counts, not GPU time.
    by_limit: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct KnownNode {
    id: NodeId,
    gpus: u32,
    shards: u32,
    there: bool,
}

impl QueueBooks {
    pub fn new(policy: Box<dyn ClusterPolicy>, pauses: bool) -> QueueBooks {
        let by_limit = policy.name() == "shortest-remaining";
        let mut core = Cluster::for_engine(policy, Placer::new(PlacementRule::Packing));
        core.set_pausing(pauses);
        QueueBooks {
            core,
            nodes: BTreeMap::new(),
            jobs: BTreeMap::new(),
            by_limit,
        }
    }

    /// Longest interval at which the policy wants to be asked, ns.
    pub fn look_every(&self) -> Option<Ns> {
        self.core.look_every()
    }

    /// Takes Slurm's state at `now`, seconds since 1970, and the GPU time by job and user, ns. The
    /// caller passes only jobs and nodes that the policy manages.
    pub fn look(
        &mut self,
        now: u64,
        jobs: &[QueuedJob],
        nodes: &[SlurmNode],
        worked: &BTreeMap<(u64, u32), Ns>,
    ) -> Advice {
        let now = now * SECOND_NS;
        self.take_nodes(now, jobs, nodes);
        let there: BTreeMap<u64, &QueuedJob> = jobs
            .iter()
            .filter(|job| job.state != SlurmState::Gone)
            .map(|job| (job.id, job))
            .collect();
        let gone: Vec<u64> = self.jobs.keys().filter(|id| !there.contains_key(id)).copied().collect();
        for id in gone {
            self.jobs.remove(&id);
            self.tell(now, ClusterEvent::Ended(JobId(id)));
        }
        // By arrival, because some policies number arrivals.
        let mut news: Vec<&QueuedJob> = there.into_values().collect();
        news.sort_by_key(|job| (job.submitted, job.id));
        for job in news {
            self.take_job(now, job, worked.get(&(job.id, job.uid)).copied());
        }
        self.advice(now, jobs)
    }

    fn tell(&mut self, now: Ns, event: ClusterEvent) {
        // The only decision of an event is to refuse a job; the core then ignores that job.
        self.core.handle(now, event, &mut Vec::new());
    }

    fn take_nodes(&mut self, now: Ns, jobs: &[QueuedJob], nodes: &[SlurmNode]) {
        let busy: BTreeSet<&str> = jobs
            .iter()
            .filter(|job| job.state == SlurmState::Runs)
            .flat_map(|job| job.placed.iter().map(|(node, _)| node.as_str()))
            .collect();
        let mut seen = BTreeSet::new();
        for node in nodes {
            seen.insert(node.name.clone());
            let there = node.takes || (node.up && busy.contains(node.name.as_str()));
            let next = NodeId(self.nodes.len() as u32);
            let before = self.nodes.get(&node.name).cloned();
            let known = KnownNode {
                id: before.as_ref().map_or(next, |known| known.id),
                gpus: node.gpus,
                shards: node.shards,
                there,
            };
            if before.as_ref() == Some(&known) {
                continue;
            }
            self.nodes.insert(node.name.clone(), known.clone());
            if before.is_some_and(|before| before.there) {
                self.tell(now, ClusterEvent::NodeDown(known.id));
            }
            if there {
                let up = ClusterNode::new(known.id, u32::MAX, u32::MAX, known.gpus as usize);
                self.tell(now, ClusterEvent::NodeUp(up));
            }
        }
        let lost: Vec<NodeId> = self
            .nodes
            .iter_mut()
            .filter(|(name, known)| known.there && !seen.contains(*name))
            .map(|(_, known)| {
                known.there = false;
                known.id
            })
            .collect();
        for id in lost {
            self.tell(now, ClusterEvent::NodeDown(id));
        }
    }

    fn take_job(&mut self, now: Ns, job: &QueuedJob, worked: Option<Ns>) {
        let id = JobId(job.id);
        let known = self.jobs.contains_key(&job.id);
        if !known {
            if job.state == SlurmState::Barred {
                return;
            }
            self.jobs.insert(job.id, 0);
            let submitted = ClusterJob {
                id,
                tenant: TenantId(job.uid),
                workers: job.nodes,
                each: self.ask(job),
                expected: job.limit_min.map(|minutes| minutes * 60 * SECOND_NS),
            };
            self.tell(job.submitted * SECOND_NS, ClusterEvent::Submitted(submitted));
        }
        let runs = !self.core.places(id).is_empty();
        let began = self.jobs.get(&job.id).copied();
        match job.state {
            SlurmState::Runs if !runs || began != Some(job.started) => {
                self.tell(now, ClusterEvent::Stopped(id));
                let since = (job.started * SECOND_NS).min(now);
                self.tell(now, ClusterEvent::Began(id, self.places(job), since));
                self.jobs.insert(job.id, job.started);
            }
            SlurmState::Waits | SlurmState::Barred if runs => self.tell(now, ClusterEvent::Stopped(id)),
            _ => {}
        }
        if let Some(worked) = worked.filter(|_| !self.by_limit) {
            let gpus = u64::from(job.nodes) * u64::from(job.gpus.max(1));
            self.tell(now, ClusterEvent::Attained(id, worked / gpus));
        }
    }

    /// Resources that each node of a job gives it.
    fn ask(&self, job: &QueuedJob) -> WorkerAsk {
        let shards_of_a_gpu = self
            .nodes
            .values()
            .map(|node| node.shards.checked_div(node.gpus).unwrap_or(0))
            .max();
        let part = u64::from(job.shards) * u64::from(WHOLE_GPU_MILLI);
        let part = part.div_ceil(u64::from(shards_of_a_gpu.unwrap_or(0).max(1)));
        let (gpus, gpu_milli) = match job.gpus {
            0 => (1, part.clamp(1, u64::from(WHOLE_GPU_MILLI)) as u32),
            gpus => (gpus, WHOLE_GPU_MILLI),
        };
        WorkerAsk {
            cpu_milli: 0,
            memory_mib: 0,
            gpus,
            gpu_milli,
        }
    }

    /// Places of a job's workers as Slurm chose them. Never empty.
    fn places(&self, job: &QueuedJob) -> Vec<WorkerPlace> {
        let place = |(node, has): &(String, String)| WorkerPlace {
            node: self.nodes.get(node).map_or(ELSEWHERE, |known| known.id),
            gpus: slurm::indexes(has),
        };
        let mut places: Vec<WorkerPlace> = job.placed.iter().map(place).collect();
        if places.is_empty() {
            places.push(WorkerPlace {
                node: ELSEWHERE,
                gpus: Vec::new(),
            });
        }
        places
    }

    fn advice(&mut self, now: Ns, jobs: &[QueuedJob]) -> Advice {
        let state: BTreeMap<u64, SlurmState> = jobs.iter().map(|job| (job.id, job.state)).collect();
        let waits = |id: u64| state.get(&id) == Some(&SlurmState::Waits);
        let mut decisions = Vec::new();
        let order = self.core.advise(now, &mut decisions);
        let order = order.into_iter().map(|job| job.0).filter(|id| waits(*id)).collect();
        let mut pauses = Vec::new();
        let mut paused = Vec::new();
        for decision in decisions {
            match decision {
                ClusterDecision::Pause(job) => paused.push(job.0),
                ClusterDecision::Start(job, _) | ClusterDecision::Resume(job, _) | ClusterDecision::Move(job, _) => {
                    // Room is useless for a job that cannot start now.
                    let of = |paused| (paused, job.0);
                    pauses.extend(paused.drain(..).filter(|_| waits(job.0)).map(of));
                }
                _ => {}
            }
        }
        Advice { order, pauses }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_cluster::policies;

    fn node(name: &str, gpus: u32) -> SlurmNode {
        SlurmNode {
            name: name.to_string(),
            gpus,
            shards: gpus * 80,
            up: true,
            takes: true,
            ..SlurmNode::default()
        }
    }

    fn waits(id: u64, limit_min: u64) -> QueuedJob {
        QueuedJob {
            id,
            called: id.to_string(),
            uid: 1_000,
            submitted: 100,
            limit_min: Some(limit_min),
            nodes: 1,
            gpus: 1,
            priority: 50,
            ..QueuedJob::default()
        }
    }

    fn runs(id: u64, limit_min: u64, gpu: u16) -> QueuedJob {
        QueuedJob {
            state: SlurmState::Runs,
            started: 110,
            placed: vec![("n1".to_string(), format!("gpu:sim:1(IDX:{gpu})"))],
            ..waits(id, limit_min)
        }
    }

    fn books(policy: &str, pauses: bool) -> QueueBooks {
        QueueBooks::new(policies::named(policy).unwrap(), pauses)
    }

    fn look(books: &mut QueueBooks, now: u64, jobs: &[QueuedJob]) -> Advice {
        books.look(now, jobs, &[node("n1", 2)], &BTreeMap::new())
    }

    #[test]
    fn jobs_that_wait_are_ordered_by_the_policy() {
        let jobs = [waits(1, 30), waits(2, 10), waits(3, 20)];
        assert_eq!(look(&mut books("fifo", false), 120, &jobs).order, [1, 2, 3]);
        assert_eq!(
            look(&mut books("shortest-remaining", false), 120, &jobs).order,
            [2, 3, 1]
        );
    }

    #[test]
    fn a_job_makes_room_only_where_that_is_allowed_and_helps() {
        let mut jobs = vec![runs(1, 60, 0), runs(2, 50, 1), waits(3, 10)];
        let mut mild = books("shortest-remaining", false);
        let advice = look(&mut mild, 120, &jobs);
        assert_eq!((advice.order, advice.pauses), (vec![3], vec![]));
        let mut strong = books("shortest-remaining", true);
        let advice = look(&mut strong, 120, &jobs);
        assert_eq!(advice.pauses, [(1, 3)]);
        // Job 1 counts as running until Slurm reports it as waiting, which takes a moment.
        assert_eq!(look(&mut strong, 121, &jobs).pauses, [(1, 3)]);
        jobs[0] = QueuedJob {
            state: SlurmState::Barred,
            ..waits(1, 60)
        };
        jobs[2] = runs(3, 10, 0);
        assert_eq!(look(&mut strong, 122, &jobs), Advice::default());
        // An ended job leaves room, and job 1 is next.
        jobs.pop();
        jobs[0].state = SlurmState::Waits;
        assert_eq!(look(&mut strong, 123, &jobs).order, [1]);
    }

    #[test]
    fn attained_service_is_what_gpus_worked_where_that_is_known() {
        // By the clock the jobs are half a Tiresias limit apart; by measured GPU time, beyond it.
        let mut books = books("tiresias", false);
        let jobs = [runs(1, 600, 0), waits(2, 600), waits(3, 600)];
        assert_eq!(look(&mut books, 200, &jobs).order, [2, 3]);
        let requeued = [waits(1, 600), waits(2, 600), waits(3, 600)];
        assert_eq!(look(&mut books, 210, &requeued).order, [1, 2, 3]);
        let worked = BTreeMap::from([((1, 1_000), 4_000 * SECOND_NS)]);
        let advice = books.look(220, &requeued, &[node("n1", 2)], &worked);
        assert_eq!(advice.order, [2, 3, 1]);
    }

    #[test]
    fn tenants_are_users() {
        let mut jobs: Vec<QueuedJob> = (1..=6).map(|id| waits(id, 10)).collect();
        for job in &mut jobs[4..] {
            job.uid = 1_001;
        }
        assert_eq!(look(&mut books("astraea", false), 120, &jobs).order, [1, 5, 2, 6, 3, 4]);
    }

    #[test]
    fn nodes_come_and_go_and_jobs_that_run_stay_known() {
        let mut books = books("shortest-remaining", true);
        let jobs = [runs(1, 60, 0), waits(2, 10)];
        // A GPU is free: Slurm will use it, so no job makes room.
        assert_eq!(look(&mut books, 120, &jobs).pauses, []);
        let drained = SlurmNode {
            takes: false,
            ..node("n1", 2)
        };
        books.look(121, &jobs, &[drained], &BTreeMap::new());
        books.look(122, &jobs, &[], &BTreeMap::new());
        let advice = look(&mut books, 123, &jobs);
        assert_eq!((advice.order, advice.pauses), (vec![2], vec![]));
        // One job more than the core has room for: it runs anyway, and pausing it frees nothing.
        let crowded = [runs(1, 60, 0), runs(3, 60, 0), runs(4, 60, 1), waits(2, 10)];
        let advice = look(&mut books, 124, &crowded);
        assert_eq!(advice.order, [2]);
        assert_eq!(advice.pauses.len(), 1);
    }

    #[test]
    fn shards_are_parts_of_a_gpu() {
        let part = |id, shards| QueuedJob {
            gpus: 0,
            shards,
            ..waits(id, 10)
        };
        let mut books = books("fifo", false);
        look(&mut books, 120, &[part(1, 40), part(2, 1), part(3, 200)]);
        assert_eq!(books.ask(&part(1, 40)).gpu_milli, 500);
        assert_eq!(books.ask(&part(2, 1)).gpu_milli, 13);
        assert_eq!(books.ask(&part(3, 200)).gpu_milli, 1_000);
    }
}
