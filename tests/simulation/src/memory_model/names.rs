//! The interposer's handle table, once more.

use super::atomic;

#[path = "../../../../interposer/src/names/index.rs"]
pub mod index;
