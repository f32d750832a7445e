// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plays traces of jobs that share one GPU, in virtual time, under weft or another rule.
//!
//! A run takes jobs, a device, a rule and a seed, and returns each job's request latencies, its
//! finished work, and all that the device ran. It reads no file, prints nothing, and has no clock.
//!
//! * A [`PlayedJob`] is a [`Program`] (the work of a trace, [`weft_trace_format::Trace`]) with a
//!   priority, [`ArrivalPattern`] of its requests, and weft's profile of it ([`ProfileSource`]).
//! * The device is the engine's ([`weft_engine::Settings`]): jobs share it by time slices, under
//!   MPS kernel by kernel, or under MPS on shared SMs. [`Hosts`] are the speed of the host.
//! * The rule is a [`LaunchControl`]: the device's own sharing, weft, or a [`rule::PlayedRule`].
//!   weft is the real gate (`weft_gate`) and the real core of the broker (`weft_scheduler`).
//! * [`MachineSetup::play`] returns a [`MachineRun`]. Equal setups give equal runs, to the
//!   nanosecond, on any machine.
//!
//! A service of 20 kernels of 50 us, with a batch job that launches kernels of 200 us all the time:
//!
//! ```
//! use std::sync::Arc;
//!
//! use weft_engine::Settings;
//! use weft_kernel_id::KernelId;
//! use weft_player::{LaunchControl, MachineRun, MachineSetup, PlayError, PlayedJob, Program};
//! use weft_scheduler::Config;
//! use weft_trace_format::{AwaitedWork, Call, Operation, Step, Trace, TracedKernel};
//!
//! /// A request of this many launches of one kernel, and a wait for the last.
//! fn trace(name: &str, launches: usize, duration: u64, think: u64) -> Trace {
//!     let call = |call| Operation { thread: 0, handed_over: false, host_before: 1_000, call };
//!     let launch = call(Call::Launch { kernel: 0, stream: 0, duration });
//!     let mut operations = vec![launch; launches];
//!     operations.push(call(Call::Sync(AwaitedWork::All)));
//!     Trace {
//!         name: name.to_string(),
//!         launch_cost: 5_000,
//!         kernels: vec![TracedKernel::of(KernelId::new(1, name, [1, 1, 1], [256, 1, 1], 0))],
//!         steps: vec![Step { think, operations }],
//!         ..Trace::default()
//!     }
//! }
//!
//! fn play(control: LaunchControl, batch: bool) -> Result<MachineRun, PlayError> {
//!     let job = |trace: &Trace, priority| -> Result<PlayedJob, PlayError> {
//!         Ok(PlayedJob::new(&trace.name, priority, Arc::new(Program::of(trace)?)))
//!     };
//!     let mut jobs = vec![job(&trace("service", 20, 50_000, 5_000_000), 0)?];
//!     if batch {
//!         jobs.push(job(&trace("batch", 10, 200_000, 0), 5)?);
//!     }
//!     let setup = MachineSetup::new(Settings::default(), control, jobs, 1);
//!     MachineSetup { requests: 100, ..setup }.play()
//! }
//!
//! let mean = |run: &MachineRun| {
//!     let latencies = &run.jobs[0].latencies;
//!     latencies.iter().sum::<u64>() / latencies.len() as u64
//! };
//! let device = Settings::default();
//! let alone = play(LaunchControl::Plain, false)?;
//! let shared = play(LaunchControl::Plain, true)?;
//! let weft = play(LaunchControl::weft(Config::default(), &device, 1.0), true)?;
//! assert!(2 * mean(&shared) > 3 * mean(&alone));
//! assert!(5 * mean(&weft) < 6 * mean(&alone));
//! assert!(2 * weft.jobs[1].compute > weft.span);
//! # Ok::<(), PlayError>(())
//! ```
#![forbid(unsafe_code)]

mod cost;
mod error;
pub mod job;
mod play;
pub mod rule;
mod world;

pub use error::{MAX_JOBS, PlayError};
pub use job::{ArrivalPattern, Jitter, PlayedJob, ProfileSource, Program};
pub use play::{PROFILE_REQUESTS, solo_profile};
pub use weft_protocol::Ns;
pub use world::{
    DEFER_NS, HeldReason, Hosts, JobRun, KernelPiece, LaunchControl, MAX_RUN_NS, MachineRun, MachineSetup,
    SYNC_RETURN_NS, Stand, StandChange, TokenTime,
};

/// A microsecond.
const US: Ns = 1_000;
/// A millisecond.
const MS: Ns = 1_000_000;
