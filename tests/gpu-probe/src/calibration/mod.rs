// SPDX-License-Identifier: MIT OR Apache-2.0
//! The probes that calibrate the simulated GPU, a file each.
//!
//! Values for a calibration file have the names of `tests/simgpu/calibration/keys.toml`; the others
//! are for people.
#![forbid(unsafe_code)]

pub mod about;
pub mod alloc;
pub mod context;
pub mod copy;
pub mod cupti;
pub mod event;
pub mod fault;
pub mod launch;
pub mod managed;
pub mod memset;
pub mod prefetch;
pub mod spacing;
pub mod stream_write;
pub mod switch;
mod turns;
