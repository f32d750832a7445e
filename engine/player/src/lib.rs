//! Plays traces of jobs that share one GPU, in virtual time, under weft or another rule.
#![forbid(unsafe_code)]

pub mod cost;
pub mod job;
pub mod random;
pub mod rule;
pub mod world;

/// A time or a duration in nanoseconds.
pub type Ns = u64;
/// A microsecond.
pub const US: Ns = 1_000;
/// A millisecond.
pub const MS: Ns = 1_000_000;
