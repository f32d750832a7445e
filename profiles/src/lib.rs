//! What is known about a job.
//!
//! * [`Profile`]: its kernels with the distribution of their times and of the gaps after them, its
//!   memory peak, the GPU it was taken on.
//! * [`Sketch`]: a distribution in little room, mergeable, with a known error.
//! * [`Aggregator`]: from samples to a profile.
//! * [`Store`]: profiles by name in a directory; [`codec`] is the only place that knows their
//!   bytes.
//! * [`show`] and [`json`]: for people and for programs.
//! * [`refine`]: a served run becomes part of a profile, as far as it may be believed.
//! * [`predictor`]: what comes after a kernel, by what ran before it.
//! * [`format`]: versioned files with a checksum, of which a profile's is one.
//!
//! Pure but for [`Store`]. A file is an allegation: it is checked before it is believed, and no
//! length in it is trusted with memory.
#![forbid(unsafe_code)]

mod aggregate;
pub mod codec;
mod error;
mod file;
pub mod format;
pub mod json;
pub mod predictor;
mod profile;
pub mod refine;
pub mod show;
mod sketch;
mod store;
pub mod working_set;

pub use aggregate::Aggregator;
pub use error::Error;
pub use profile::{Gpu, KernelProfile, Profile};
pub use sketch::Sketch;
pub use store::{Store, valid_name};

/// A time or a duration in nanoseconds.
pub type Ns = u64;

/// Kernels that a profile holds at most. A tuner's run makes some thousands. What comes after these
/// is counted, not kept.
pub const MAX_KERNELS: usize = 65_536;
