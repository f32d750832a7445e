//! What the core is told, and what it says.

use crate::Ns;
use crate::job::{ClusterJob, JobId, JobMeasure};
use crate::links::{ClusterLinks, FlowRoute};
use crate::node::{ClusterNode, NodeId, WorkerPlace};

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterEvent {
    /// A node came, empty. A node that is known already stays as it is.
    NodeUp(ClusterNode),
    /// A node is gone, with all that ran there.
    NodeDown(NodeId),
    /// A job came. A number that is known already changes nothing.
    Submitted(ClusterJob),
    /// A job ended, or was withdrawn before it ran.
    Ended(JobId),
    /// A job did so many millionths of its work, as the node's broker counts its steps.
    Progress(JobId, u32),
    /// The engine has begun a job by itself, at this time, on these places. Those that the core had
    /// no room on count for the job, not for the node.
    Began(JobId, Vec<WorkerPlace>, Ns),
    /// The engine has taken a job's GPUs from it: the job waits.
    Stopped(JobId),
    /// So much run time counts as what a job attained, ns: what its GPUs worked for it, measured.
    Attained(JobId, Ns),
    /// The node's broker measured a job. Of one that is to come: what is known of its program.
    Measured(JobId, JobMeasure),
    /// How nodes are linked. Until it is known no flow is given a path.
    Links(ClusterLinks),
    /// Time passed: the policy's [`look_every`](crate::policies::ClusterPolicy::look_every).
    Look,
}

/// What is to be done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterDecision {
    /// Starts a job that never ran, or that lost a node: from its beginning, or its checkpoint.
    Start(JobId, Vec<WorkerPlace>),
    /// Takes its GPUs from a job. Its memory moves to the host, the process stays.
    Pause(JobId),
    /// A paused job goes on, each worker on the node that it was on.
    Resume(JobId, Vec<WorkerPlace>),
    /// A paused job goes on elsewhere: its memory is carried there first.
    Move(JobId, Vec<WorkerPlace>),
    /// A job lost a node. It waits, and will be started anew.
    Requeue(JobId),
    /// The priority that the node's broker is to give it, 0 (the most important) to 9.
    Priority(JobId, u8),
    /// The path and the priority of a gang's traffic between leaf switches.
    Route(JobId, FlowRoute),
    /// The job asks for what no GPU can be: a part of two, more than a whole one, no workers.
    Refuse(JobId),
}
