//! Measures what one launch costs the thread that makes it. `scripts/bench launch` runs one of these for each configuration and has them
//! measure in turn: each line on stdin, `burst N` or `sync N`, is one round of N launches, answered with a line
//! `WALL CPU`: nanoseconds a launch on average, by the clock and of the thread's own time (which leaves out what other processes took of the core).
#![deny(unsafe_code)]

use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use weft_tests::launcher::Launcher;

fn main() -> Result<()> {
    let launcher = Launcher::open()?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready")?;
    out.flush()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (what, count) = line.split_once(' ').context("expected `burst N` or `sync N`")?;
        let count: u32 = count.parse().context("expected a number of launches")?;
        ensure!(count > 0, "expected at least one launch");
        let (begin, cpu_begin) = (Instant::now(), thread_time());
        match what {
            "burst" => launcher.burst(count)?,
            "sync" => launcher.burst_with_waits(count)?,
            other => bail!("unknown round: {other}"),
        }
        let (elapsed, cpu) = (begin.elapsed(), thread_time().saturating_sub(cpu_begin));
        // Outside the time: a burst's cost is that of its launches.
        launcher.wait()?;
        let each = |time: Duration| time.as_nanos() as f64 / f64::from(count);
        writeln!(out, "{:.2} {:.2}", each(elapsed), each(cpu))?;
        out.flush()?;
    }
    Ok(())
}

/// What this thread has spent on a core so far.
#[allow(unsafe_code)]
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place for the answer is a local.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
