//! The interposer's handle table, once more.

use weft_protocol::atomic;

#[path = "../../../interposer/src/kernels/index.rs"]
pub mod index;
