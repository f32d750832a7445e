//! Who may take device memory, and when: a pure state machine. Events and the time go in, decisions
//! come out. No clock, no thread, no socket.
//!
//! The same machine runs in the daemon (real time) and in the lab (virtual time).
//!
//! # Words
//!
//! A *job* is what one person started: one process or a gang of them (ranks, workers), admitted as
//! one. Its *need* is what it is expected to take; its *share* what it may have: the memory it was
//! admitted with, and what it was granted since. A *waiter* is a job that asked and was not
//! admitted yet. Jobs of a higher *priority* (a lower number) go first, always; what follows is
//! said of jobs of one priority.
//!
//! # The rule of policy `weft`
//!
//! 1. A job may be passed by others for as long as it is itself expected to run, but for no less
//!    than [`Config::shortest_patience`] and no more than [`Config::longest_patience`]; and in any
//!    case until it would have begun under plain order (`fifo`, played along in [`plain`]), but for
//!    no longer than [`Config::longest_wait`]. Then its turn has come: it is *due*. Where what runs
//!    leaves sooner than the bound below allows for, its turn comes later than plain order's by
//!    what is left of that, by no more than its patience; who is to run longer than anything that
//!    runs does not pass it meanwhile, but as 3. says.
//! 2. Of the due jobs one is first: who came first, where a user's further job counts as having
//!    come a little later for each of his that waited already, by weight ([`Config::handicap`]; an
//!    hour at most). It goes before all others.
//! 3. If it does not fit, it has a reservation on the device where it is expected to fit soonest;
//!    that time is its *promise* and never moves. From then on another job starts there only if
//!    both fit beside what is expected to be left at that time, or if it ends before the promise
//!    though it should run [`Config::doubt`] times as long as expected.
//! 4. All others, due or not: those that are expected to be short before those that are not (by
//!    powers of four), then the user who had least of late for his weight, then who came first.
//!    Whoever fits starts.
//!
//! **The bound**: once due, a job is passed by nobody who came after its turn, but for what is let
//! in beside the reservation; so it is to wait no longer than under `fifo` and its patience, its
//! handicap and the longest run of what was let in before. Those are expected times: what overruns
//! them (twice its estimate is reckoned with) or is granted more memory delays it by that much
//! more, and the two orders pack differently. Where nothing comes to an end for long, short jobs go
//! first meanwhile and nobody begins later than under `fifo` for that. Fairness among users who
//! wait is bounded likewise: many jobs at once of one user are passed by what others bring within
//! their handicaps; what is brought later waits for those as under `fifo`, but for what fits
//! beside.
//!
//! # What holds
//!
//! * What is admitted and granted fits the device at every moment ([`Load::fits`]): plain memory
//!   and contexts, and for managed jobs also the link and the host's memory. Only facts may exceed
//!   it: jobs found running after a restart, memory that others than weft's jobs took.
//! * A running job's share is never made smaller for another one.
//! * A job is admitted once. A waiter is admitted, refused or withdrawn by itself: none is
//!   forgotten.
//! * A device whose contexts were never measured takes jobs one by one, so that what their contexts
//!   take is known before the next one is let in.
//! * Who runs and wants more waits for it only while somebody runs beside it who does not wait
//!   himself; of jobs that would all wait for one another the last gets no for an answer. Meanwhile
//!   nobody begins on the device who would make that wait longer, but for no longer than
//!   [`Config::guard`] in an hour of one user's ([`growing`]).
//! * A job that was let in, took nothing and is suspended holds up nobody: it waits again, and has
//!   its turn when it goes on.
//! * A job that leaves its backing open is on managed memory only where its own would not be let in
//!   now, and is never moved from one to the other ([`either`]).
//! * Only a job that could not run on an empty device either is refused.
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
