// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decides which job gets which GPUs of a cluster, and when. A pure state machine above the node's
//! brokers: events and the time go in, decisions come out; no clock, thread, file or socket.
//!
//! A *job* is a *gang* of equal workers, placed together. A worker takes CPU, memory and GPUs of
//! one node: whole GPUs, or a part of one. Two rules are exchangeable:
//!
//! * a *policy* ([`policies`]) decides in which order jobs get GPUs, and whether a running job
//!   makes room for one before it;
//! * a *placement* ([`placement`]) decides which node and GPU a worker gets.
//!
//! # The round
//!
//! Each event that may change which jobs run is followed by one round:
//!
//! 1. The policy orders the waiting jobs. If it preempts, it orders the running jobs too.
//! 2. In that order each waiting job is placed on free resources, all its workers or none. A paused
//!    job is resumed on its former nodes, if it fits there.
//! 3. If it does not fit and the policy preempts, running jobs after it in the order are paused,
//!    the last first, until it fits. Those whose GPUs were not needed continue. If it still does
//!    not fit, all continue.
//! 4. If it does not fit and the policy is strict, the round ends: no later job passes it.
//! 5. If the policy shares GPUs ([`policies::SharingRule`]), jobs that still wait get *second
//!    seats* in the same order, on GPUs that others hold and do not keep busy. A job that was just
//!    paused keeps its own GPUs in this way, if it can. A job in a second seat still has its turn.
//!    It gets GPUs of its own if there are some, preferably those that it is on.
//!
//! The decisions are the difference that the round made: first all pauses, then all beginnings.
//!
//! A *keyed* policy gives each job's position in the order. Waiting jobs are then kept in that
//! order from one round to the next, grouped by their requests. If one does not fit, none of its
//! equals is tried. So the cost of a round depends on the running jobs, and not on the waiting
//! ones.
//!
//! # Invariants
//!
//! * No GPU, CPU or memory is given beyond the node's resources, and no GPU has two second seats.
//! * A gang runs with all its workers or with none.
//! * A waiting job is never forgotten: it is started, refused, or still waits. Under a strict
//!   policy only a job that the empty cluster could not run is passed by.
//! * The same events give the same decisions. Chance is a seed ([`weft_random::Random`]).
#![forbid(unsafe_code)]

mod core;
mod event;
mod job;
mod links;
mod node;
pub mod placement;
pub mod policies;
#[cfg(test)]
mod tests;

pub use core::Cluster;
pub use event::{ClusterDecision, ClusterEvent};
pub use job::{ClusterJob, JobId, JobMeasure, TenantId, WHOLE_GPU_MILLI, WorkerAsk};
pub use links::{ClusterLinks, Flow, FlowRoute};
pub use node::{ClusterNode, NodeId, WorkerPlace};

/// A time or a duration in nanoseconds.
pub type Ns = u64;
