//! The calls that weft looks at. Everything else goes straight to the driver.
//!
//! A hook has the driver function's signature, calls the driver exactly once with the client's own arguments, and returns what the
//! driver returned. What it does besides is bookkeeping: it may fail, and then only the bookkeeping is poorer. Hooks that
//! allocate or lock do so only around calls that load code, build graphs, begin captures or take memory; the launch path
//! does neither.
//!
//! Every hook but those of launches first sees what was left behind at the gate gone ([`crate::queue`]).
//! Every stream-ordered function without a hook of its own passes [`ordered`], which tells the session before the driver is called.

mod backed;
pub mod capture;
mod changing;
mod context;
pub mod graph;
mod init;
mod launch;
mod leaving;
mod memory;
pub mod module;
pub mod ordered;
mod share;
mod sync;
mod touching;

use std::sync::LazyLock;

use crate::memory::may_be_managed;
use crate::session::{self, Stream};

/// Declares hooks. In a body, `real()` calls the driver's function with the arguments the client gave.
macro_rules! hooks {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) |$real:ident| $body:block)*) => {
        $(
            $(#[$doc])*
            #[allow(non_snake_case)]
            unsafe extern "C" fn $name($($argument: $kind),*) -> $crate::abi::CuResult {
                type Real = unsafe extern "C" fn($($kind),*) -> $crate::abi::CuResult;
                let function = $crate::table::real_bound($crate::table::index::$name);
                // SAFETY: what the driver has under that symbol is a function of that type.
                let function = unsafe { std::mem::transmute::<*mut (), Real>(function) };
                // With its own copies of them: by reference, all of them would be laid out in memory before each launch, for paths that few take.
                // SAFETY: the client's arguments, untouched: its own promise to the driver.
                let $real = move || unsafe { function($($argument),*) };
                // Nothing overtakes a launch that was left behind at the gate.
                if const { !$crate::queue::by_itself(stringify!($name)) }
                    && $crate::queue::busy()
                    && let Some(error) = $crate::queue::before($crate::table::index::$name)
                {
                    return error;
                }
                $body
            }
        )*

        /// The hook for a symbol, if this module has one.
        pub fn find(at: usize) -> Option<*const ()> {
            match at {
                $($crate::table::index::$name => Some($name as *const ()),)*
                _ => None,
            }
        }
    };
}
pub(crate) use hooks;

/// Our hook for a symbol: in trace mode one that records the call, around the usual one.
pub fn hook(at: usize) -> Option<*const ()> {
    let recorded = session::trace::on().then(|| session::trace::hooks::find(at)).flatten();
    recorded.or_else(|| usual(at))
}

/// Our hook for a symbol in any other mode.
pub fn usual(at: usize) -> Option<*const ()> {
    let modules = [
        launch::find,
        sync::find,
        memory::find,
        share::find,
        module::find,
        graph::find,
        capture::find,
        context::find,
        init::find,
    ];
    // Of two hooks for a symbol, a managed job gets its own, and so does one that may come to be managed.
    let managed = may_be_managed().then(|| touching::find(at).or_else(|| backed::find(at)));
    let managed = managed.flatten();
    // So does one whose launches may be left behind at the gate.
    let leaving = || leaving::find(at).or_else(|| changing::find(at));
    let managed = managed.or_else(|| crate::queue::on().then(leaving).flatten());
    managed.or_else(|| modules.into_iter().find_map(|find| find(at)))
}

/// Whether a managed job has a hook of its own for a symbol.
pub fn is_for_managed(at: usize) -> bool {
    touching::find(at).is_some() || backed::find(at).is_some()
}

/// Is weft told to keep out of this process (`WEFT_MODE=off`)? Then only the lookups are ours, and every other call passes straight
/// through. Asked when a symbol is bound, which is once.
pub fn off() -> bool {
    static OFF: LazyLock<bool> = LazyLock::new(|| std::env::var_os("WEFT_MODE").is_some_and(|mode| mode == "off"));
    *OFF
}

/// What a symbol does where there is no driver, if it is more than to say so.
pub fn without_driver(at: usize) -> Option<*const ()> {
    init::without_driver(at)
}

/// The stream that a `_ptsz` function means.
#[inline]
fn per_thread(stream: Stream) -> Stream {
    if stream == 0 {
        session::PER_THREAD_STREAM
    } else {
        stream
    }
}

/// What the client gets to know through an out-parameter of a call that succeeded.
///
/// # Safety
/// `out` is null, or the driver wrote through it.
unsafe fn written<T: Copy>(out: *const T) -> Option<T> {
    // SAFETY: the caller's promise.
    (!out.is_null()).then(|| unsafe { out.read() })
}
