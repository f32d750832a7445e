// SPDX-License-Identifier: MIT OR Apache-2.0
//! 2D and 3D copies.
#![forbid(unsafe_code)]

use crate::abi::{Error, Handle, R};
use crate::copy::{Copy, Place};
use crate::memory::array;

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Debug, Clone, std::marker::Copy)]
pub(crate) struct Copy2D {
    from: End2D,
    to: End2D,
    width: usize,
    height: usize,
}

/// One end of a 2D copy.
#[repr(C)]
#[derive(Debug, Clone, std::marker::Copy)]
struct End2D {
    x: usize,
    y: usize,
    kind: u32,
    host: u64,
    device: u64,
    array: Handle,
    pitch: usize,
}

/// `CUDA_MEMCPY3D` and `CUDA_MEMCPY3D_PEER`: a reserved word of the first is a context in the
/// second.
#[repr(C)]
#[derive(Debug, Clone, std::marker::Copy)]
pub(crate) struct Copy3D {
    pub(crate) from: End3D,
    pub(crate) to: End3D,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}

/// One end of a 3D copy.
#[repr(C)]
#[derive(Debug, Clone, std::marker::Copy)]
pub(crate) struct End3D {
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    kind: u32,
    host: u64,
    device: u64,
    array: Handle,
    context: Handle,
    pitch: usize,
    height: usize,
}

impl End3D {
    /// `CUmemorytype`: host, device, array, unified.
    fn place(&self, width: usize, height: usize) -> R<Place> {
        let (base, pitch, rows) = match self.kind {
            1 => (self.host, self.pitch as u64, self.height as u64),
            2 | 4 => (self.device, self.pitch as u64, self.height as u64),
            3 => array::get(self.array)?.layout(),
            _ => return Err(Error::INVALID_VALUE),
        };
        // A pitch of zero means rows without gaps.
        let pitch = if pitch == 0 { width as u64 } else { pitch };
        let rows = if rows == 0 { height as u64 } else { rows };
        if pitch < width as u64 {
            return Err(Error::INVALID_VALUE);
        }
        let first = self.x as u64 + pitch * (self.y as u64 + rows * self.z as u64);
        Ok(Place {
            address: base + first,
            pitch,
            height: rows,
        })
    }
}

impl Copy3D {
    /// The copy it describes.
    pub(crate) fn copy(&self) -> R<Copy> {
        let (width, rows, layers) = (self.width, self.height, self.depth);
        if width == 0 || rows == 0 || layers == 0 {
            return Ok(Copy::linear(0, 0, 0));
        }
        Ok(Copy {
            to: self.to.place(width, rows)?,
            from: self.from.place(width, rows)?,
            width: width as u64,
            rows: rows as u64,
            layers: layers as u64,
        })
    }
}

impl Copy2D {
    /// The copy that it describes.
    pub(crate) fn copy(&self) -> R<Copy> {
        let end = |end: &End2D| End3D {
            x: end.x,
            y: end.y,
            z: 0,
            level: 0,
            kind: end.kind,
            host: end.host,
            device: end.device,
            array: end.array,
            context: 0,
            pitch: end.pitch,
            height: 0,
        };
        Copy3D {
            from: end(&self.from),
            to: end(&self.to),
            width: self.width,
            height: self.height,
            depth: 1,
        }
        .copy()
    }
}
