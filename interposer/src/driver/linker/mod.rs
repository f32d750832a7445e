//! The dynamic linker: symbol tables of loaded objects, the functions behind ours, and ourselves.

pub mod elf;
pub mod next;
pub mod ourselves;
