//! The scheduler thread, what it reads, and the cores that it asks.
#![forbid(unsafe_code)]

pub mod co_runners;
pub mod device_cores;
pub mod lane_rotation;
pub mod lanes;
pub mod thread;
pub mod thread_sleep;
pub mod user_pages;
