// SPDX-License-Identifier: MIT OR Apache-2.0
//! The core together with an engine that starts jobs by itself, as Slurm does.
//!
//! The engine reports arrivals, beginnings, stops and ends of jobs as events. They keep the books
//! and decide nothing. [`Cluster::advise`] plays a round on the books and returns its decisions. No
//! decision counts as carried out until the engine reports it.

use std::collections::BTreeMap;

use super::{Cluster, HeldJob};
use crate::Ns;
use crate::event::ClusterDecision;
use crate::job::JobId;
use crate::node::WorkerPlace;
use crate::placement::Placer;
use crate::policies::{ClusterPolicy, RankedJob};

impl Cluster {
    /// Cluster whose engine starts jobs by itself.
    pub fn for_engine(policy: Box<dyn ClusterPolicy>, placer: Placer) -> Cluster {
        Cluster {
            advises: true,
            ..Cluster::new(policy, placer)
        }
    }

    /// Sets whether running jobs make room if the policy preempts (default: yes). The policy's
    /// order is the same.
    pub fn set_pausing(&mut self, pauses: bool) {
        self.pauses = pauses;
    }

    /// Appends the decisions for now, and returns the policy's order. The order covers the waiting
    /// jobs and, if the policy preempts, the running ones. Pauses precede the jobs begun in their
    /// place.
    pub fn advise(&mut self, now: Ns, out: &mut Vec<ClusterDecision>) -> Vec<JobId> {
        // Measures move jobs in the queue, and a policy reports changed keys only once.
        if self.policy.keyed() {
            self.queue_anew(now);
        }
        let (nodes, jobs, waiting) = (self.nodes.clone(), self.jobs.clone(), self.waiting.clone());
        let (running, queues, routes) = (self.running.clone(), self.queues.clone(), self.routes.clone());
        self.round(now, false, out);
        let levels: BTreeMap<JobId, u8> = self.jobs.iter().map(|(id, entry)| (*id, entry.level)).collect();
        (self.nodes, self.jobs, self.waiting) = (nodes, jobs, waiting);
        (self.running, self.queues, self.routes) = (running, queues, routes);
        self.before.clear();
        self.begun.clear();
        self.paused.clear();
        for (id, level) in levels {
            if let Some(entry) = self.jobs.get_mut(&id) {
                entry.level = level;
            }
        }
        // Scores are kept by the nodes' versions, which went back.
        self.placer.forget_nodes();
        // After the round, because a policy may count requests for the order, as it renews leases.
        let preempts = self.policy.preempts();
        let asked = |entry: &&HeldJob| entry.possible && (preempts || !entry.runs());
        let entries = self.jobs.values().filter(asked);
        let ranked: Vec<RankedJob> = entries.map(|entry| entry.ranked(now)).collect();
        self.policy.order(now, &ranked)
    }

    pub(super) fn began(&mut self, job: JobId, places: Vec<WorkerPlace>, since: Ns) {
        if places.is_empty() {
            return;
        }
        self.give_back(job);
        self.waits_no_more(job);
        let Some(entry) = self.jobs.get_mut(&job) else { return };
        entry.places = places;
        entry.paused_at = Vec::new();
        entry.second = false;
        entry.since = since;
        entry.counted = since;
        entry.unbooked = false;
        self.running.insert(job);
        let booked = self.retake(job);
        if let Some(entry) = self.jobs.get_mut(&job) {
            entry.unbooked = !booked;
        }
    }

    pub(super) fn stopped(&mut self, now: Ns, job: JobId) {
        if self.jobs.get(&job).is_some_and(|entry| entry.runs()) {
            self.give_back(job);
            self.stop(now, job);
        }
    }

    pub(super) fn attained(&mut self, job: JobId, ran: Ns) {
        if let Some(entry) = self.jobs.get_mut(&job) {
            entry.attained = Some(entry.attained.unwrap_or(0).max(ran));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::PlacementRule;
    use crate::policies::{self, OrderKey};
    use crate::{ClusterEvent, ClusterJob, ClusterNode, NodeId, TenantId, WHOLE_GPU_MILLI, WorkerAsk};

    const S: Ns = 1_000_000_000;

    /// The least service first.
    #[derive(Debug)]
    struct ByService;

    impl ClusterPolicy for ByService {
        fn name(&self) -> &'static str {
            "by-service"
        }

        fn key(&mut self, _now: Ns, job: &RankedJob) -> OrderKey {
            OrderKey(job.service(), 0)
        }
    }

    fn cluster(policy: &str) -> Cluster {
        under(policies::named(policy).unwrap())
    }

    fn under(policy: Box<dyn ClusterPolicy>) -> Cluster {
        let mut core = Cluster::for_engine(policy, Placer::new(PlacementRule::BestFit));
        core.handle(
            0,
            ClusterEvent::NodeUp(ClusterNode::new(NodeId(0), 8, 8, 1)),
            &mut Vec::new(),
        );
        core
    }

    fn tell(core: &mut Cluster, now: Ns, event: ClusterEvent) {
        let mut out = Vec::new();
        core.handle(now, event, &mut out);
        assert_eq!(out, [], "an event decides nothing");
    }

    fn come(core: &mut Cluster, now: Ns, id: u64, expected: Ns) {
        let each = WorkerAsk {
            cpu_milli: 1,
            memory_mib: 1,
            gpus: 1,
            gpu_milli: WHOLE_GPU_MILLI,
        };
        let job = ClusterJob {
            id: JobId(id),
            tenant: TenantId(0),
            workers: 1,
            each,
            expected: Some(expected),
        };
        tell(core, now, ClusterEvent::Submitted(job));
    }

    fn place() -> Vec<WorkerPlace> {
        vec![WorkerPlace {
            node: NodeId(0),
            gpus: vec![0],
        }]
    }

    #[test]
    fn advice_is_repeated_until_the_engine_reports() {
        let mut core = cluster("shortest-remaining");
        come(&mut core, 0, 1, 50 * S);
        come(&mut core, 0, 2, 20 * S);
        for _ in 0..3 {
            let mut out = Vec::new();
            assert_eq!(core.advise(S, &mut out), [JobId(2), JobId(1)]);
            assert_eq!(out, [ClusterDecision::Start(JobId(2), place())]);
        }
        // The engine began the other job.
        tell(&mut core, S, ClusterEvent::Began(JobId(1), place(), S));
        let mut out = Vec::new();
        core.advise(2 * S, &mut out);
        assert_eq!(
            out,
            [
                ClusterDecision::Pause(JobId(1)),
                ClusterDecision::Start(JobId(2), place())
            ]
        );
        core.set_pausing(false);
        out.clear();
        assert_eq!(core.advise(2 * S, &mut out), [JobId(2), JobId(1)]);
        assert_eq!(out, []);
        tell(&mut core, 3 * S, ClusterEvent::Stopped(JobId(1)));
        assert_eq!((core.waiting(), core.nodes()[0].whole()), (2, 1));
    }

    #[test]
    fn a_job_beyond_what_there_is_counts_for_itself_alone() {
        let mut core = cluster("fifo");
        come(&mut core, 0, 1, 50 * S);
        come(&mut core, 0, 2, 20 * S);
        tell(&mut core, S, ClusterEvent::Began(JobId(1), place(), S));
        tell(&mut core, S, ClusterEvent::Began(JobId(2), place(), S));
        assert_eq!((core.waiting(), core.nodes()[0].whole()), (0, 0));
        tell(&mut core, S, ClusterEvent::Ended(JobId(2)));
        assert_eq!(core.nodes()[0].whole(), 0);
        tell(&mut core, S, ClusterEvent::Ended(JobId(1)));
        assert_eq!(core.nodes()[0].whole(), 1);
    }

    #[test]
    fn measured_service_goes_before_the_clock() {
        let mut core = under(Box::new(ByService));
        come(&mut core, 0, 1, 50 * S);
        come(&mut core, 0, 2, 50 * S);
        let order = |core: &mut Cluster| core.advise(500 * S, &mut Vec::new());
        assert_eq!(order(&mut core), [JobId(1), JobId(2)]);
        tell(&mut core, S, ClusterEvent::Attained(JobId(1), 400 * S));
        assert_eq!(order(&mut core), [JobId(2), JobId(1)]);
    }
}
