//! What a kernel is called.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

/// Identity of a kernel launch.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelId {
    /// Hash of the module image the kernel came from (XLA and Triton names alone are not unique); 0 where unknown.
    pub module: u64,
    /// Symbol as the driver knows it (mangled).
    pub symbol: String,
    /// Grid, blocks in x, y, z.
    pub grid: [u32; 3],
    /// Block, threads in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared: u32,
}
