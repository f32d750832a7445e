// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two processes on one device, and three: cost of a switch between them, time that each keeps the
//! device, wait of a small launch while another process is busy. Without MPS (probe `switch`), and
//! under a daemon whose pipe directory is given (probe `mps`).
//!
//! Each process holds its stream up with a spinning kernel and queues many short stamping kernels
//! behind it, so that all have work all the time.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::turns::{SeenTurns, Stamp, seen};
use crate::bench::{ProbeBench, nanoseconds};
use crate::driver::Gpu;
use crate::peer::{Mps, Peer, Role, left};
use crate::probe::{Group, Probe};
use crate::report::{Clock, Samples};

/// Without MPS.
pub const PROBE: Probe = Probe {
    name: "switch",
    group: Group::Calibration,
    about: "two and three processes without MPS: cost of a switch, time slice, a launch beside a busy one",
    // Its loops end after 12 of them.
    seconds: 20,
    run: without,
};

/// Under MPS.
pub const MPS_PROBE: Probe = Probe {
    name: "mps",
    group: Group::Calibration,
    about: "the same under an MPS daemon (--mps-pipe), and how far kernels of both run at once",
    seconds: 20,
    run: under,
};

/// Kernels of each process in a round.
// 30 ms of work, so 60 ms in which slices of one or two milliseconds show.
const KERNELS: usize = 3_000;
/// Each kernel's time: well above the host cost of a launch, well below a slice.
const KERNEL_NS: u64 = 10_000;
/// Time for which the stream is held: it suffices to fill a driver's queue.
const HOLD_NS: u64 = 10_000_000;
/// Rounds of each number of processes.
const ROUNDS: usize = 5;
/// Time of the busy process's work, and of each of its kernels.
const BUSY_NS: u64 = 400_000_000;
const BUSY_KERNEL_NS: u64 = 200_000;

fn without(bench: &ProbeBench) -> Result<()> {
    let mut peers = open(bench, 2, Mps::Without)?;
    let seen = rounds(bench, &mut peers)?;
    let report = &bench.report;
    let turns = Samples::new(seen.iter().flat_map(|seen| seen.turns.iter().copied()));
    ensure!(
        seen.iter().any(|seen| !seen.switches.is_empty()),
        "the device did not change hands in {ROUNDS} rounds (overlap {:.2}): do the processes run under MPS?",
        overlap(&seen).median()
    );
    switch_line(bench, "switch", &seen);
    report.samples("time_slice", "ns", Clock::Device, &turns).print();
    report
        .samples("overlap", "ratio", Clock::Device, &overlap(&seen))
        .print();
    if Instant::now() < bench.until {
        peers.extend(open(bench, 1, Mps::Without)?);
        switch_line(bench, "switch_of_three", &rounds(bench, &mut peers)?);
    } else {
        report.skipped_part("switch_of_three", "no time left");
    }
    beside(bench, &mut peers)
}

/// Prints the time from a process's last instruction to the next one's first, over all rounds.
fn switch_line(bench: &ProbeBench, name: &str, seen: &[SeenTurns]) {
    let switches = Samples::new(seen.iter().flat_map(|seen| seen.switches.iter().copied()));
    let mut line = bench.report.samples(name, "ns", Clock::Device, &switches);
    if switches.is_empty() {
        line = line.and("note", "no change of hands was seen");
    } else if bench.gpu.is_simulated() {
        line = line.and(
            "note",
            "the simulated kernels do not see their pauses: up to two kernels of 10 us too long",
        );
    }
    line.and("rounds", seen.len()).and("preempted", preempted(seen)).print();
}

fn under(bench: &ProbeBench) -> Result<()> {
    let Some(pipe) = &bench.options.mps_pipe else {
        bench.report.skipped("no --mps-pipe was given");
        return Ok(());
    };
    let mps = Mps::Pipe(pipe);
    let mut peers = open(bench, 2, mps)?;
    let seen = rounds(bench, &mut peers)?;
    switch_line(bench, "switch", &seen);
    bench
        .report
        .samples("overlap", "ratio", Clock::Device, &overlap(&seen))
        .and(
            "note",
            "of the time in which both had work, the share in which kernels (of one thread each) of both ran",
        )
        .print();
    beside(bench, &mut peers)
}

fn overlap(seen: &[SeenTurns]) -> Samples {
    Samples::new(seen.iter().map(|seen| seen.overlap))
}

fn preempted(seen: &[SeenTurns]) -> usize {
    seen.iter().map(|seen| seen.preempted).sum()
}

/// Starts processes, all at once, and waits until each has the device open.
fn open(bench: &ProbeBench, count: usize, mps: Mps<'_>) -> Result<Vec<Peer>> {
    let mut peers = Vec::new();
    for _ in 0..count {
        let mut peer = Peer::start("stamps", mps)?;
        peer.tell("open")?;
        peers.push(peer);
    }
    for peer in &mut peers {
        peer.hear(left(bench.until))?;
    }
    Ok(peers)
}

fn rounds(bench: &ProbeBench, peers: &mut [Peer]) -> Result<Vec<SeenTurns>> {
    let mut rounds = Vec::new();
    while rounds.len() < ROUNDS && (rounds.is_empty() || Instant::now() < bench.until) {
        for peer in peers.iter_mut() {
            peer.tell("stamps")?;
        }
        let heard = peers.iter_mut().map(|peer| stamps(&peer.hear(left(bench.until))?));
        rounds.push(seen(&heard.collect::<Result<Vec<_>>>()?, KERNEL_NS));
    }
    Ok(rounds)
}

fn stamps(line: &str) -> Result<Vec<Stamp>> {
    let words: Vec<u64> = line
        .split_whitespace()
        .map(|word| word.parse().context("a stamp"))
        .collect::<Result<_>>()?;
    Ok(words.as_chunks::<4>().0.to_vec())
}

/// Measures the time of a small launch and its wait, first by itself and then while another process
/// is busy.
fn beside(bench: &ProbeBench, peers: &mut [Peer]) -> Result<()> {
    let [busy, small, ..] = peers else {
        bail!("two processes are needed")
    };
    let alone = small.ask_numbers("ping 200", left(bench.until))?;
    bench
        .report
        .samples("ping_alone", "ns", Clock::Host, &Samples::new(alone))
        .and("note", "launch of an empty kernel and a wait for it, alone")
        .print();
    busy.tell("busy")?;
    // A moment, so that the other process's work has begun.
    std::thread::sleep(Duration::from_millis(50));
    let beside = small.ask_numbers("ping 50", left(bench.until))?;
    bench
        .report
        .samples("ping_beside_busy", "ns", Clock::Host, &Samples::new(beside))
        .and(
            "note",
            "the same beside a process with kernels of 200 us back to back, one thread each",
        )
        .print();
    busy.hear(left(bench.until))?;
    Ok(())
}

/// A peer that stamps, keeps the device busy, or launches small kernels.
#[derive(Default)]
pub struct Stamps(Option<Gpu>);

impl Role for Stamps {
    fn answer(&mut self, line: &str) -> Result<String> {
        if line == "open" {
            self.0 = Some(Gpu::open()?);
            return Ok("open".to_owned());
        }
        let gpu = self.0.as_ref().context("not open")?;
        match line.split_once(' ') {
            None if line == "stamps" => self::stamp(gpu),
            None if line == "busy" => self::busy(gpu),
            Some(("ping", count)) => ping(gpu, count.parse().context("a count")?),
            _ => bail!("no such thing to do: {line}"),
        }
    }
}

fn stamp(gpu: &Gpu) -> Result<String> {
    const BYTES: usize = KERNELS * size_of::<Stamp>();
    let (spin, stamp, stream) = (
        gpu.kernel("gpu_probe_spin")?,
        gpu.kernel("gpu_probe_stamp")?,
        gpu.stream()?,
    );
    let (out, back) = (gpu.plain(BYTES, BYTES)?, gpu.pinned(BYTES, BYTES)?);
    gpu.launch(spin, 1, 1, &[HOLD_NS], stream)?;
    for at in 0..KERNELS as u64 {
        let at = out.address() + at * size_of::<Stamp>() as u64;
        gpu.launch(stamp, 1, 1, &[at, KERNEL_NS], stream)?;
    }
    gpu.copy(&back, &out, BYTES, stream)?;
    gpu.wait(stream)?;
    gpu.end_stream(stream)?;
    let words: Vec<String> = back.words_64(KERNELS * 4).iter().map(u64::to_string).collect();
    Ok(words.join(" "))
}

fn busy(gpu: &Gpu) -> Result<String> {
    let (spin, stream) = (gpu.kernel("gpu_probe_spin")?, gpu.stream()?);
    for _ in 0..BUSY_NS / BUSY_KERNEL_NS {
        gpu.launch(spin, 1, 1, &[BUSY_KERNEL_NS], stream)?;
    }
    gpu.wait(stream)?;
    gpu.end_stream(stream)?;
    Ok("done".to_owned())
}

fn ping(gpu: &Gpu, count: usize) -> Result<String> {
    let (empty, stream) = (gpu.kernel("gpu_probe_empty")?, gpu.stream()?);
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let begin = Instant::now();
        gpu.launch(empty, 1, 32, &[], stream)?;
        gpu.wait(stream)?;
        times.push(nanoseconds(begin.elapsed()).to_string());
    }
    gpu.end_stream(stream)?;
    Ok(times.join(" "))
}
