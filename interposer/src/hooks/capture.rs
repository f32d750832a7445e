// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls that begin and end captures. [`capture`] records which captures are active.

use super::declare::{hooks, per_thread};
use crate::driver::abi::{CuGraph, CuStream};
use crate::driver::capture;

hooks! {
    fn cuStreamBeginCapture(stream: CuStream) |real| { capture::begin(stream, real) }
    fn cuStreamBeginCapture_ptsz(stream: CuStream) |real| { capture::begin(per_thread(stream), real) }
    fn cuStreamBeginCapture_v2(stream: CuStream, mode: u32) |real| { capture::begin(stream, real) }
    fn cuStreamBeginCapture_v2_ptsz(stream: CuStream, mode: u32) |real| { capture::begin(per_thread(stream), real) }
    fn cuStreamBeginCaptureToGraph(
        stream: CuStream, graph: CuGraph, nodes: usize, edges: usize, count: usize, mode: u32,
    ) |real| {
        capture::begin(stream, real)
    }
    fn cuStreamBeginCaptureToGraph_ptsz(
        stream: CuStream, graph: CuGraph, nodes: usize, edges: usize, count: usize, mode: u32,
    ) |real| {
        capture::begin(per_thread(stream), real)
    }
    fn cuStreamBeginRecaptureToGraph(stream: CuStream, a: u32, b: usize, c: usize, d: usize) |real| {
        capture::begin(stream, real)
    }
    fn cuStreamBeginRecaptureToGraph_ptsz(stream: CuStream, a: u32, b: usize, c: usize, d: usize) |real| {
        capture::begin(per_thread(stream), real)
    }
    fn cuStreamBeginCaptureToCig(stream: CuStream, parameters: usize) |real| { capture::begin(stream, real) }
    fn cuStreamBeginCaptureToCig_ptsz(stream: CuStream, parameters: usize) |real| { capture::begin(per_thread(stream), real) }
    fn cuStreamEndCapture(stream: CuStream, graph: *mut CuGraph) |real| { capture::end(stream, real) }
    fn cuStreamEndCapture_ptsz(stream: CuStream, graph: *mut CuGraph) |real| { capture::end(per_thread(stream), real) }
    fn cuStreamEndCaptureToCig(stream: CuStream) |real| { capture::end(stream, real) }
    fn cuStreamEndCaptureToCig_ptsz(stream: CuStream) |real| { capture::end(per_thread(stream), real) }
}
