// SPDX-License-Identifier: MIT OR Apache-2.0
//! A launch on its way from its hook to the driver.
#![forbid(unsafe_code)]

use crate::driver::stream::{Stream, own_stream};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchKind {
    Kernel,
    /// A graph, whose identity replaces a kernel's hash.
    Graph,
}

/// A launch, whatever the job's mode.
///
/// Two plain words: it passes every call by value, in registers. A launch in memory would lie on
/// the hook's stack, and the hook could not end with a jump to the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    identity: u64,
    /// The stream, [`GRAPH`] and [`CAPTURED`]. Stream handles are addresses of a process or small
    /// numbers: their two highest bits are 0.
    place: u64,
}

const GRAPH: u64 = 1 << 62;
const CAPTURED: u64 = 1 << 63;

impl Launch {
    /// A launch of the kernel with this identity hash (of its code, name and shape; 0: unknown).
    /// `captured`: the stream is being captured, so nothing runs now.
    #[inline(always)]
    pub fn kernel(identity: u64, stream: Stream, captured: bool) -> Launch {
        let place = stream as u64 | if captured { CAPTURED } else { 0 };
        Launch { identity, place }
    }

    /// A launch of the graph with this identity hash.
    #[inline(always)]
    pub fn graph(identity: u64, stream: Stream, captured: bool) -> Launch {
        let launch = Launch::kernel(identity, stream, captured);
        Launch {
            place: launch.place | GRAPH,
            ..launch
        }
    }

    /// Identity hash of the kernel or graph; 0: unknown (counted as unnamed).
    #[inline(always)]
    pub fn identity(self) -> u64 {
        self.identity
    }

    #[inline(always)]
    pub fn stream(self) -> Stream {
        (self.place & !(GRAPH | CAPTURED)) as Stream
    }

    /// The stream's key: [`own_stream`].
    #[inline(always)]
    pub fn own_stream(self) -> usize {
        own_stream(self.stream())
    }

    #[inline(always)]
    pub fn kind(self) -> LaunchKind {
        match self.place & GRAPH {
            0 => LaunchKind::Kernel,
            _ => LaunchKind::Graph,
        }
    }

    /// Whether the stream is being captured: nothing runs now.
    #[inline(always)]
    pub fn is_captured(self) -> bool {
        self.place & CAPTURED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_keeps_its_stream_kind_and_capture() {
        for stream in [0, 2, 0x7fff_ffff_fff0] {
            for captured in [false, true] {
                let kernel = Launch::kernel(7, stream, captured);
                let graph = Launch::graph(8, stream, captured);
                assert_eq!((kernel.identity(), graph.identity()), (7, 8));
                assert_eq!((kernel.kind(), graph.kind()), (LaunchKind::Kernel, LaunchKind::Graph));
                for launch in [kernel, graph] {
                    assert_eq!((launch.stream(), launch.is_captured()), (stream, captured));
                }
            }
        }
    }
}
