// SPDX-License-Identifier: MIT OR Apache-2.0
//! Patterns of real clients that break careless layers between a job and its driver, each with a
//! check that fails if the layer is careless.
//!
//! `weft-test-patterns RESULT.json` writes one JSON line there and ends without running any
//! destructor, as some clients do.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cudarc::driver::result;
use weft_client_programs::gpu::{Argument, DeviceMemory, LoadedKernel, OwnStream, TestGpu};

/// Numbers in a buffer.
const COUNT: usize = 1024;

/// A spinning kernel gives up after this time. It is longer than weft holds any launch that others
/// of the same process wait for.
const SPIN_LIMIT: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    let path = std::env::args()
        .nth(1)
        .context("usage: weft-test-patterns RESULT.json")?;
    let gpu = TestGpu::open()?;
    spinning_kernel(&gpu).context("a kernel that spins until later launches are queued")?;
    global_capture(&gpu).context("a capture in global mode beside a thread that launches")?;
    host_functions(&gpu).context("host functions among launches")?;
    crossing_streams(&gpu).context("streams that wait for each other")?;
    steady_memory(&gpu).context("free memory is steady")?;
    std::fs::write(&path, "{\"ok\":true}\n").context("cannot write the result")?;
    println!("weft-test-patterns: done");
    // SAFETY: ends the process at once, which is the case under test; the line above is written,
    // for stdout is flushed at its end of line or here.
    unsafe { libc::_exit(0) }
}

fn fill(gpu: &TestGpu, kernel: LoadedKernel, memory: DeviceMemory, value: u32, stream: OwnStream) -> Result<()> {
    let mut arguments = [
        Argument::Wide(memory.address),
        Argument::Narrow(value),
        Argument::Wide(COUNT as u64),
    ];
    gpu.launch(kernel, 4, 64, &mut arguments, stream)
}

/// Pinned host memory, as numbers that the device writes and reads.
fn pinned(words: usize) -> Result<&'static [AtomicU32]> {
    // SAFETY: plain allocation; never freed, so the slice is good for the life of the process.
    let place = unsafe { result::malloc_host(words * 4, 0) }.context("cuMemHostAlloc")?;
    // SAFETY: the memory is that large and aligned to pages; any bits are an atomic number.
    Ok(unsafe { std::slice::from_raw_parts(place.cast(), words) })
}

/// XLA's tuner: a one-thread kernel spins on a host word; event, kernel, event are queued behind
/// it; then the host stores the word. A layer that waits for one launch to end before it lets the
/// next pass runs into the kernel's limit.
fn spinning_kernel(gpu: &TestGpu) -> Result<()> {
    let (spin, work) = (gpu.kernel("simgpu_spin")?, gpu.kernel("simgpu_fill")?);
    let (stream, data, word) = (gpu.stream()?, gpu.allocate(COUNT * 4)?, pinned(1)?);
    let limit = u64::try_from(SPIN_LIMIT.as_nanos())?;
    for round in 0..5 {
        word[0].store(0, Ordering::SeqCst);
        let begin = Instant::now();
        let mut arguments = [Argument::Wide(word.as_ptr() as u64), Argument::Wide(limit)];
        gpu.launch(spin, 1, 1, &mut arguments, stream)?;
        let (before, after) = (gpu.event()?, gpu.event()?);
        gpu.record(before, stream)?;
        fill(gpu, work, data, round, stream)?;
        gpu.record(after, stream)?;
        word[0].store(1, Ordering::SeqCst);
        gpu.synchronize(stream)?;
        ensure!(begin.elapsed() < SPIN_LIMIT, "the word was stored too late");
        ensure!(
            gpu.download(data, COUNT, stream)?.iter().all(|&value| value == round),
            "the work behind it is lost"
        );
    }
    Ok(())
}

/// While a thread captures in global mode, an unsafe call of any thread spoils the capture: also
/// one that the layer makes by itself.
fn global_capture(gpu: &TestGpu) -> Result<()> {
    let kernel = gpu.kernel("simgpu_fill")?;
    let (stream, other) = (gpu.stream()?, gpu.stream()?);
    let (data, scratch) = (gpu.allocate(COUNT * 4)?, gpu.allocate(COUNT * 4)?);
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| {
            gpu.enter()?;
            (0..300).try_for_each(|value| fill(gpu, kernel, scratch, value, other))
        });
        let graph = gpu.capture_global(stream, || {
            (0..300).try_for_each(|value| fill(gpu, kernel, data, value, stream))
        })?;
        beside
            .join()
            .map_err(|_| anyhow::anyhow!("the other thread panicked"))??;
        gpu.replay(graph, stream)?;
        let seen = gpu.download(data, COUNT, stream)?;
        ensure!(seen.iter().all(|&value| value == 299), "the graph left {}", seen[0]);
        gpu.synchronize(other)
    })
}

unsafe extern "C" fn note(word: *mut c_void) {
    // SAFETY: the word is pinned memory of ours, alive for the life of the process.
    let words = unsafe { std::slice::from_raw_parts(word.cast::<AtomicU32>(), 2) };
    // The second word keeps the value that the copy before has put into the first.
    words[1].store(words[0].load(Ordering::SeqCst), Ordering::SeqCst);
}

/// A host function runs after the work before it in its stream and before the work behind it.
fn host_functions(gpu: &TestGpu) -> Result<()> {
    let (kernel, copy) = (gpu.kernel("simgpu_fill")?, gpu.kernel("simgpu_copy")?);
    let (stream, data, words) = (gpu.stream()?, gpu.allocate(COUNT * 4)?, pinned(2)?);
    for value in 1..50u32 {
        fill(gpu, kernel, data, value, stream)?;
        let mut arguments = [
            Argument::Wide(words.as_ptr() as u64),
            Argument::Wide(data.address),
            Argument::Wide(4),
        ];
        gpu.launch(copy, 1, 32, &mut arguments, stream)?;
        // SAFETY: `note` touches only the two words, which live for ever.
        unsafe { result::stream::launch_host_function(stream.0, note, words.as_ptr() as *mut c_void) }
            .context("cuLaunchHostFunc")?;
        fill(gpu, kernel, data, value + 1000, stream)?;
        gpu.synchronize(stream)?;
        let seen = words[1].load(Ordering::SeqCst);
        ensure!(seen == value, "the host function saw {seen} instead of {value}");
    }
    Ok(())
}

/// Each stream waits for the other in turn, with many launches in between: a layer that holds back
/// only one stream stops both.
fn crossing_streams(gpu: &TestGpu) -> Result<()> {
    let kernel = gpu.kernel("simgpu_fill")?;
    let (left, right) = (gpu.stream()?, gpu.stream()?);
    let data = gpu.allocate(COUNT * 4)?;
    for round in 0..20u32 {
        for (from, to) in [(left, right), (right, left)] {
            for step in 0..10 {
                fill(gpu, kernel, data, round * 10 + step, from)?;
            }
            let reached = gpu.event()?;
            gpu.record(reached, from)?;
            gpu.wait_for(to, reached)?;
        }
    }
    let seen = gpu.download(data, COUNT, left)?;
    ensure!(
        seen.iter().all(|&value| value == 199),
        "the last fill is not the last: {}",
        seen[0]
    );
    gpu.synchronize(right)
}

/// Free memory does not rise while a process only asks for it (a client that sizes its cache by it
/// fails if it does).
fn steady_memory(gpu: &TestGpu) -> Result<()> {
    let held = gpu.allocate(1 << 20)?;
    let (first, total) = result::mem_get_info().context("cuMemGetInfo")?;
    for _ in 0..50 {
        let (free, same) = result::mem_get_info().context("cuMemGetInfo")?;
        ensure!(
            same == total && free == first,
            "{first} bytes free of {total}, then {free} of {same}"
        );
    }
    gpu.free(held)
}
