// SPDX-License-Identifier: MIT OR Apache-2.0
//! The preloaded libcuda.
//!
//! A job started with this library in `LD_PRELOAD` finds it wherever it looks for the NVIDIA
//! driver. It exports every driver function; most calls take one jump to the real driver. Weft
//! hooks launches, calls ordered among launches, loading of code, synchronisation, and memory.
//!
//! | module | contains |
//! | --- | --- |
//! | [`driver`] | the real driver: the search for it, its symbol table, weft's own calls |
//! | [`kernels`] | the kernel behind a handle, and its parameters |
//! | [`client`] | the process as a client of the broker: link, settings, clock |
//! | [`throttle`] | control of launches: gate, streams, modes |
//! | [`admission`] | whether the job may begin, and its memory quota |
//! | [`profiler`] | stage 1: kernel times and gaps |
//! | [`deferred`] | launches that a background job defers at a closed gate |
//! | [`paging`] | managed memory in place of device memory |
//! | [`movable`] | device memory that moves to the host and back while the job waits |
//! | [`trace`] | trace mode: records every call of marked steps |
//! | [`lifecycle`] | cuInit, forks, the end, and the modules that handle them |
//! | [`hooks`] | the calls that weft hooks |
//! | [`exports`] | the exported entry points and their targets |
//! | [`lookup`] | how clients find functions: `dlopen`, `dlsym` |
//! | [`about`] | this library's answers to other programs |
//! | [`internal_error`], [`report`], [`lock`], [`thread`], [`process`] | used by all modules |
//!
//! Invariant: weft is a guest in the job. No job crashes, hangs or computes other results because
//! of it. No panic crosses a hook, no error of weft reaches the job, nothing is written to stdout,
//! no wait is unbounded. Nothing happens before the first driver call.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::unreachable,
        clippy::todo,
        clippy::unimplemented,
        clippy::get_unwrap,
        clippy::string_slice
    )
)]
// Driver functions have many arguments.
#![allow(clippy::too_many_arguments)]

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux")))]
compile_error!("the interposer's machine code is written for Linux on x86-64 and AArch64");

pub mod about;
mod admission;
mod client;
pub mod deferred;
mod driver;
pub mod exports;
pub mod hooks;
mod internal_error;
mod kernels;
pub mod lifecycle;
mod lock;
pub mod lookup;
mod movable;
mod paging;
mod process;
mod processor;
mod profiler;
mod report;
mod thread;
pub mod throttle;
pub mod trace;
