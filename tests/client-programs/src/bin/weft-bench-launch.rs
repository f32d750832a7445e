// SPDX-License-Identifier: MIT OR Apache-2.0
//! A benchmark of the time that one launch costs its thread. `scripts/bench launch` runs one of
//! these for each configuration and has them measure in turn. Each line on stdin, `burst N PARTS`,
//! `sync N PARTS`, `record N PARTS` or `event N PARTS`, is one round of PARTS parts of N launches
//! each. The answer is a line `WALL CPU`: nanoseconds a launch in the median part, by the clock and
//! by the thread's own time (which leaves out other processes' use of the core). A part lasts a
//! fraction of a millisecond: an interruption spoils one part, not the round.
//!
//! `update N PARTS` is the same for updates of an executable graph of 1,500 kernels, `relaunch N
//! PARTS` for an update, a launch of that graph and a wait for it.
#![deny(unsafe_code)]

use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use weft_client_programs::launcher::Launcher;
use weft_client_programs::updates::Updates;

/// Kernels of the graph that is updated: as many as a language model's token takes.
const NODES: usize = 1_500;

fn main() -> Result<()> {
    let launcher = Launcher::open()?;
    let mut graph = None;
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready")?;
    out.flush()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let &[what, count, parts] = words.as_slice() else {
            bail!("expected `burst N PARTS`, `sync`, `record`, `event`, `update` or `relaunch`, not `{line}`");
        };
        let count: u32 = count.parse().context("expected a number of launches")?;
        let parts: u32 = parts.parse().context("expected a number of parts")?;
        ensure!(count > 0 && parts > 0, "expected at least one launch and one part");
        if matches!(what, "update" | "relaunch") && graph.is_none() {
            graph = Some(Updates::make(&launcher, NODES)?);
        }
        let (mut walls, mut cpus) = (Vec::new(), Vec::new());
        for _ in 0..parts {
            let (wall, cpu) = part(&launcher, graph.as_ref(), what, count)?;
            walls.push(wall);
            cpus.push(cpu);
        }
        writeln!(out, "{:.2} {:.2}", median(walls), median(cpus))?;
        out.flush()?;
    }
    Ok(())
}

/// Nanoseconds a launch, by the clock and of the thread's own time.
fn part(launcher: &Launcher, graph: Option<&Updates<'_>>, what: &str, count: u32) -> Result<(f64, f64)> {
    let (begin, cpu_begin) = (Instant::now(), thread_time());
    match (what, graph) {
        ("burst", _) => launcher.burst(count)?,
        ("sync", _) => launcher.burst_with_waits(count)?,
        ("record", _) => launcher.burst_with_records(count)?,
        ("event", _) => launcher.burst_with_events(count)?,
        ("update", Some(graph)) => graph.update(count)?,
        ("relaunch", Some(graph)) => graph.update_and_launch(count)?,
        (other, _) => bail!("unknown round: {other}"),
    }
    let (elapsed, cpu) = (begin.elapsed(), thread_time().saturating_sub(cpu_begin));
    // Outside the time: a burst's cost is that of its launches.
    launcher.wait()?;
    let each = |time: Duration| time.as_nanos() as f64 / f64::from(count);
    Ok((each(elapsed), each(cpu)))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// CPU time of this thread so far.
#[allow(unsafe_code)]
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place for the answer is a local.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
