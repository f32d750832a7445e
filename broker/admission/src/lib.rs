//! Decides which job may take device memory, and when. A pure state machine: events and the time go
//! in, decisions come out; no clock, thread or socket. The daemon drives it in real time, the lab
//! in virtual time.
//!
//! # Words
//!
//! A *job* is one process or a gang of them (ranks, workers), admitted together. Its *need* is the
//! memory it is expected to take; its *share* is what it was admitted with and granted since. A
//! *waiter* is a job that is not admitted yet. A higher *priority* (a lower number) always goes
//! first; the rules apply within one priority.
//!
//! # The rule of policy `weft`
//!
//! 1. Other jobs may pass a waiter until it is *due*:
//!
//!    ```text
//!    patience = clamp(expected, shortest_patience, longest_patience)
//!    leeway   = max(0, longest_run / doubt - 1.5 * (fits_at - now))
//!    due      = min(max(came + patience, fifo_begin + min(leeway, patience)),
//!                   came + max(longest_wait, patience))
//!    ```
//!
//!    `fifo_begin` is when plain order ([`plain`]) began the job, infinite before. `longest_run` is
//!    the longest expected run of the running jobs. `fits_at` is when the job is expected to fit.
//!    During the leeway a job passes if `expected <= longest_run`, or under rule 3. [`Config`] has
//!    the constants.
//! 2. The due job with the smallest turn goes before all others:
//!
//!    ```text
//!    turn     = came + handicap
//!    handicap = min(waiting * shortest_patience / 4 / weight, longest_patience)
//!    ```
//!
//!    `waiting` counts its user's waiters when it came ([`Config::handicap`]).
//! 3. If that job does not fit, it gets a reservation on the device where it is expected to fit
//!    soonest. That time is its *promise* and never moves. Another job starts there only if
//!
//!    ```text
//!    now + doubt * expected <= promise   or   both fit beside the load left at the promise
//!    ```
//!
//! 4. All other jobs, due or not, start as they fit, in ascending order of
//!
//!    ```text
//!    (floor(log4(expected)), recent usage of the user / weight, arrival)
//!    ```
//!
//! **The bound**: once a job is due, later jobs pass it only beside the reservation:
//!
//! ```text
//! wait <= wait under fifo + patience + handicap + longest run admitted before
//! ```
//!
//! Times are expected ones. Overruns (beyond twice the estimate, which is allowed for) and grants
//! of memory add to them, and the two orders pack differently. While nothing ends, short jobs go
//! first; no job begins later than under `fifo` for that. A user's many jobs are passed by other
//! users' jobs only within their handicaps; later jobs wait as under `fifo`, unless they fit
//! beside.
//!
//! # What holds
//!
//! * Admitted and granted memory always fits the device, for managed jobs also the link and the
//!   host ([`Load::fits`]). Only facts exceed it: jobs found running after a restart, and memory
//!   taken outside weft.
//! * A running job's share never shrinks for another job.
//! * A job is admitted once. A waiter stays until it is admitted or refused, or withdraws.
//! * A device with unmeasured contexts takes jobs one by one, so that each context is known before
//!   the next job.
//! * A running job waits for more memory only while a neighbour runs that does not wait itself. Of
//!   jobs that would all wait for one another the last is denied. Meanwhile no job begins that
//!   would lengthen the wait, for at most [`Config::guard`] per hour and user ([`growing`]).
//! * A job that was admitted, took nothing and is suspended blocks no other job. It waits again and
//!   keeps its turn.
//! * A job with open backing gets managed memory only if device memory would not be admitted now.
//!   It never changes between the two ([`either`]).
//! * A job is refused only if an empty device could not run it either.
#![forbid(unsafe_code)]

mod config;
mod contest;
mod either;
mod event;
mod forecast;
mod growing;
mod kept;
mod load;
mod model;
mod need;
mod order;
mod people;
mod place;
mod plain;
mod reckoned;
mod state;
#[cfg(test)]
mod tests;

pub use config::{Config, Contender, Policy};
pub use contest::{Fit, Waiters};
pub use event::{Ask, Decision, Event, Never};
pub use forecast::Expectation;
pub use kept::Kept;
pub use load::{Lack, Load};
pub use model::{RunningView, View, WaiterView};
pub use need::{Backing, Class, Device, DeviceId, Job, Need, User};
pub use place::{Candidate, Placement};
pub use state::Admission;
