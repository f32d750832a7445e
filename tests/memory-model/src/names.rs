// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interposer's handle table, compiled a second time.

use weft_protocol::atomic;

#[path = "../../../interposer/src/kernels/index.rs"]
pub mod index;
