// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C boundary.
//!
//! Pointers arrive wrapped in [`Destination`] and [`ClientString`], made only by the C ABI. By
//! contract they are null or valid, and only this file follows them.

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A result other than success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NvmlError(pub(crate) u32);

/// Result of an entry point.
pub(crate) type R<T = ()> = Result<T, NvmlError>;

impl NvmlError {
    pub(crate) const UNINITIALIZED: NvmlError = NvmlError(1);
    pub(crate) const INVALID_ARGUMENT: NvmlError = NvmlError(2);
    pub(crate) const NOT_SUPPORTED: NvmlError = NvmlError(3);
    pub(crate) const NOT_FOUND: NvmlError = NvmlError(6);
    pub(crate) const INSUFFICIENT_SIZE: NvmlError = NvmlError(7);
    pub(crate) const UNKNOWN: NvmlError = NvmlError(999);
}

/// A device handle as the client holds it.
pub(crate) type Handle = usize;

/// Destination of a result.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Destination<T>(*mut T);

impl<T: Copy> Destination<T> {
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Writes the result.
    pub(crate) fn set(&self, value: T) -> R {
        self.set_at(0, value)
    }

    /// Writes into the `at`-th place of an array.
    pub(crate) fn set_at(&self, at: usize, value: T) -> R {
        if self.0.is_null() {
            return Err(NvmlError::INVALID_ARGUMENT);
        }
        // SAFETY: not null, and by the API's contract an array that has this place.
        unsafe { self.0.wrapping_add(at).write_unaligned(value) };
        Ok(())
    }

    /// The present value, of arguments that go both ways.
    pub(crate) fn get(&self) -> R<T> {
        self.get_at(0)
    }

    /// The value in the `at`-th place of an array.
    pub(crate) fn get_at(&self, at: usize) -> R<T> {
        if self.0.is_null() {
            return Err(NvmlError::INVALID_ARGUMENT);
        }
        // SAFETY: as in `set_at`; every T here is plain data without invalid bits.
        Ok(unsafe { self.0.wrapping_add(at).read_unaligned() })
    }
}

impl Destination<u8> {
    /// Writes text with its closing zero into a buffer of `room` bytes.
    pub(crate) fn text(&self, room: u32, text: &str) -> R {
        if text.len() >= room as usize {
            return Err(NvmlError::INSUFFICIENT_SIZE);
        }
        text.bytes()
            .chain([0])
            .enumerate()
            .try_for_each(|(at, byte)| self.set_at(at, byte))
    }
}

/// A string of the client.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct ClientString(*const c_char);

impl ClientString {
    pub(crate) fn get(&self) -> R<String> {
        if self.0.is_null() {
            return Err(NvmlError::INVALID_ARGUMENT);
        }
        // SAFETY: not null, and by the API's contract a string with its closing zero.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// Defines entry points: `fn nvmlName(argument: Type, ...) { body of type R }`. The build script
/// finds them by the line with `fn nvml`.
macro_rules! export {
    ($($(#[$meta:meta])* fn $name:ident ($($arg:ident : $ty:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$meta])*
            #[allow(missing_docs, non_snake_case)]
            #[unsafe(no_mangle)]
            pub extern "C" fn $name($($arg: $ty),*) -> u32 {
                crate::abi::answer(stringify!($name), || -> crate::abi::R { $body })
            }
        )*
    };
}
pub(crate) use export;

/// Runs an entry point's body; a panic must not unwind into C.
pub(crate) fn answer(name: &str, body: impl FnOnce() -> R) -> u32 {
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(NvmlError::UNKNOWN));
    let code = result.map_or_else(|error| error.0, |()| 0);
    trace(name, code);
    code
}

/// Answer for features that the simulated device lacks.
pub(crate) fn absent(name: &str) -> u32 {
    trace(name, NvmlError::NOT_SUPPORTED.0);
    NvmlError::NOT_SUPPORTED.0
}

/// `SIMGPU_DEBUG=2` writes every call to stderr, as in the simulated driver.
fn trace(name: &str, code: u32) {
    static LEVEL: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    if *LEVEL.get_or_init(|| std::env::var("SIMGPU_DEBUG").is_ok_and(|level| level == "2")) {
        eprintln!("simnvml[{}] {name} -> {code}", std::process::id());
    }
}
