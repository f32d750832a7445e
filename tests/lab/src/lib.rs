// SPDX-License-Identifier: MIT OR Apache-2.0
//! The laboratory: several jobs share one GPU in virtual time, under any policy, and are measured.
//!
//! * [`weft_player`] plays the jobs. Their traces are recorded or [`generate`]d. The launch control
//!   is one of: none; weft; a [`policy`] (the rules of other projects, for comparison).
//! * [`measure`]: the figures of a run; [`bound`]: the most work that the device's time allows;
//!   [`oracle`]: the most work that fits into gaps, kernel by kernel; [`why`]: the causes of
//!   unfilled gap time.
//! * [`together`]: the engine in which kernels share SMs, compared with hardware.
//! * [`calibrated`]: the device, by a calibration file.
//! * [`scenario`]: runs as TOML files; [`pairs`]: the large set behind `scripts/lab`; [`aims`]: the
//!   figures that weft must reach; [`report`]: results for people.
//! * [`seeds`]: a figure over several seeds, and its interval.
//! * [`promise`]: promises to users: a slowdown, an SLO, the time of a token.
//!
//! Invariant: a scenario and a seed determine a run. The same two give the same result to the last
//! nanosecond, on any machine.
#![forbid(unsafe_code)]

pub mod admission;
pub mod aims;
pub mod bound;
pub mod calibrated;
pub mod compare;
pub mod foresight;
pub mod generate;
pub mod measure;
pub mod measured;
pub mod memory;
pub mod oracle;
pub mod pairs;
pub mod policy;
pub mod promise;
pub mod report;
pub mod rule;
pub mod scenario;
pub mod seeds;
pub mod speed;
pub mod together;
pub mod why;

pub use weft_player::Ns;

/// A microsecond.
pub const US: Ns = 1_000;
/// A millisecond.
pub const MS: Ns = 1_000_000;
