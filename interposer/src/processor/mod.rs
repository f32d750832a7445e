// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine code of the interposer, for each kind of processor: bodies of naked functions, the
//! thread pointer and the processor's counter. build.rs writes the exports and the stubs.
//!
//! The bodies are macros, so that the functions stay next to the code that they call. No body uses
//! a register that the caller may still need, and the arguments on the stack stay untouched.
#![allow(unsafe_code)]

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;
