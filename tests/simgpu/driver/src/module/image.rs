// SPDX-License-Identifier: MIT OR Apache-2.0
//! Images as the client hands them in: found, measured, kept, and read when a caller needs their
//! content.
//!
//! A client hands in an address and no length. The runtime hands in a wrapper around data that is
//! part of the program and stays. Every other image is copied, since the client may free it after
//! the call.
#![forbid(unsafe_code)]

use std::sync::OnceLock;

use simgpu_device::model::model;
use weft_image::kind::{self, Extent, ImageKind, PREFIX};
use weft_image::{ImageError, Module};

use crate::abi::{Error, In, R};

/// An image.
pub(crate) struct Image {
    bytes: Bytes,
    read: OnceLock<Result<Module, Error>>,
}

enum Bytes {
    Owned(Vec<u8>),
    /// Address and length of bytes that stay as long as the module.
    Kept(usize, usize),
}

/// Longest PTX text that is looked through for its end: a bound for a client's mistake.
const LONGEST_TEXT_BYTES: usize = 256 << 20;

fn text_length(address: usize) -> R<usize> {
    (0..LONGEST_TEXT_BYTES)
        .find(|at| In::<u8>::from_address(address + at).get() == Ok(0))
        .ok_or(Error::INVALID_IMAGE)
}

/// The first bytes of an image; PTX may be shorter than a header.
fn prefix(address: usize) -> R<Vec<u8>> {
    let mut bytes = Vec::with_capacity(PREFIX);
    for at in 0..PREFIX {
        let byte = In::<u8>::from_address(address + at).get()?;
        bytes.push(byte);
        // The binary kinds show themselves in four bytes; text ends at its zero.
        if byte == 0 && bytes.len() > 4 && matches!(kind::kind(&bytes), ImageKind::Ptx | ImageKind::Unknown) {
            break;
        }
    }
    Ok(bytes)
}

fn length(address: usize) -> R<usize> {
    let prefix = prefix(address)?;
    let size = |bytes: u64| usize::try_from(bytes).map_err(|_| Error::INVALID_IMAGE);
    match kind::extent(&prefix).map_err(|_| Error::INVALID_IMAGE)? {
        Extent::Bytes(bytes) => size(bytes),
        Extent::Tables(bytes) => {
            // A cubin: the section table gives its extent.
            let bytes = In::<u8>::from_address(address).bytes(size(bytes)?)?;
            size(kind::cubin_extent(&bytes).map_err(|_| Error::INVALID_IMAGE)?)
        }
        Extent::Text => text_length(address),
    }
}

/// Reads an image as strictly as a driver does. [`weft_image`] itself is lenient.
fn read(bytes: &[u8]) -> R<Module> {
    let (major, minor) = model().capability;
    let arch = u32::try_from(10 * major + minor).unwrap_or(0);
    let kind = kind::kind(bytes);
    let module = weft_image::read(bytes, arch).map_err(|error| match (error, kind) {
        (ImageError::NoBinary(_), _) => Error::NO_BINARY_FOR_GPU,
        (_, ImageKind::Ptx) => Error::INVALID_PTX,
        _ => Error::INVALID_IMAGE,
    })?;
    match kind {
        ImageKind::Ptx if !is_whole(bytes) => Err(Error::INVALID_PTX),
        ImageKind::Cubin if !is_code(bytes) => Err(Error::INVALID_IMAGE),
        // Machine code fits its major architecture, on devices that are not older than its own.
        ImageKind::Cubin if module.arch != 0 && (module.arch / 10 != arch / 10 || module.arch > arch) => {
            Err(Error::NO_BINARY_FOR_GPU)
        }
        _ => Ok(module),
    }
}

/// Is the ELF file a GPU's, with sections in it?
fn is_code(bytes: &[u8]) -> bool {
    /// `EM_CUDA`.
    const MACHINE: u16 = 190;
    let half = |at: usize| {
        bytes
            .get(at..at + 2)
            .map_or(0, |two| u16::from_le_bytes([two[0], two[1]]))
    };
    half(18) == MACHINE && half(60) > 0
}

/// Does each brace of the PTX text have its other one? Comments may hold any.
fn is_whole(bytes: &[u8]) -> bool {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let mut rest = &bytes[..end];
    let mut depth = 0_i64;
    while let [first, after @ ..] = rest {
        rest = match (first, after) {
            (b'/', [b'/', ..]) => after
                .iter()
                .position(|byte| *byte == b'\n')
                .map_or(&[], |at| &after[at..]),
            (b'/', [b'*', inside @ ..]) => match inside.windows(2).position(|two| two == b"*/") {
                Some(at) => &inside[at + 2..],
                None => return false,
            },
            _ => {
                depth += i64::from(*first == b'{') - i64::from(*first == b'}');
                after
            }
        };
    }
    depth == 0
}

impl Image {
    /// Takes the image at an address. `stays`: the client promises to keep it.
    pub(crate) fn at(address: usize, stays: bool) -> R<Image> {
        if address == 0 {
            return Err(Error::INVALID_VALUE);
        }
        let first = prefix(address)?;
        if kind::kind(&first) == ImageKind::Wrapper {
            let wrapper = weft_image::fatbin::Wrapper::new(&first).map_err(|_| Error::INVALID_IMAGE)?;
            let data = usize::try_from(wrapper.data).map_err(|_| Error::INVALID_IMAGE)?;
            return Ok(Image::kept(data, length(data)?));
        }
        let length = length(address)?;
        if stays {
            return Ok(Image::kept(address, length));
        }
        Ok(Image::owned(In::<u8>::from_address(address).bytes(length)?))
    }

    fn kept(address: usize, length: usize) -> Image {
        Image {
            bytes: Bytes::Kept(address, length),
            read: OnceLock::new(),
        }
    }

    /// An image that the driver itself holds, for example from a file.
    pub(crate) fn owned(bytes: Vec<u8>) -> Image {
        Image {
            bytes: Bytes::Owned(bytes),
            read: OnceLock::new(),
        }
    }

    /// An image in a file.
    pub(crate) fn in_file(path: &str) -> R<Image> {
        let mut bytes = std::fs::read(path).map_err(|_| Error::FILE_NOT_FOUND)?;
        bytes.push(0);
        Ok(Image::owned(bytes))
    }

    /// Refuses at once bytes that are no image at all; other faults show when it is read.
    pub(crate) fn check(self) -> R<Image> {
        match &self.bytes {
            Bytes::Owned(bytes) if kind::kind(bytes) == ImageKind::Unknown => Err(Error::INVALID_IMAGE),
            _ => Ok(self),
        }
    }

    /// Its content.
    pub(crate) fn module(&self) -> R<&Module> {
        let result = self.read.get_or_init(|| match &self.bytes {
            Bytes::Owned(bytes) => read(bytes),
            Bytes::Kept(address, length) => In::<u8>::from_address(*address)
                .with_bytes(*length, read)
                .and_then(|result| result),
        });
        result.as_ref().map_err(|error| *error)
    }
}
