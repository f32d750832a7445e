// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that share a process, its driver and its device, and take turns.
#![allow(missing_docs, reason = "the tests' names say it")]

mod cuda;

mod graph_build;
mod graph_capture;
mod graph_update;
mod kernels;
