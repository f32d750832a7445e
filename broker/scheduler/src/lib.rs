// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler as a pure state machine: events and the time go in, decisions come out. No clock,
//! no thread, no socket.
//!
//! The core runs in the daemon (real time), in `weft-player` and in the simulation (virtual time):
//! a failing schedule is a seed.
//!
//! # How to drive it
//!
//! 1. Read the epoch page's launch epochs, then the lanes' records (launches, idle).
//! 2. Read the lanes' reports: [`Event::Progress`], then [`Event::Holds`] and [`Event::Waits`] for
//!    each lane that reports a wait, as often as it reports it.
//! 3. Pass each to [`Core::handle`] and carry out the [`Decision`]s in their order.
//! 4. Pass [`Event::Tick`] at [`Core::next_wake`] at the latest.
//! 5. Wait as [`thread_sleep`] chooses.
//!
//! # Invariants
//!
//! * A foreground job is never made to wait. The only job on a device receives nothing but its
//!   mode.
//! * Background work out (unused credit, and work not seen to end) is at most
//!   `max(delay_bound, delay_bound / 2 + one kernel)`. Exception: a job whose own work does not end
//!   gets one more launch after each [`Config::stuck_after`].
//! * Credit is conserved: granted = issued + revoked + left, whatever a client reports.
//! * A client that is gone holds nothing.
//! * Every waiting background job gets credit in the end: by a gap, its turn, or the minimum share.
//! * Clients of the most important priority are foreground jobs. Exception: equals whose memory
//!   does not fit the device together take turns.
//!
//! # Modules
//!
//! | module | what it owns |
//! |---|---|
//! | `core` | takes in events, has the policy decide |
//! | `dispatcher`, `action` | the actions of the policy and of the core, carried out as decisions |
//! | `delay_bound` | grants within the delay bound |
//! | `state`, `client` | clients, their credit and windows, the outstanding work |
//! | `ledger` | a background job's credit |
//! | `queue` | the kernels that wait at gates |
//! | `busy_model`, `mean_times` | when a foreground job's work ends; a profile's mean times and gaps |
//! | `turn_scheduler` | long turns of equals whose memory does not fit together |
//! | `thread_sleep` | how the thread that drives the core waits until the next time |
//! | `policy` | the policies, and their interface to the core (`policy/interface.rs`) |
//!
//! # The place of a policy
//!
//! A simple policy is a file in `policy/`, such as `policy/example.rs`. One that learns is a folder
//! with its models:
//!
//! | `policy/weft/` | what it learns or computes |
//! |---|---|
//! | `mod.rs` | the rules: choice, grant, top-up |
//! | `windows.rs` | run-ahead windows |
//! | `starvation.rs` | which jobs have had too few gaps, and their parts of the minimum share |
//! | `models.rs` | how each observation updates the models |
//! | `room.rs` | how long background jobs may use the device |
//! | `stretch_model.rs` | until when background work delays no wait |
//! | `gap_model.rs` | forecasts of a foreground job's gaps |
//! | `lateness_account.rs` | lateness that background work caused a foreground job, and may cause |
//! | `kernel_time_model.rs` | how long background kernels take |
//! | `device_clock.rs` | background work on the device, by the clock |
//!
//! The core checks and books each event, then passes it to the policy (`Policy::observe`). A rule
//! that goes by other quantities needs other models and another `room.rs`. Credit, the delay bound
//! and long turns remain the core's. Each policy serves the minimum share
//! (`policy/minimum_share.rs`).
#![forbid(unsafe_code)]

mod action;
mod busy_model;
mod client;
mod config;
mod core;
mod delay_bound;
mod dispatcher;
mod event;
mod guarantee;
mod ledger;
mod mean_times;
mod policy;
mod queue;
mod snapshot;
mod state;
mod stretch_times;
mod tally;
pub mod thread_sleep;
mod turn_scheduler;

pub use self::core::Core;
pub use config::{Config, PolicyName, UnknownPolicy};
pub use event::{Decision, Event};
pub use snapshot::{ClientView, Counters, ForecastView, GapView, Snapshot, WaitView};
pub use stretch_times::{StretchHistogram, StretchTimes};
pub use tally::{Lateness, RoleTally};

pub use weft_protocol::{Client, Ns, credit::RunAheadWindow, lane::Mode};

#[cfg(test)]
mod tests;
