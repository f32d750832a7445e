// SPDX-License-Identifier: MIT OR Apache-2.0
//! Probes that measure nothing, for tests of the runner (`weft-gpu-probe selftest`, hidden in the
//! help).
#![forbid(unsafe_code)]

use std::time::Duration;

use anyhow::{Result, bail};

use crate::bench::ProbeBench;
use crate::peer::{Mps, Peer};
use crate::probe::{Group, Probe};
use crate::report::Clock;

/// Prints a value and succeeds.
pub const GOOD: Probe = probe("good", 30, |bench| {
    bench.report.value("answer", "", Clock::None, 42).print();
    Ok(())
});

/// Fails.
pub const FAILS: Probe = probe("fails", 30, |_| bail!("as it should"));

/// Aborts its process.
pub const CRASHES: Probe = probe("crashes", 30, |_| std::process::abort());

/// Hangs, with a peer that would hang, too.
pub const HANGS: Probe = probe("hangs", 3, |bench| {
    let mut peer = Peer::start("idle", Mps::Without)?;
    peer.ask("open", Duration::from_secs(60))?;
    bench.report.fact("peer", peer.id()).print();
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
});

const fn probe(name: &'static str, seconds: u64, run: fn(&ProbeBench) -> Result<()>) -> Probe {
    Probe {
        name,
        group: Group::Selftest,
        about: "a test of the runner",
        seconds,
        run,
    }
}
