// SPDX-License-Identifier: MIT OR Apache-2.0
//! Occupancy queries.
#![deny(unsafe_code)]

use simgpu_device::model::model;

use crate::abi::{Error, Handle, Out, R};
use crate::context::current;
use crate::device::attributes::{MAX_THREADS, WARP};
use crate::export::export;
use crate::module::function::{self, Function};

fn blocks(out: Out<i32>, function: Handle, threads: i32, dynamic: usize) -> R {
    let function = function::of_handle(function)?;
    let threads = u32::try_from(threads).map_err(|_| Error::INVALID_VALUE)?;
    let dynamic = u32::try_from(dynamic).unwrap_or(u32::MAX / 2);
    out.set(i32::try_from(function.resident_blocks(threads, dynamic)).unwrap_or(0))
}

/// The block size with the most resident threads, the largest among equals, and the grid that fills
/// the device with it.
fn best(function: &Function, dynamic: impl Fn(u32) -> u32, limit: i32) -> (u32, u32) {
    let limit = u32::try_from(limit)
        .ok()
        .filter(|limit| *limit > 0)
        .unwrap_or(MAX_THREADS)
        .min(MAX_THREADS);
    let sizes = (1..=limit / WARP).map(|warps| warps * WARP);
    let with = sizes.map(|size| (size, function.resident_blocks(size, dynamic(size))));
    let (size, resident) = with
        .max_by_key(|(size, resident)| (size * resident, *size))
        .unwrap_or((WARP, 1));
    (size, resident * current::device().map_or(1, |device| device.processors))
}

fn potential(grid: Out<i32>, block: Out<i32>, function: Handle, sizes: usize, dynamic: usize, limit: i32) -> R {
    let function = function::of_handle(function)?;
    let flat = u32::try_from(dynamic).unwrap_or(u32::MAX / 2);
    let asked = crate::callback::block_to_shared(sizes);
    let (size, blocks) = best(&function, |size| asked.as_ref().map_or(flat, |ask| ask(size)), limit);
    grid.set(i32::try_from(blocks).unwrap_or(i32::MAX))?;
    block.set(i32::try_from(size).unwrap_or(1))
}

export! {
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(out: Out<i32>, function: Handle, threads: i32, dynamic: usize) {
        blocks(out, function, threads, dynamic)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out: Out<i32>, function: Handle, threads: i32, dynamic: usize, flags: u32) {
        let _ = flags;
        blocks(out, function, threads, dynamic)
    }

    fn cuOccupancyMaxPotentialBlockSize(grid: Out<i32>, block: Out<i32>, function: Handle, sizes: usize, dynamic: usize, limit: i32) {
        potential(grid, block, function, sizes, dynamic, limit)
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(grid: Out<i32>, block: Out<i32>, function: Handle, sizes: usize, dynamic: usize, limit: i32, flags: u32) {
        let _ = flags;
        potential(grid, block, function, sizes, dynamic, limit)
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(out: Out<usize>, function: Handle, blocks: i32, threads: i32) {
        let function = function::of_handle(function)?;
        let blocks = u32::try_from(blocks).map_err(|_| Error::INVALID_VALUE)?;
        if blocks == 0 || threads <= 0 {
            return Err(Error::INVALID_VALUE);
        }
        out.set(function.dynamic_for(blocks) as usize)
    }

    fn cuOccupancyMaxActiveClusters(out: Out<i32>, function: Handle, config: usize) {
        let _ = config;
        function::of_handle(function)?;
        // As many as there are of the smallest that is one, two blocks.
        let most = current::device()?.processors / 2;
        out.set(if model().clusters == 0 { 0 } else { i32::try_from(most).unwrap_or(i32::MAX) })
    }

    fn cuOccupancyMaxPotentialClusterSize(out: Out<i32>, function: Handle, config: usize) {
        let _ = config;
        function::of_handle(function)?;
        out.set(i32::try_from(model().clusters.max(1)).unwrap_or(1))
    }
}
