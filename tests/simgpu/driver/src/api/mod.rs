//! The calls that need more than their own topic: what may go into a capture, and what ends a
//! context. All other entry points lie beside what they ask or change.
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
