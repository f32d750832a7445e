//! What weft did for each job: what it had of the GPU, what it lost, what it cost and won.
//!
//! ```text
//! scheduler thread --- a client came, or ended with its last figures ---> outcome thread
//!        ^------------- a look, once a second while jobs share ---------------'   |
//!                                                                                 v
//!                                                    status, end lines, history (disk)
//! ```
//!
//! The scheduler thread answers a look and sends two messages a job; it waits for nothing here. All
//! else is the outcome thread's, and the disk is another thread's ([`super::history`]).
//!
//! | file | holds |
//! | --- | --- |
//! | `book` | the sums of each client, interval by interval; pure |
//! | `carried` | what clients had at earlier brokers; pure |
//! | `recorder` | the time of each attached job, in intervals of bounded number; pure |
//! | `warning` | where protection does not work; pure |
//! | `thread` | messages, looks, answers |
#![forbid(unsafe_code)]

mod book;
mod carried;
mod recorder;
mod thread;
mod warning;

pub use self::thread::{OutcomeHandle, OutcomeMessage, OutcomeReport, OutcomeSettings, start};
