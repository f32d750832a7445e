//! What the simulated GPU is calibrated with, a probe a file.
//!
//! The names under `probe` and `name` are those of `tests/simgpu/calibration/keys.toml` where a value goes into a calibration file; the others are for people.
#![forbid(unsafe_code)]

pub mod about;
pub mod context;
pub mod copy;
pub mod event;
pub mod launch;
pub mod memset;
pub mod spacing;
