//! The core beside an engine that starts jobs by itself, as Slurm does.
//!
//! The engine's reports are events: what came, began, stopped and ended. They keep the books and
//! decide nothing. [`Cluster::advise`] plays a round on them and says what came of it; until the
//! engine reports that it was done, nothing counts as done.

use std::collections::BTreeMap;

use super::Cluster;
use crate::Ns;
use crate::event::ClusterDecision;
use crate::job::JobId;
use crate::node::WorkerPlace;
use crate::placement::Placer;
use crate::policies::ClusterPolicy;

impl Cluster {
    /// A cluster whose engine starts jobs by itself.
    pub fn for_engine(policy: Box<dyn ClusterPolicy>, placer: Placer) -> Cluster {
        Cluster {
            advises: true,
            ..Cluster::new(policy, placer)
        }
    }

    /// Whether jobs that run make room where the policy preempts: they do, unless told otherwise.
    /// The policy's order is the same.
    pub fn set_pausing(&mut self, pauses: bool) {
        self.pauses = pauses;
    }

    /// What is to be done now, appended, and the policy's order: that of jobs that wait, and where
    /// it preempts of those that run, too. Pauses stand before what is begun in their place.
    pub fn advise(&mut self, now: Ns, out: &mut Vec<ClusterDecision>) -> Vec<JobId> {
        let (nodes, jobs, waiting) = (self.nodes.clone(), self.jobs.clone(), self.waiting.clone());
        let order = self.round(now, out);
        let levels: BTreeMap<JobId, u8> = self.jobs.iter().map(|(id, entry)| (*id, entry.level)).collect();
        (self.nodes, self.jobs, self.waiting) = (nodes, jobs, waiting);
        for (id, level) in levels {
            if let Some(entry) = self.jobs.get_mut(&id) {
                entry.level = level;
            }
        }
        // Scores are kept by the nodes' versions, which went back.
        self.placer.forget_nodes();
        order
    }

    pub(super) fn began(&mut self, job: JobId, places: Vec<WorkerPlace>, since: Ns) {
        self.give_back(job);
        let Some(entry) = self.jobs.get_mut(&job).filter(|_| !places.is_empty()) else {
            return;
        };
        entry.places = places;
        entry.paused_at = Vec::new();
        entry.since = since;
        entry.unbooked = false;
        self.waiting.remove(&job);
        let booked = self.retake(job);
        if let Some(entry) = self.jobs.get_mut(&job) {
            entry.unbooked = !booked;
        }
    }

    pub(super) fn stopped(&mut self, now: Ns, job: JobId) {
        if self.jobs.get(&job).is_some_and(|entry| entry.runs()) {
            self.release(now, job);
        }
    }

    pub(super) fn attained(&mut self, job: JobId, ran: Ns) {
        if let Some(entry) = self.jobs.get_mut(&job) {
            entry.attained = Some(entry.attained.unwrap_or(0).max(ran));
        }
    }
}
