// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two threads that read from clients: one lets them in, one reads their less urgent messages.
#![forbid(unsafe_code)]

pub mod acceptor;
pub mod control;
