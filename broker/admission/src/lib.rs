// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decides which job may take device memory, and when. A pure state machine: events and the time go
//! in, decisions come out; no clock, thread or socket.
//!
//! A *job* is one process or a gang of them, admitted together. Its *need* is the memory it is
//! expected to take. Its *share* is the memory with which it was admitted and the memory granted
//! since. A *waiter* is not admitted yet. A higher *priority* (a lower number) always goes first;
//! the rules apply within one priority.
//!
//! # The rule of policy `weft`
//!
//! 1. Other jobs may pass a waiter until it is *due*:
//!
//!    ```text
//!    patience = clamp(expected, shortest_patience, longest_patience)
//!    leeway   = max(0, longest_run / doubt - 1.5 * (fits_at - now))
//!    due      = min(max(arrived + patience, fifo_begin + min(leeway, patience)),
//!                   arrived + max(longest_wait, patience))
//!    ```
//!
//!    `fifo_begin`: when the fifo shadow ([`fifo_shadow`]) began the job, infinite before.
//!    `longest_run`: the longest expected run of a running job. `fits_at`: when the job is expected
//!    to fit. During the leeway a job passes if `expected <= longest_run`, or under rule 3.
//! 2. The due job with the smallest turn goes before all others:
//!
//!    ```text
//!    turn     = arrived + handicap
//!    handicap = min(waiting * shortest_patience / 4 / weight, longest_patience)
//!    ```
//!
//!    `waiting` counts its user's waiters when it arrived.
//! 3. If that job does not fit, it gets a reservation on the device on which it is expected to fit
//!    first. That time is its *promise* and never moves. Another job starts there only if
//!
//!    ```text
//!    now + doubt * expected <= promise   or   both fit with the load left at the promise
//!    ```
//!
//! 4. All other jobs, due or not, start as they fit, in ascending order of
//!
//!    ```text
//!    (floor(log4(expected)), recent usage of the user / weight, arrival)
//!    ```
//!
//! **The bound**: once a job is due, later jobs pass it only as its reservation allows:
//!
//! ```text
//! wait <= wait under fifo + patience + handicap + longest run admitted before
//! ```
//!
//! Times are expected ones. Overruns beyond twice the estimate and grants of memory add to them,
//! and the two orders pack differently. A user's many jobs are passed by other users' jobs only
//! within their handicaps.
//!
//! # Invariants
//!
//! * Admitted and granted memory fits the device. The memory of managed jobs also fits the link and
//!   the host ([`Load::fits`]). Only facts exceed it: jobs found running after a restart, and
//!   strangers.
//! * A share never shrinks for another job, if the job declared its need. Others may take the
//!   bytes that an undeclared job does not hold ([`undeclared`]), and those above the request of
//!   a job with a limit ([`lent`]). Such a job never has more than its limit.
//! * A job is admitted once. A waiter stays until it is admitted or refused, or withdraws. A job is
//!   refused only if an empty device could not run it.
//! * A device with unmeasured contexts takes jobs one by one, so that each context is known first.
//! * A running job waits for more memory only while a neighbour runs that does not wait itself. If
//!   all jobs would wait for one another, the last is denied ([`growing`]).
//! * A suspended job that took nothing blocks no other job. It waits again and keeps its turn.
//! * A user's jobs never exceed the user's cap ([`caps`]). Other users do not wait for it.
//! * A job with auto backing gets managed memory only if device memory would not be admitted now.
//!   Its backing never changes.
#![forbid(unsafe_code)]

mod caps;
mod config;
mod custom_order;
mod event;
mod fair_share;
mod fifo_shadow;
mod forecast;
mod growing;
mod held_bytes;
mod lent;
mod load;
mod model;
mod need;
mod order;
mod place;
mod saved;
mod state;
mod sums;
#[cfg(test)]
mod tests;
mod undeclared;
mod under_caps;

pub use caps::{CapLack, UserCap};
pub use config::{AdmissionConfig, AdmissionPolicy};
pub use custom_order::{CustomOrder, WaiterFit, Waiters};
pub use event::{Ask, Decision, Event, Never};
pub use forecast::Expectation;
pub use lent::RoomNeed;
pub use load::{Lack, Load};
pub use model::{AdmissionView, RunningView, WaiterView};
pub use need::{Backing, Device, DeviceId, DurationClass, Job, Need, User};
pub use place::{Candidate, Placement};
pub use saved::SavedState;
pub use state::Admission;
