//! A launch, in the form that the hooks pass on.
#![forbid(unsafe_code)]

use crate::driver::stream::Stream;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchKind {
    Kernel,
    /// A graph, whose identity replaces a kernel's hash.
    Graph,
}

/// A launch that is about to go to the driver.
#[derive(Debug, Clone, Copy)]
pub struct LaunchInfo {
    /// Identity hash; 0 if unknown (counted as unnamed).
    pub kernel_hash: u64,
    pub stream: Stream,
    pub kind: LaunchKind,
    /// Predicted GPU time, ns, if better known than by the session's table (a graph: its kernels'
    /// sum); 0 = unknown.
    pub cost_hint: u64,
    /// Whether the stream is being captured: nothing runs now.
    pub capturing: bool,
}
