// SPDX-License-Identifier: MIT OR Apache-2.0
//! The dynamic linker: symbol tables of loaded objects, the next functions, this library.

pub mod elf;
pub mod next;
pub mod ourselves;
