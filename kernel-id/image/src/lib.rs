//! Readers for the images that CUDA clients load: fatbin wrapper, fatbin, cubin (ELF) and PTX text.
//!
//! What holds here: everything works on borrowed bytes, answers an [`Error`] for whatever is not
//! well formed, and never panics, whatever the bytes are. No file, no pointer, no driver state:
//! following a fatbin wrapper's pointer is for the caller, who alone knows the address space it
//! points into.
//!
//! | file | what it reads |
//! |---|---|
//! | `kind.rs` | which of the four an image is, and how many bytes belong to it |
//! | `fatbin.rs` | the wrapper, the container, its entries and their compression |
//! | `lz4.rs` | one LZ4 block (older compressed entries; newer ones are zstd) |
//! | `cubin.rs`, `info.rs` | kernels, parameters and globals of an ELF cubin |
//! | `ptx.rs` | the same of PTX text |
#![forbid(unsafe_code)]

mod bytes;
pub mod cubin;
pub mod fatbin;
mod info;
pub mod kind;
pub mod lz4;
pub mod module;
pub mod ptx;

pub use module::{Global, Kernel, Module, Param};

/// Why an image could not be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// The image ends before something that it announces.
    #[error("the image is cut short: {0}")]
    Short(&'static str),
    /// The first bytes are those of no image known here.
    #[error("not a fatbin, cubin or PTX image")]
    Unknown,
    /// A field holds what no compiler writes.
    #[error("malformed image: {0}")]
    Malformed(&'static str),
    /// An entry's compressed payload does not decode.
    #[error("a compressed entry does not decode: {0}")]
    Compression(&'static str),
    /// A fatbin holds no code that a device of this architecture can run.
    #[error("no code for sm_{0}")]
    NoBinary(u32),
}

/// Reads any image but a wrapper: the module a device of architecture `arch` (80 for sm_80) would
/// load from it.
///
/// A fatbin holds one entry an architecture; the best runnable one is taken as the driver does: the
/// newest cubin of the same major architecture that is not newer than the device, else the newest
/// PTX that is not newer.
pub fn read(image: &[u8], arch: u32) -> Result<Module, Error> {
    match kind::kind(image) {
        kind::Kind::Cubin => cubin::read(image),
        kind::Kind::Ptx => ptx::read_bytes(image),
        kind::Kind::Fatbin => {
            let entry = fatbin::Fatbin::new(image)?.best(arch)?;
            let code = entry.code()?;
            match entry.kind {
                fatbin::EntryKind::Cubin => cubin::read(&code),
                _ => ptx::read_bytes(&code),
            }
        }
        kind::Kind::Wrapper | kind::Kind::Unknown => Err(Error::Unknown),
    }
}
