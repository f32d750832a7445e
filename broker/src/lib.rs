//! The scheduler of weft: its pure core, the protocol it speaks with the interposer, the daemon and the `weft` command.
//!
//! * [`protocol`] is what both sides of the shared memory agree on. The interposer links this, [`transport`] and [`host`], and nothing else of the package.
//! * [`host`] looks how much host memory there is to spare.
//! * `core` decides. It has no clock, no thread and no socket: events and the time go in, decisions come out.
//! * `daemon` drives the core with real time and real clients.
//! * `cli` is what a person types.
//!
//! Data goes one way: `cli` -> `daemon` -> `core` -> `protocol`.
#![deny(unsafe_code)]

#[cfg(feature = "daemon")]
pub mod cli;
#[cfg(feature = "daemon")]
pub mod core;
#[cfg(feature = "daemon")]
pub mod daemon;
pub mod host;
pub mod protocol;
pub mod transport;
