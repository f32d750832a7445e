// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ways in which clients find driver functions, and how each leads to weft.
//!
//! | a client | finds weft because |
//! | --- | --- |
//! | is linked against `libcuda.so.1` | a preload comes first in the linker's order |
//! | opens `libcuda.so.1` by name | it is weft's SONAME |
//! | opens `libcuda.so`, or an absolute path to either | [`open`] wraps `dlopen` |
//! | opens one of the names from its own scope (`RTLD_DEEPBIND`) | both names are weft's; [`past`] reports the rest |
//! | looks a name up in a driver handle | [`symbol`] wraps `dlsym` and `dlvsym` |
//! | asks `cuGetProcAddress` | [`crate::hooks`] answers with weft's entry points |
//! | asks `cuGetExportTable` | it does not: tables pass through unchanged, and are noted ([`crate::deferred::tables`]) |
//!
//! For a function outside the symbol table the client gets the driver's own, and the lookup is
//! counted.

pub mod open;
pub mod past;
pub mod symbol;
