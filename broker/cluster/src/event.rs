// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events that the core takes in, and its decisions.

use crate::Ns;
use crate::job::{ClusterJob, JobId, JobMeasure};
use crate::links::{ClusterLinks, FlowRoute};
use crate::node::{ClusterNode, NodeId, WorkerPlace};

/// Event of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterEvent {
    /// A node came, empty. A known node stays as it is.
    NodeUp(ClusterNode),
    /// A node is gone, with all jobs that ran there.
    NodeDown(NodeId),
    /// A job came. A known number changes nothing.
    Submitted(ClusterJob),
    /// A job ended, or was withdrawn before it ran.
    Ended(JobId),
    /// Part of its work that a job has done, millionths, as the node's broker counts its steps.
    Progress(JobId, u32),
    /// The engine has begun a job by itself, at this time, on these places. Places for which the
    /// core had no room count for the job, but not for the node.
    Began(JobId, Vec<WorkerPlace>, Ns),
    /// The engine has taken a job's GPUs from it: the job waits.
    Stopped(JobId),
    /// Run time that counts as the job's attained service, ns: its GPUs' measured work.
    Attained(JobId, Ns),
    /// The node's broker measured a job. For a job that is yet to come, this is its program's
    /// measure.
    Measured(JobId, JobMeasure),
    /// Links between nodes. Until they are known no flow is given a path.
    Links(ClusterLinks),
    /// Time passed: the policy's [`look_every`](crate::policies::ClusterPolicy::look_every).
    Look,
}

/// Decision of the core. Carry decisions out in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterDecision {
    /// Starts a job that never ran, or that lost a node: from its beginning, or its checkpoint.
    Start(JobId, Vec<WorkerPlace>),
    /// Takes a job's GPUs from it. Its memory moves to the host, and the process stays.
    Pause(JobId),
    /// Continues a paused job, each worker on its former node.
    Resume(JobId, Vec<WorkerPlace>),
    /// Continues a paused job elsewhere. Its memory is carried there first.
    Move(JobId, Vec<WorkerPlace>),
    /// A job lost a node. It waits, and will be started anew.
    Requeue(JobId),
    /// The priority that the node's broker is to give it, 0 (the most important) to 9.
    Priority(JobId, u8),
    /// The path and the priority of a gang's traffic between leaf switches.
    Route(JobId, FlowRoute),
    /// Refuses a job whose request no GPU can meet: a part of two, more than a whole one, no
    /// workers.
    Refuse(JobId),
}
