//! What is known about a job.
#![forbid(unsafe_code)]

/// What is known about a job.
#[derive(Debug, Clone, Default)]
pub struct Profile {}
