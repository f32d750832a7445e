//! What the simulated GPU is calibrated with, a probe a file.
//!
//! The names under `probe` and `name` are those of `tests/simgpu/calibration/keys.toml` where a
//! value goes into a calibration file; the others are for people.
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
