// SPDX-License-Identifier: MIT OR Apache-2.0
//! Outcome of each job under weft: its GPU time, its losses, its cost to other jobs, its gain.
//!
//! ```text
//! scheduler thread --- a client attached, or ended, with its figures ---> outcome thread
//!        ^----------- asks for a snapshot once a second while jobs share -----'   |
//!                                                                                 v
//!                                                    status, end lines, history (disk)
//! ```
//!
//! The scheduler thread answers requests for snapshots and sends two messages a job; it never waits
//! for the outcome thread. The outcome thread does the rest, except that the history's thread
//! writes to the disk ([`super::history`]).
//!
//! | file | holds |
//! | --- | --- |
//! | `book` | the sums of each client, interval by interval; pure |
//! | `carried` | the sums of clients at earlier brokers; pure |
//! | `recorder` | the time of each attached job, in intervals of bounded number; pure |
//! | `warning` | reasons why protection does not work; pure |
//! | `thread` | messages, snapshots, answers |
#![forbid(unsafe_code)]

mod book;
mod carried;
mod recorder;
mod thread;
mod warning;

pub use self::thread::{OutcomeHandle, OutcomeMessage, OutcomeReport, OutcomeSettings, start};
