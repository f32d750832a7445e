// SPDX-License-Identifier: MIT OR Apache-2.0
//! The gate: the client's decision whether a launch may go.
//!
//! The code has no clock, no futex and no driver. The caller passes in the time, the device's
//! answers and the shared words. The interposer, the player of traces and the simulation drive
//! this code, each with a device and a clock of its own.
//!
//! | module | decides |
//! | --- | --- |
//! | [`charge`] | the charge for work, and whether credit covers it |
//! | [`run_ahead`] | which launches a run-ahead window admits, and when a launch looks again |
//! | [`wait`] | the end of a wait at the gate, and the naps in it |
//! | [`tickets`] | the order in which launches leave |
//! | [`accounts`] | how much of each stream's work has ended |
//! | [`fences`] | when a fence is due, which work it ends, and when work without one counts as ended |
//! | [`active_streams`] | which streams have work, and when the process is idle |
//! | [`sampling`] | which launches the device times, for the job's profile or its charges |
//!
//! The words of the lane, and the steps that change them, are [`weft_protocol`]'s.
//!
//! # Differences between the drivers
//!
//! The interposer uses all of it. The player and the simulation omit or simplify some parts:
//!
//! * Credit word: the player keeps values of its own, and a grant there forgives a debt.
//! * Run-ahead window: in the simulation it renews credit and holds back no launch. In the
//!   player a launch takes no credit from the longest wait for the device until it has reported
//!   to the broker.
//! * [`wait::GateWait::look`]: the player polls before each look. It knows neither a stuck device
//!   nor a stopped broker. A launch that goes because of a change of mode is not charged.
//! * Fences while credit is plenty: the simulation has none.
//! * Streams with work: the player distinguishes any number, the interposer eight. Neither the
//!   player nor the simulation looks at events.
//! * Tuning bursts, collectives and captures exist only in the interposer.
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
pub mod event_times;
pub mod fences;
pub mod run_ahead;
pub mod sampling;
pub mod tickets;
pub mod wait;
