// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plain memory that leaves the device and comes back at the same addresses. Its contents are
//! copied to pinned host memory, and its physical memory is given back. Then new memory is mapped
//! and filled.
//!
//! It holds no managed memory and takes no checkpoint. Pinned memory is one buffer of at most 256
//! MiB, used for all parts in turn. So only the contents of the last part come back, and they are
//! compared.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::bench::{EventPair, ProbeBench, nanoseconds, rate};
use crate::driver::{CudaError, Memory, Reserved, Stream};
use crate::probe::{Group, Probe};
use crate::report::{Clock, Samples};

/// The probe.
pub const PROBE: Probe = Probe {
    name: "vmm",
    group: Group::Movable,
    about: "plain memory by pieces and as a whole: map, copy out, release, map anew, copy in",
    seconds: 15,
    run,
};

/// Most memory: enough for the costs of a GiB, little compared with a card's.
const MOST_BYTES: usize = 4 << 30;
/// Most memory on the simulated device, whose memory is the host's.
const MOST_SIMULATED_BYTES: usize = 256 << 20;
/// A piece, as an allocator would move it.
const PIECE_BYTES: usize = 64 << 20;
/// The pinned buffer.
const PINNED_BYTES: usize = 256 << 20;
/// Bytes that the driver may keep for its tables when memory leaves.
const KEPT_BYTES: usize = 16 << 20;
/// Moves of all the memory, out and in.
const ROUNDS: usize = 3;
const GIB_BYTES: f64 = (1u64 << 30) as f64;
/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`.
const SUPPORTED: i32 = 102;

fn run(bench: &ProbeBench) -> Result<()> {
    let (gpu, report) = (&bench.gpu, &bench.report);
    if gpu.attribute(SUPPORTED)? == 0 {
        report.skipped("the device has no virtual memory management");
        return Ok(());
    }
    let most = if gpu.is_simulated() {
        MOST_SIMULATED_BYTES
    } else {
        MOST_BYTES
    };
    let granularity = gpu.granularity()?;
    report.value("granularity", "bytes", Clock::None, granularity).print();
    let piece = PIECE_BYTES.next_multiple_of(granularity.max(1));
    let room = gpu.room(most, piece, false)?;
    let bytes = room - room % piece;
    let pinned = gpu.pinned(PINNED_BYTES.min(bytes), PINNED_BYTES.min(bytes))?;
    let mover = Mover {
        bench,
        stream: gpu.stream()?,
        pair: bench.pair()?,
        contents: contents(pinned.bytes()),
        pinned,
    };
    mover.moves("", bytes, piece)?;
    if Instant::now() > bench.until {
        report.skipped_part("whole", "no time left");
        return Ok(());
    }
    mover.moves("whole_", bytes, bytes)
}

/// Figures by name: nanoseconds of each call of the host, rates of copies, free memory.
type Figures = BTreeMap<&'static str, Vec<f64>>;

fn time(figures: &mut Figures, name: &'static str, body: impl FnOnce() -> Result<(), CudaError>) -> Result<()> {
    let begin = Instant::now();
    body()?;
    figures.entry(name).or_default().push(nanoseconds(begin.elapsed()));
    Ok(())
}

struct Mover<'b> {
    bench: &'b ProbeBench,
    stream: Stream,
    pair: EventPair<'b>,
    pinned: Memory<'b>,
    /// Contents of the last part.
    contents: Vec<u64>,
}

impl Mover<'_> {
    /// Moves `bytes` in pieces of `piece_bytes` and prints lines whose names begin with `prefix`.
    fn moves(&self, prefix: &str, bytes: usize, piece_bytes: usize) -> Result<()> {
        let (mut figures, mut rounds, mut equal) = (Figures::new(), 0, true);
        while rounds < ROUNDS && (rounds == 0 || Instant::now() < self.bench.until) {
            equal &= self.round(bytes, piece_bytes, &mut figures)?;
            rounds += 1;
        }
        let print = |name: String, unit: &str, clock: Clock, values: Vec<f64>| {
            let line = self.bench.report.samples(&name, unit, clock, &Samples::new(values));
            line.and("bytes", bytes).and("piece_bytes", piece_bytes).print();
        };
        for (name, values) in &figures {
            let (unit, clock) = match name.split('_').next() {
                Some("free") => ("bytes", Clock::None),
                Some("copy") => ("bytes/us", Clock::Device),
                _ => ("ns", Clock::Host),
            };
            print(format!("{prefix}{name}"), unit, clock, values.clone());
            if unit == "ns" {
                let of_round = values
                    .chunks(values.len() / rounds)
                    .map(|calls| calls.iter().sum::<f64>());
                let per_gib = of_round.map(|ns| ns * GIB_BYTES / bytes as f64).collect();
                print(format!("{prefix}{name}_gib"), "ns/GiB", clock, per_gib);
            }
        }
        self.bench
            .report
            .fact(&format!("{prefix}contents_equal"), equal)
            .and("bytes", self.pinned.bytes())
            .print();
        ensure!(equal, "the contents differ after they left the device and came back");
        let last = |name: &str| figures.get(name).and_then(|values| values.last()).copied();
        let back = last("free_evicted").unwrap_or(0.0) - last("free_mapped").unwrap_or(0.0);
        ensure!(
            back + KEPT_BYTES as f64 >= bytes as f64,
            "{back} bytes are free again after {bytes} bytes left the device"
        );
        Ok(())
    }

    /// One way out and in. Returns whether the contents of the last part are as before.
    fn round(&self, bytes: usize, piece_bytes: usize, figures: &mut Figures) -> Result<bool> {
        let gpu = &self.bench.gpu;
        let last = bytes - self.pinned.bytes();
        let free = |figures: &mut Figures, name| -> Result<()> {
            figures.entry(name).or_default().push(gpu.free_memory()? as f64);
            Ok(())
        };
        free(figures, "free_before")?;
        let mut memory = gpu.reserved(bytes, piece_bytes);
        time(figures, "reserve", || memory.reserve())?;
        for _ in 0..memory.room() {
            time(figures, "create", || memory.create())?;
            time(figures, "map", || memory.map())?;
            time(figures, "set_access", || memory.set_access())?;
        }
        free(figures, "free_mapped")?;
        self.pinned.set_words_64(&self.contents);
        self.copy(&memory, last, true)?;
        self.clear()?;

        for from in self.parts(bytes) {
            let rate = self.copy(&memory, from, false)?;
            figures.entry("copy_out").or_default().push(rate);
        }
        for _ in 0..memory.room() {
            time(figures, "unmap_release", || memory.unmap_release())?;
        }
        free(figures, "free_evicted")?;
        for _ in 0..memory.room() {
            time(figures, "map_again", || {
                memory.create()?;
                memory.map()?;
                memory.set_access()
            })?;
        }
        // The driver may map the very memory that left: its contents must not count.
        gpu.fill(&memory.part(0, bytes), 0xff, bytes, self.stream)?;
        for from in self.parts(bytes) {
            let rate = self.copy(&memory, from, true)?;
            figures.entry("copy_in").or_default().push(rate);
        }

        self.clear()?;
        self.copy(&memory, last, false)?;
        let equal = self.pinned.holds(&self.contents);
        drop(memory);
        free(figures, "free_after")?;
        Ok(equal)
    }

    /// Clears the pinned buffer: a copy that does nothing must not look like one that does.
    fn clear(&self) -> Result<()> {
        let gpu = &self.bench.gpu;
        gpu.fill(&self.pinned, 0, self.pinned.bytes(), self.stream)?;
        Ok(gpu.wait(self.stream)?)
    }

    /// The begin of each part that fits the pinned buffer; the last one ends with the memory.
    fn parts(&self, bytes: usize) -> impl Iterator<Item = usize> {
        let part = self.pinned.bytes();
        (0..bytes.div_ceil(part)).map(move |at| (at * part).min(bytes - part))
    }

    /// Copies a part between the device and the pinned buffer and waits. Returns bytes a
    /// microsecond.
    fn copy(&self, memory: &Reserved<'_>, from: usize, to_device: bool) -> Result<f64> {
        let part = memory.part(from, self.pinned.bytes());
        let (to, from) = if to_device {
            (&part, &self.pinned)
        } else {
            (&self.pinned, &part)
        };
        let ns = self.pair.around(self.stream, || {
            Ok(self.bench.gpu.copy(to, from, part.bytes(), self.stream)?)
        })?;
        Ok(rate(part.bytes(), ns))
    }
}

/// Words that fill `bytes` bytes, all different.
fn contents(bytes: usize) -> Vec<u64> {
    /// Odd, so that multiplication by it is one to one: 2^64 over the golden ratio.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    (1..=bytes as u64 / 8).map(|at| at.wrapping_mul(SPREAD)).collect()
}
