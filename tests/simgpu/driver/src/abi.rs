// SPDX-License-Identifier: MIT OR Apache-2.0
//! Types that cross the C boundary: results, handles and pointers that a client hands in.
//!
//! Pointers arrive wrapped in [`Out`] and [`In`]. Only the C ABI makes them (they are argument
//! types of exported functions). By the API's contract the client passes null or a valid pointer,
//! and only this file dereferences it. Results are plain integers, since a client may know codes
//! that we do not.

use std::ffi::CStr;

/// A driver result other than success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Error(pub(crate) u32);

/// The result of every entry point.
pub(crate) type R<T = ()> = Result<T, Error>;

/// Codes of the public header.
#[allow(missing_docs)]
impl Error {
    pub(crate) const INVALID_VALUE: Error = Error(1);
    pub(crate) const OUT_OF_MEMORY: Error = Error(2);
    pub(crate) const NOT_INITIALIZED: Error = Error(3);
    pub(crate) const DEINITIALIZED: Error = Error(4);
    pub(crate) const DEVICE_UNAVAILABLE: Error = Error(46);
    pub(crate) const NO_DEVICE: Error = Error(100);
    pub(crate) const INVALID_DEVICE: Error = Error(101);
    pub(crate) const INVALID_IMAGE: Error = Error(200);
    pub(crate) const INVALID_CONTEXT: Error = Error(201);
    pub(crate) const NO_BINARY_FOR_GPU: Error = Error(209);
    pub(crate) const INVALID_PTX: Error = Error(218);
    pub(crate) const PEER_ACCESS_UNSUPPORTED: Error = Error(217);
    pub(crate) const FILE_NOT_FOUND: Error = Error(301);
    pub(crate) const OPERATING_SYSTEM: Error = Error(304);
    pub(crate) const INVALID_HANDLE: Error = Error(400);
    pub(crate) const ILLEGAL_STATE: Error = Error(401);
    pub(crate) const NOT_FOUND: Error = Error(500);
    pub(crate) const NOT_READY: Error = Error(600);
    pub(crate) const ILLEGAL_ADDRESS: Error = Error(700);
    pub(crate) const CONTEXT_IS_DESTROYED: Error = Error(709);
    pub(crate) const HOST_MEMORY_ALREADY_REGISTERED: Error = Error(712);
    pub(crate) const HOST_MEMORY_NOT_REGISTERED: Error = Error(713);
    pub(crate) const LAUNCH_FAILED: Error = Error(719);
    pub(crate) const COOPERATIVE_LAUNCH_TOO_LARGE: Error = Error(720);
    pub(crate) const NOT_SUPPORTED: Error = Error(801);
    pub(crate) const STREAM_CAPTURE_UNSUPPORTED: Error = Error(900);
    pub(crate) const STREAM_CAPTURE_INVALIDATED: Error = Error(901);
    pub(crate) const STREAM_CAPTURE_MERGE: Error = Error(902);
    pub(crate) const STREAM_CAPTURE_UNMATCHED: Error = Error(903);
    pub(crate) const STREAM_CAPTURE_UNJOINED: Error = Error(904);
    pub(crate) const STREAM_CAPTURE_ISOLATION: Error = Error(905);
    pub(crate) const STREAM_CAPTURE_IMPLICIT: Error = Error(906);
    pub(crate) const CAPTURED_EVENT: Error = Error(907);
    pub(crate) const STREAM_CAPTURE_WRONG_THREAD: Error = Error(908);
    pub(crate) const GRAPH_EXEC_UPDATE_FAILURE: Error = Error(910);
    pub(crate) const UNKNOWN: Error = Error(999);
}

/// An opaque handle as the client holds it.
pub(crate) type Handle = usize;
/// A device address.
pub(crate) type DevicePtr = u64;

/// A place for a result.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// Nowhere: for an answer that is not wanted.
    pub(crate) const fn null() -> Out<T> {
        Out(std::ptr::null_mut())
    }

    /// Writes the result; a null pointer is the client's error.
    pub(crate) fn set(self, value: T) -> R {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not null, and by the API's contract valid for one T. Unaligned, since some
        // clients pack their structs.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes the result if the client asked for it.
    pub(crate) fn set_if(self, value: T) {
        let _ = self.set(value);
    }

    /// Writes into the `at`-th place of an array.
    pub(crate) fn set_at(self, at: usize, value: T) -> R {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        Out(self.0.wrapping_add(at)).set(value)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The value there now, for arguments that go both ways.
    pub(crate) fn get(self) -> R<T>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }

    /// The place `bytes` bytes further on, for another type: a member of the client's struct.
    pub(crate) fn offset_bytes<U>(self, bytes: usize) -> Out<U> {
        if self.0.is_null() {
            Out::null()
        } else {
            Out(self.0.wrapping_byte_add(bytes).cast())
        }
    }

    /// This place for another type.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    /// A place the client named by its address.
    pub(crate) fn from_address(address: usize) -> Out<T> {
        Out(std::ptr::with_exposed_provenance_mut(address))
    }
}

impl Out<u8> {
    /// Writes text with its closing zero into a buffer of `room` bytes, cut to fit.
    pub(crate) fn text(self, room: usize, text: &str) -> R {
        if self.0.is_null() || room == 0 {
            return Err(Error::INVALID_VALUE);
        }
        let bytes = text.as_bytes();
        let bytes = &bytes[..bytes.len().min(room - 1)];
        for (at, byte) in bytes.iter().chain(std::iter::once(&0)).enumerate() {
            self.set_at(at, *byte)?;
        }
        Ok(())
    }
}

/// A place that an argument comes from.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for In<T> {}

impl<T> In<T> {
    /// No argument.
    pub(crate) const fn null() -> In<T> {
        In(std::ptr::null())
    }

    /// The value; a null pointer is the client's error.
    pub(crate) fn get(self) -> R<T>
    where
        T: Copy,
    {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not null, and by the API's contract valid for one T; every T here is plain data
        // without invalid bits.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// The first `count` values of an array.
    pub(crate) fn list(self, count: usize) -> R<Vec<T>>
    where
        T: Copy,
    {
        if count == 0 {
            return Ok(Vec::new());
        }
        (0..count).map(|at| self.at(at).get()).collect()
    }

    /// The place `count` values further on.
    pub(crate) fn at(self, count: usize) -> In<T> {
        if self.0.is_null() {
            self
        } else {
            In(self.0.wrapping_add(count))
        }
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn address(self) -> usize {
        self.0.addr()
    }

    /// A place the client named by its address, for example a field of one of its structs.
    pub(crate) fn from_address(address: usize) -> In<T> {
        In(std::ptr::with_exposed_provenance(address))
    }
}

impl In<u8> {
    /// A string that ends with a zero.
    pub(crate) fn text(self) -> R<String> {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not null, and by the API's contract a string with its closing zero.
        let text = unsafe { CStr::from_ptr(self.0.cast()) };
        Ok(text.to_string_lossy().into_owned())
    }

    /// Reads the first `count` bytes in place.
    pub(crate) fn with_bytes<T>(self, count: usize, look: impl FnOnce(&[u8]) -> T) -> R<T> {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not null, and by the API's contract at least `count` bytes, which the
        // client does not change meanwhile.
        Ok(look(unsafe { std::slice::from_raw_parts(self.0, count) }))
    }

    /// A copy of the first `count` bytes.
    pub(crate) fn bytes(self, count: usize) -> R<Vec<u8>> {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not null, and by the API's contract at least `count` bytes.
        Ok(unsafe { std::slice::from_raw_parts(self.0, count) }.to_vec())
    }
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) kind: u32,
    pub(crate) id: i32,
}

impl Location {
    /// `CU_MEM_LOCATION_TYPE_DEVICE`.
    pub(crate) const DEVICE: u32 = 1;
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AccessDescriptor {
    pub(crate) location: Location,
    pub(crate) flags: u32,
}
