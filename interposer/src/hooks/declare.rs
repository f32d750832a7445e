// SPDX-License-Identifier: MIT OR Apache-2.0
//! The macro that declares hooks, and how hooks read arguments.

use crate::driver::stream::{PER_THREAD_STREAM, Stream};

/// Declares hooks, and a function `find` (or `as NAME;`) that returns them. In a body, `real()`
/// calls the driver's function with the client's arguments.
macro_rules! hooks {
    ($(#[$doc:meta])* fn $($hooks:tt)*) => {
        hooks! { as find; $(#[$doc])* fn $($hooks)* }
    };
    (as $find:ident; $($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) |$real:ident| $body:block)*) => {
        $(
            $(#[$doc])*
            #[allow(non_snake_case)]
            unsafe extern "C" fn $name($($argument: $kind),*) -> $crate::driver::abi::CuResult {
                type Real = unsafe extern "C" fn($($kind),*) -> $crate::driver::abi::CuResult;
                let function = $crate::driver::symbols::real_bound($crate::driver::symbols::index::$name);
                // SAFETY: the driver's function under that symbol has that type.
                let function = unsafe { std::mem::transmute::<*mut (), Real>(function) };
                // Copies, not references: those would lay out all arguments in memory before each
                // launch, for rare paths.
                // SAFETY: the client's arguments, untouched: its own promise to the driver.
                let $real = move || unsafe { function($($argument),*) };
                // No call overtakes a deferred launch.
                if const { $crate::driver::symbols::queue_rule::$name.waits() }
                    && $crate::deferred::busy()
                    && let Some(error) = $crate::deferred::before($crate::driver::symbols::index::$name)
                {
                    return error;
                }
                $body
            }

            const _: () = {
                const NAMES: &[&str] = &[$(stringify!($argument)),*];
                assert!(NAMES.len() == $crate::driver::symbols::argument_count::$name as usize);
            };
        )*

        /// The hook for a symbol of this list.
        pub fn $find(at: usize) -> Option<*const ()> {
            match at {
                $($crate::driver::symbols::index::$name => Some($name as *const ()),)*
                _ => None,
            }
        }
    };
}
pub(crate) use hooks;

/// The stream that a `_ptsz` function means.
#[inline]
pub(super) fn per_thread(stream: Stream) -> Stream {
    if stream == 0 { PER_THREAD_STREAM } else { stream }
}

/// Reads an out-parameter of a call that succeeded; `None` if it is null.
///
/// # Safety
/// `out` is null, or the driver wrote through it.
pub(super) unsafe fn written<T: Copy>(out: *const T) -> Option<T> {
    // SAFETY: the caller's promise.
    (!out.is_null()).then(|| unsafe { out.read() })
}
