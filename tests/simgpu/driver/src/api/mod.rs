// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls that need more than their own topic: calls that may go into a capture, and calls that
//! end a context. All other entry points lie in the modules whose state they read or change.
#![deny(unsafe_code)]

mod context;
mod copy;
mod copy_arrays;
mod copy_batch;
mod copy_linear;
mod copy_shaped;
mod enqueue;
mod event;
mod fill;
mod launch;
mod memop;
mod pool;
mod primary;
mod stream;
