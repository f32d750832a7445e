// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of images that cannot be read.

/// Reason for which an image could not be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ImageError {
    /// The image ends before a part that it announces.
    #[error("the image is cut short: {0}")]
    Short(&'static str),
    /// No known image begins like this.
    #[error("not a fatbin, cubin or PTX image")]
    Unknown,
    /// A field has a value that no compiler writes.
    #[error("malformed image: {0}")]
    Malformed(&'static str),
    /// An entry's compressed payload does not decode.
    #[error("a compressed entry does not decode: {0}")]
    Compression(&'static str),
    /// A fatbin holds no code for a device of this architecture.
    #[error("no code for sm_{0}")]
    NoBinary(u32),
}
