//! A launch, as the hooks tell it.
#![forbid(unsafe_code)]

use crate::driver::stream::Stream;

/// What is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchKind {
    /// One kernel.
    Kernel,
    /// A graph; its identity stands where a kernel's hash does.
    Graph,
}

/// A launch that is about to go to the driver.
#[derive(Debug, Clone, Copy)]
pub struct LaunchInfo {
    /// Hash of the kernel's identity, or of the graph's. 0 where nothing is known (counted as
    /// unnamed).
    pub kernel_hash: u64,
    /// Where to.
    pub stream: Stream,
    /// What.
    pub kind: LaunchKind,
    /// Predicted GPU nanoseconds if the hook knows better than the session's table (a graph: the
    /// sum of its kernels); 0 = unknown.
    pub cost_hint: u64,
    /// The stream is being captured: nothing runs now, the launch is neither held nor timed.
    pub capturing: bool,
}
