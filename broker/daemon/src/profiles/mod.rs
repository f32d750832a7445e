//! The profile writer, a thread of its own, and what it writes.
#![forbid(unsafe_code)]

pub mod guest_profiles;
pub mod refining;
pub mod writer;
