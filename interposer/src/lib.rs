//! The preloaded libcuda.
//!
//! A job that is started with this library in `LD_PRELOAD` finds it wherever it looks for the NVIDIA driver. Every driver
//! function is exported; most calls take one jump to the real driver. A few are told to weft on the way: launches and whatever
//! else takes a place among them, loading of code, synchronisation, memory.
//!
//! | module | holds |
//! | --- | --- |
//! | [`table`] | the exports and where each leads |
//! | [`loader`] | finds and opens the real driver |
//! | [`resolve`] | how clients find functions: `dlopen`, `dlsym`, `cuGetProcAddress` |
//! | [`hooks`] | the calls that weft looks at |
//! | [`names`] | which kernel a handle is |
//! | [`queue`] | launches that a filler's host leaves behind at a closed gate |
//! | [`session`] | what weft does about it: the lane, the gate, the samples |
//! | [`memory`] | managed memory in place of device memory |
//! | [`real`] | the driver's functions for our own use |
//! | [`abi`] | the driver's types, as far as we look at them |
//! | [`lock`] | locks of the job's threads and ours |
//!
//! What holds everywhere in this crate: it is a guest. A job under weft never crashes, hangs or computes something else because of it:
//! no panic crosses a hook, no error of ours reaches the job, nothing is written to stdout, nothing waits without a bound, and nothing
//! at all happens before the first driver call.
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

pub mod abi;
pub mod about;
pub mod hooks;
pub mod loader;
pub mod lock;
pub mod memory;
pub mod names;
pub mod queue;
pub mod real;
pub mod report;
pub mod resolve;
pub mod session;
pub mod table;
pub mod trouble;
