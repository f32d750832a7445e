// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that each run in a process of their own, on a device of its own.
//!
//! They are one program: to compile one for each file takes longer than to run it.
#![allow(missing_docs, reason = "the tests' names say it")]

#[macro_use]
mod client;

mod data;
mod dead_handles;
mod images;
mod lookup;
mod managed;
mod memory;
mod models;
mod processes;
mod sticky;
mod streams;
