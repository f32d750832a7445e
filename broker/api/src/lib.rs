// SPDX-License-Identifier: MIT OR Apache-2.0
//! Questions to the broker and its answers, as data; names, paths and texts for people.
//!
//! The `weft` command and the daemon link this crate. Only [`admin`] talks to a broker.
#![deny(unsafe_code)]

pub mod admin;
pub mod formatting;
pub mod history;
pub mod job_name;
pub mod metrics_address;
pub mod mps;
pub mod outcome;
pub mod paths;
pub mod peak_usage;
pub mod placement;
pub mod plain_text;
pub mod profile_path;
pub mod queue;
pub mod recording;
pub mod status;
pub mod users;
