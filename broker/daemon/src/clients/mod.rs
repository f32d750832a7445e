// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of attached clients.
#![forbid(unsafe_code)]

pub mod registry;
