//! The gate: what decides, in the client, whether a launch may go.
//!
//! No clock, no futex, no driver: the time, the answers of the device and the shared words are
//! handed in. The interposer, the lab and the simulation drive this code, each with a device and a
//! clock of its own.
//!
//! | module | decides |
//! | --- | --- |
//! | [`charge`] | what work is charged, and whether credit covers it |
//! | [`run_ahead`] | what a run-ahead window lets go, and when a launch looks again |
//! | [`wait`] | what ends a wait at the gate, and the naps in it |
//! | [`tickets`] | in which order launches leave |
//! | [`accounts`] | how much of each stream's work has ended |
//! | [`fences`] | when a fence is due, what it tells, and what ended without one |
//! | [`active_streams`] | which streams have work, and when the process is idle |
//!
//! The words of the lane, and the steps that change them, are [`weft_protocol`]'s.
//!
//! # Where the drivers differ
//!
//! The interposer has all of it. The other two leave out or simplify:
//!
//! * Credit word: the lab keeps values of its own, and a grant there forgives a debt.
//! * Run-ahead window: in the simulation it renews credit and holds back no launch. In the lab a
//!   launch takes no credit after [`run_ahead::DEVICE_WAIT_NS`], until the broker was told.
//! * [`wait::GateWait::look`]: the lab polls before each look. It knows neither a stuck device nor
//!   a stopped broker, and a launch that a change of mode lets go is not charged.
//! * Fences while credit is plenty: the simulation has none.
//! * Streams with work: the lab tells any number apart, the interposer eight. Neither the lab nor
//!   the simulation looks at events.
//! * Tuning bursts, collectives and captures are in the interposer only.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::unreachable,
        clippy::todo,
        clippy::unimplemented,
        clippy::get_unwrap,
        clippy::string_slice
    )
)]

pub mod accounts;
pub mod active_streams;
pub mod charge;
pub mod fences;
pub mod run_ahead;
pub mod tickets;
pub mod wait;
