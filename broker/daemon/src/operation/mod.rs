// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operation of the broker: answers to questions, reload of options, the service manager.
#![forbid(unsafe_code)]

pub mod query;
pub mod reload;
pub mod supervisor;
