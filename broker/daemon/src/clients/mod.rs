// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of attached clients, and their containers' names.
#![forbid(unsafe_code)]

pub mod pods;
pub mod registry;
