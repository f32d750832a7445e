// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operation of the broker: answers to questions, reload of options, the service manager, the MPS
//! daemon.
#![forbid(unsafe_code)]

pub mod mps;
pub mod query;
pub mod reload;
pub mod supervisor;
