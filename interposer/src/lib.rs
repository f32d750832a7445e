//! The preloaded libcuda.
//!
//! A job that is started with this library in `LD_PRELOAD` finds it wherever it looks for the
//! NVIDIA driver. Every driver function is exported; most calls take one jump to the real driver. A
//! few are told to weft on the way: launches and whatever else takes a place among them, loading of
//! code, synchronisation, memory.
//!
//! | module | holds |
//! | --- | --- |
//! | [`driver`] | the real driver: finding it, its table of symbols, calls of our own |
//! | [`kernels`] | which kernel a handle is, and what its parameters are |
//! | [`client`] | the process as a client of the broker: the link, the settings, the clock |
//! | [`throttle`] | what weft does about launches: the gate, the streams, the modes |
//! | [`admission`] | whether the job may begin, and how much memory it may have |
//! | [`profiler`] | stage 1: kernel times and gaps |
//! | [`deferred`] | launches that a background job's host leaves behind at a closed gate |
//! | [`paging`] | managed memory in place of device memory |
//! | [`trace`] | trace mode: every call of marked steps is recorded |
//! | [`lifecycle`] | cuInit, forks, the end, and who hears of each |
//! | [`hooks`] | the calls that weft looks at |
//! | [`exports`] | the exported entry points and where each leads |
//! | [`lookup`] | how clients find functions: `dlopen`, `dlsym` |
//! | [`about`] | what others can ask this library |
//! | [`internal_error`], [`report`], [`lock`], [`thread`], [`process`] | what every room uses |
//!
//! What holds everywhere in this crate: it is a guest. A job under weft never crashes, hangs or
//! computes something else because of it: no panic crosses a hook, no error of ours reaches the
//! job, nothing is written to stdout, nothing waits without a bound, and nothing at all happens
//! before the first driver call.
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
// A driver function's arguments are as many as they are.
#![allow(clippy::too_many_arguments)]

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("the interposer's trampolines are written for Linux on x86-64");

pub mod about;
pub mod admission;
pub mod client;
pub mod deferred;
pub mod driver;
pub mod exports;
pub mod hooks;
pub mod internal_error;
pub mod kernels;
pub mod lifecycle;
pub mod lock;
pub mod lookup;
pub mod paging;
pub mod process;
pub mod profiler;
pub mod report;
pub mod thread;
pub mod throttle;
pub mod trace;
