// SPDX-License-Identifier: MIT OR Apache-2.0
//! Readers for the images that CUDA clients load: fatbin wrapper, fatbin, cubin (ELF) and PTX text.
//!
//! They work on borrowed bytes, return an [`ImageError`] for malformed input, and never panic. They
//! use no file, pointer or driver state: the caller follows a wrapper's pointer, as only the caller
//! knows the address space.
//!
//! | file | reads |
//! |---|---|
//! | `kind.rs` | an image's kind and length |
//! | `fatbin.rs` | the wrapper, the container, its entries and their compression |
//! | `lz4.rs` | one LZ4 block (older compressed entries; newer ones are zstd) |
//! | `cubin.rs`, `info.rs` | kernels, parameters and globals of an ELF cubin |
//! | `ptx.rs` | kernels, parameters and globals of PTX text |
#![forbid(unsafe_code)]

mod bytes;
pub mod cubin;
mod error;
pub mod fatbin;
mod info;
pub mod kind;
pub mod lz4;
pub mod module;
pub mod ptx;

pub use error::ImageError;
pub use module::{EntryFunction, Global, Module, Param};

/// Reads any image except a wrapper: the module that a device of architecture `arch` (80 for sm_80)
/// loads.
///
/// A fatbin has one entry per architecture. The choice is the driver's: the newest cubin of the
/// same major architecture not newer than the device, else the newest PTX not newer.
pub fn read(image: &[u8], arch: u32) -> Result<Module, ImageError> {
    match kind::kind(image) {
        kind::ImageKind::Cubin => cubin::read(image),
        kind::ImageKind::Ptx => ptx::read_bytes(image),
        kind::ImageKind::Fatbin => {
            let entry = fatbin::Fatbin::new(image)?.best(arch)?;
            let code = entry.code()?;
            match entry.kind {
                fatbin::EntryKind::Cubin => cubin::read(&code),
                _ => ptx::read_bytes(&code),
            }
        }
        kind::ImageKind::Wrapper | kind::ImageKind::Unknown => Err(ImageError::Unknown),
    }
}
