//! Decides which job gets which GPUs of a cluster, and when. A pure state machine above the node's
//! brokers: events and the time go in, decisions come out; no clock, thread, file or socket.
//!
//! A *job* is a *gang* of equal workers, placed together. A worker takes CPU, memory and GPUs of
//! one node: whole GPUs, or a part of one. Two rules are exchangeable:
//!
//! * a *policy* ([`policies`]) says in which order jobs get GPUs, and whether a job that runs
//!   makes room for one before it;
//! * a *placement* ([`placement`]) says which node and GPU a worker gets.
//!
//! # The round
//!
//! Each event that may change who runs is followed by one round:
//!
//! 1. The policy orders the jobs: those that wait, and those that run where it preempts.
//! 2. In that order a job that waits is placed on what is free, all its workers or none. A job that
//!    was paused is resumed on the nodes that it had, if it fits there.
//! 3. Where it does not fit and the policy preempts, running jobs after it in the order are paused,
//!    the last first, until it fits. Those whose GPUs were not needed after all go on. If it does
//!    not fit even so, all go on.
//! 4. Where it does not fit and the policy is strict, the round ends: no later job passes it.
//! 5. Where the policy shares GPUs ([`policies::SharingRule`]), jobs that still wait are given
//!    *second seats*, in the same order: on GPUs that others hold and do not keep busy. A job that
//!    was just paused keeps its own GPUs so, if it can. A job in a second seat still has its turn:
//!    it is given GPUs of its own where there are some, first of all those that it is on.
//!
//! What is decided is the difference that the round made: first all pauses, then all beginnings.
//!
//! A policy that is *keyed* says for each job where it stands. Jobs that wait are then kept in that
//! order from one round to the next, by what they ask for: where one does not fit, none of its
//! equals is tried. A round so costs what runs, not what waits.
//!
//! # What holds
//!
//! * No GPU, CPU or memory is given beyond what its node has, and no GPU has two second seats.
//! * A gang runs with all its workers or with none.
//! * A job that waits is never forgotten: it is started, refused, or waits still. Only a job that
//!   the empty cluster could not run is passed by under a strict policy.
//! * The same events give the same decisions. Chance is a seed ([`Draws`]).
#![forbid(unsafe_code)]

mod core;
mod draws;
mod event;
mod job;
pub mod learnt;
mod links;
mod node;
pub mod placement;
pub mod policies;
#[cfg(test)]
mod tests;

pub use core::Cluster;
pub use draws::Draws;
pub use event::{ClusterDecision, ClusterEvent};
pub use job::{ClusterJob, JobId, JobMeasure, TenantId, WHOLE_GPU_MILLI, WorkerAsk};
pub use links::{ClusterLinks, Flow, FlowRoute};
pub use node::{ClusterNode, NodeId, WorkerPlace};

/// A time or a duration in nanoseconds.
pub type Ns = u64;
