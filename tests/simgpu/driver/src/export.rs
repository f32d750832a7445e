// SPDX-License-Identifier: MIT OR Apache-2.0
//! How an entry point is defined: [`export!`] gives it its C symbol, keeps panics inside and writes
//! the trace.
//!
//! `SIMGPU_DEBUG=1` names, once each, the functions that were called and are not implemented;
//! `SIMGPU_DEBUG=2` writes every call with its result. Both go to stderr.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::abi::{Error, R};
use crate::away::{self, Entry};
use crate::{dead, fork};

/// Defines entry points: `fn cuName(argument: Type, ...) { body of type R }`.
///
/// The build script finds them by lines that begin with `fn cu`. A second name after `|` is the
/// per-thread-stream twin. `[default]` then names the stream handle (0 or 2) that the called symbol
/// means by "the default stream".
///
/// A file of entry points opens with `deny(unsafe_code)`, not `forbid`: an exported symbol counts
/// as unsafe code. Only the symbol is allowed here; the body stays under the file's rule.
macro_rules! export {
    () => {};
    ($(#[$meta:meta])* fn $name:ident | $twin:ident [$default:ident] ($($arg:ident : $ty:ty),* $(,)?) $body:block $($rest:tt)*) => {
        const _: () = {
            $(#[$meta])*
            #[allow(unsafe_code)]
            #[unsafe(no_mangle)]
            pub extern "C" fn $name($($arg: $ty),*) -> u32 {
                crate::export::answer(stringify!($name), || body($($arg,)* 0))
            }
            #[allow(unsafe_code)]
            #[unsafe(no_mangle)]
            pub extern "C" fn $twin($($arg: $ty),*) -> u32 {
                crate::export::answer(stringify!($twin), || body($($arg,)* 2))
            }
            #[inline]
            #[allow(clippy::too_many_arguments)]
            fn body($($arg: $ty,)* $default: usize) -> crate::abi::R { $body }
        };
        crate::export::export!($($rest)*);
    };
    ($(#[$meta:meta])* fn $name:ident ($($arg:ident : $ty:ty),* $(,)?) $body:block $($rest:tt)*) => {
        const _: () = {
            $(#[$meta])*
            #[allow(unsafe_code)]
            #[unsafe(no_mangle)]
            pub extern "C" fn $name($($arg: $ty),*) -> u32 {
                crate::export::answer(stringify!($name), || body($($arg),*))
            }
            #[inline]
            #[allow(clippy::too_many_arguments)]
            fn body($($arg: $ty),*) -> crate::abi::R { $body }
        };
        crate::export::export!($($rest)*);
    };
}
pub(crate) use export;

/// The amount of debug output.
fn level() -> u32 {
    static LEVEL: OnceLock<u32> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        std::env::var("SIMGPU_DEBUG")
            .ok()
            .and_then(|v| v.parse().ok())
            .unwrap_or(0)
    })
}

/// Entry points that need no device, and so work in a child that was forked from an initialised
/// process too.
const NEED_NO_DEVICE: [&str; 6] = [
    "cuDriverGetVersion",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    "cuGetExportTable",
    "cuGetErrorName",
    "cuGetErrorString",
];

/// Ends every other call in a forked child, before it touches a lock that a thread of the parent's
/// may have held.
#[cold]
fn in_forked_child(name: &str) -> R {
    if NEED_NO_DEVICE.contains(&name) {
        Ok(())
    } else {
        Err(Error::NOT_INITIALIZED)
    }
}

/// Runs an entry point's body; a panic inside becomes `CUDA_ERROR_UNKNOWN`, as it must not unwind
/// into C.
#[inline]
pub(crate) fn answer(name: &'static str, body: impl FnOnce() -> R) -> u32 {
    if fork::is_forked()
        && let Err(Error(code)) = in_forked_child(name)
    {
        return code;
    }
    dead::entered(name);
    let Entry::Goes(_inside) = away::enter(name) else {
        return 0;
    };
    let begin = (level() >= 2).then(Instant::now);
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Error::UNKNOWN));
    let code = match result {
        Ok(()) => 0,
        Err(Error(code)) => code,
    };
    if let Some(begin) = begin {
        trace(name, code, begin);
    }
    code
}

/// One line a call: process, thread, microseconds since the first such line, function, result,
/// microseconds it took.
#[cold]
fn trace(name: &str, code: u32, begin: Instant) {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let since = begin
        .saturating_duration_since(*FIRST.get_or_init(|| begin))
        .as_micros();
    let (process, thread) = (std::process::id(), rustix::thread::gettid().as_raw_nonzero());
    eprintln!(
        "simcuda[{process}/{thread}] {since} {name} -> {code} ({} us)",
        begin.elapsed().as_micros()
    );
}

/// The answer of an entry point that is not implemented; `said` is its own flag.
#[cold]
pub(crate) fn absent(name: &str, said: &AtomicBool) -> u32 {
    if level() >= 1 && !said.swap(true, Ordering::Relaxed) {
        eprintln!("simcuda[{}] {name} is not implemented", std::process::id());
    }
    Error::NOT_SUPPORTED.0
}

/// Reports once that a call is answered with less than a real driver would.
#[cold]
pub(crate) fn note(what: &str, said: &AtomicBool) {
    if level() >= 1 && !said.swap(true, Ordering::Relaxed) {
        eprintln!("simcuda[{}] {what}", std::process::id());
    }
}
