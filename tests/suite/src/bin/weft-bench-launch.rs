//! Measures what one launch costs the thread that makes it. `scripts/bench launch` runs one of these for each configuration and has them
//! measure in turn: each line on stdin, `burst N` or `sync N`, is one round of N launches, answered with a line `NANOSECONDS` (a launch, on average).
#![forbid(unsafe_code)]

use std::io::{BufRead, Write};
use std::time::Instant;

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
        let begin = Instant::now();
        match what {
            "burst" => launcher.burst(count)?,
            "sync" => launcher.burst_with_waits(count)?,
            other => bail!("unknown round: {other}"),
        }
        let elapsed = begin.elapsed();
        // Outside the time: a burst's cost is that of its launches.
        launcher.wait()?;
        writeln!(out, "{:.2}", elapsed.as_nanos() as f64 / f64::from(count))?;
        out.flush()?;
    }
    Ok(())
}
