//! What a kernel is called.
//!
//! A launch is identified by the module image it came from, its symbol, its grid, its block and its
//! dynamic shared memory: [`KernelId`]. XLA and Triton reuse one name for different code, so the
//! symbol alone is not enough; one symbol runs for very different times at different shapes, so the
//! shape belongs to the identity.
//!
//! * [`hash`]: the 64-bit numbers that stand for identities in rings, lanes and files. They are the
//!   same in every process and in every build.
//! * [`names`]: from a number back to a [`KernelId`], bounded.
//! * [`demangle`]: from a symbol to what a person wants to read.
//!
//! Pure: no clock, no file, no thread. Nothing here panics on any input, because the interposer
//! calls it inside a guest.
#![forbid(unsafe_code)]

pub mod demangle;
pub mod hash;
mod id;
pub mod names;

pub use hash::{SymbolKey, graph_hash, image_hash, launch_hash};
pub use id::{KernelId, MAX_SYMBOL};
pub use names::Names;
