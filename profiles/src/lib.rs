// SPDX-License-Identifier: MIT OR Apache-2.0
//! Profiles: everything known about a job.
//!
//! * [`Profile`]: kernels with the distributions of their times and gaps, the memory peak, the GPU.
//! * [`Sketch`]: a compact distribution, mergeable, with a known error.
//! * [`Aggregator`]: makes a profile from samples.
//! * [`Store`]: profiles by name in a directory; only [`codec`] knows their bytes.
//! * [`show`] and [`json`]: output for people and for programs.
//! * [`predictor`]: predicts kernel times and gaps from the kernels that ran before.
//! * [`mod@format`]: versioned files with a checksum, such as a profile's.
//!
//! Pure, except [`Store`]. A file is checked before use, and no length in it can claim memory.
#![forbid(unsafe_code)]

mod aggregate;
pub mod calendar;
pub mod codec;
mod error;
mod file;
pub mod format;
pub mod json;
pub mod predictor;
mod profile;
pub mod show;
mod sketch;
mod store;
pub mod working_set;

pub use aggregate::Aggregator;
pub use error::ProfileError;
pub use profile::{GpuIdentity, KernelProfile, Profile, TypicalLaunch};
pub use sketch::Sketch;
pub use store::{SUFFIX, Store, valid_name};

/// A time or a duration, ns.
pub type Ns = u64;

/// Most kernels of a profile. Further kernels are only counted. A tuner's run has some thousands.
pub const MAX_KERNELS: usize = 65_536;
