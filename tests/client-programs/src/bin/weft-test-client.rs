// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cudarc client of the matrix: launches whose results are checked, streams ordered by events,
//! a graph, threads.
//!
//! `weft-test-client RESULT.json` writes one JSON line there.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weft_client_programs::gpu::{Argument, DeviceMemory, LoadedKernel, OwnStream, TestGpu};

/// Numbers in a buffer.
const COUNT: usize = 4096;

fn main() -> Result<()> {
    let result = std::env::args().nth(1).context("usage: weft-test-client RESULT.json")?;
    let gpu = TestGpu::open()?;
    let launches = filled_and_summed(&gpu)? + axpy_chain(&gpu)? + two_streams(&gpu)? + graph(&gpu)? + threads(&gpu)?;
    let line = serde_json::json!({"ok": true, "launches": launches});
    let new = format!("{result}.new");
    std::fs::write(&new, format!("{line}\n")).context("cannot write the result")?;
    std::fs::rename(&new, &result).context("cannot write the result")?;
    println!("weft-test-client: done");
    Ok(())
}

fn fill(gpu: &TestGpu, kernel: LoadedKernel, memory: DeviceMemory, value: u32, stream: OwnStream) -> Result<()> {
    let mut arguments = [
        Argument::Wide(memory.address),
        Argument::Narrow(value),
        Argument::Wide(COUNT as u64),
    ];
    gpu.launch(kernel, 8, 128, &mut arguments, stream)
}

/// Fills, then a checksum on the device: it knows places, so a lost or a late fill shows.
fn filled_and_summed(gpu: &TestGpu) -> Result<u64> {
    let (fill_kernel, checksum) = (gpu.kernel("simgpu_fill")?, gpu.kernel("simgpu_checksum")?);
    let (stream, data, sum) = (gpu.stream()?, gpu.allocate(COUNT * 4)?, gpu.allocate(8)?);
    for value in 1..=100u32 {
        fill(gpu, fill_kernel, data, value, stream)?;
    }
    gpu.set_bytes(sum, 0, stream)?;
    let mut arguments = [
        Argument::Wide(sum.address),
        Argument::Wide(data.address),
        Argument::Wide(COUNT as u64),
    ];
    gpu.launch(checksum, 1, 32, &mut arguments, stream)?;
    let halves = gpu.download(sum, 2, stream)?;
    // The sum of 100 * (2 i + 1) over i < COUNT is 100 * COUNT^2.
    let expected = 100 * (COUNT as u64) * (COUNT as u64);
    let seen = u64::from(halves[0]) | (u64::from(halves[1]) << 32);
    ensure!(seen == expected, "the checksum is {seen}, not {expected}");
    gpu.free(data)?;
    gpu.free(sum)?;
    Ok(101)
}

/// y = a * x + y, fifty times.
fn axpy_chain(gpu: &TestGpu) -> Result<u64> {
    let axpy = gpu.kernel("simgpu_axpy")?;
    let (stream, x, y) = (gpu.stream()?, gpu.allocate(COUNT * 4)?, gpu.allocate(COUNT * 4)?);
    let ones: Vec<u32> = vec![1.0f32.to_bits(); COUNT];
    gpu.upload(x, &ones, stream)?;
    gpu.upload(y, &ones, stream)?;
    for _ in 0..50 {
        let mut arguments = [
            Argument::Wide(y.address),
            Argument::Wide(x.address),
            Argument::Float(2.0),
            Argument::Wide(COUNT as u64),
        ];
        gpu.launch(axpy, 4, 256, &mut arguments, stream)?;
    }
    let seen = gpu.download(y, COUNT, stream)?;
    ensure!(
        seen.iter().all(|&bits| f32::from_bits(bits) == 101.0),
        "axpy made {}, not 101",
        f32::from_bits(seen[0])
    );
    Ok(50)
}

/// Two streams that hand one buffer back and forth by events: a wait that is lost shows in the
/// data.
fn two_streams(gpu: &TestGpu) -> Result<u64> {
    let (fill_kernel, copy) = (gpu.kernel("simgpu_fill")?, gpu.kernel("simgpu_copy")?);
    let (left, right) = (gpu.stream()?, gpu.stream()?);
    let (a, b) = (gpu.allocate(COUNT * 4)?, gpu.allocate(COUNT * 4)?);
    let (begin, end) = (gpu.event()?, gpu.event()?);
    gpu.record(begin, left)?;
    for value in 0..30u32 {
        fill(gpu, fill_kernel, a, value, left)?;
        let filled = gpu.event()?;
        gpu.record(filled, left)?;
        gpu.wait_for(right, filled)?;
        let mut arguments = [
            Argument::Wide(b.address),
            Argument::Wide(a.address),
            Argument::Wide((COUNT * 4) as u64),
        ];
        gpu.launch(copy, 8, 128, &mut arguments, right)?;
        let copied = gpu.event()?;
        gpu.record(copied, right)?;
        gpu.wait_for(left, copied)?;
    }
    gpu.record(end, left)?;
    let seen = gpu.download(b, COUNT, right)?;
    ensure!(
        seen.iter().all(|&v| v == 29),
        "the streams overtook each other: {}",
        seen[0]
    );
    gpu.synchronize(left)?;
    ensure!(
        gpu.between(begin, end)? > Duration::ZERO,
        "no time passed on the device"
    );
    Ok(60)
}

/// A graph of three kernels, replayed; the data is that of its last node.
fn graph(gpu: &TestGpu) -> Result<u64> {
    let fill_kernel = gpu.kernel("simgpu_fill")?;
    let (stream, data) = (gpu.stream()?, gpu.allocate(COUNT * 4)?);
    let graph = gpu.capture(stream, || {
        (7..10).try_for_each(|value| fill(gpu, fill_kernel, data, value, stream))
    })?;
    for _ in 0..10 {
        gpu.replay(graph, stream)?;
    }
    let seen = gpu.download(data, COUNT, stream)?;
    ensure!(seen.iter().all(|&v| v == 9), "the graph's last node left {}", seen[0]);
    Ok(0)
}

/// Four threads, each with its stream and its buffer.
fn threads(gpu: &TestGpu) -> Result<u64> {
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4u32)
            .map(|worker| {
                scope.spawn(move || {
                    gpu.enter()?;
                    let kernel = gpu.kernel("simgpu_fill")?;
                    let (stream, data) = (gpu.stream()?, gpu.allocate(COUNT * 4)?);
                    for step in 0..50 {
                        fill(gpu, kernel, data, worker * 1000 + step, stream)?;
                    }
                    let seen = gpu.download(data, COUNT, stream)?;
                    ensure!(
                        seen.iter().all(|&v| v == worker * 1000 + 49),
                        "thread {worker} saw {}",
                        seen[0]
                    );
                    Ok(())
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| {
                worker
                    .join()
                    .unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked")))
            })
            .collect()
    });
    results.into_iter().collect::<Result<Vec<()>>>()?;
    Ok(200)
}
