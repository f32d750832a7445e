// SPDX-License-Identifier: MIT OR Apache-2.0
//! The common parts of the test programs. Each of them is an ordinary CUDA program: none knows of
//! weft or of the simulated GPU.
pub mod gpu;
pub mod launcher;
pub mod updates;
