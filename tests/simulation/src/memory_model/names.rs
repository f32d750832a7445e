//! The interposer's handle table, once more.

use super::atomic;

#[path = "../../../../interposer/src/kernels/index.rs"]
pub mod index;
