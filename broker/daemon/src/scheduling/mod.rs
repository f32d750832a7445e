// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler thread, the lanes and pages that it reads, and the cores that it asks.
#![forbid(unsafe_code)]

pub mod device_cores;
pub mod lane_rotation;
pub mod lanes;
pub mod thread;
pub mod user_pages;
