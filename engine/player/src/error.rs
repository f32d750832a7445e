// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a set of jobs cannot be played.
#![forbid(unsafe_code)]

/// The most jobs of a run: events and the engine's tags number them with 16 bits.
pub const MAX_JOBS: usize = 65_536;

/// Why jobs cannot be played, one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlayError {
    /// There is no job.
    #[error("no jobs: there is nothing to play")]
    NoJobs,
    /// There are more jobs than a machine takes.
    #[error("{0} jobs: at most {MAX_JOBS} can be played together")]
    TooManyJobs(usize),
    /// A job's priority is none.
    #[error("job {0:?} has priority {1}: a priority is 0 (most important) to 9")]
    Priority(String, u8),
    /// A job does nothing that takes time, so its requests would never end.
    #[error("job {0:?}: its trace has no work")]
    NoWork(String),
    /// The times of a job's trace are those of no real job.
    #[error("job {0:?}: its trace takes more than a year")]
    TooLong(String),
    /// A trace contradicts itself.
    #[error("trace {0:?}: {1}")]
    Unsound(String, &'static str),
    /// Neither requests nor a time were asked for.
    #[error("no requests and no time: there is nothing to play")]
    NoEnd,
}
