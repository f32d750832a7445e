//! Memory that is advised to be mostly read keeps its copy on the host: does it leave the device without being copied?

use anyhow::Result;

use super::{NO_LEDGER, Tools};
use crate::bench::Bench;
use crate::driver::Place;
use crate::probes::{Group, Probe};
use crate::report::{Clock, Samples};

/// The probe.
pub const PROBE: Probe = Probe {
    name: "read-mostly",
    group: Group::Memory,
    about: "memory advised as mostly read: coming, leaving, coming again, and what a write costs then",
    seconds: 30,
    run,
};

/// What moves.
const LARGE: usize = 128 << 20;
/// What is still measured where there is little memory.
const LEAST: usize = 8 << 20;
/// Rounds.
const ROUNDS: usize = 6;

fn run(bench: &Bench) -> Result<()> {
    let (gpu, report) = (&bench.gpu, &bench.report);
    let tools = Tools::new(bench)?;
    for (advised, name) in [(false, "plain"), (true, "read_mostly")] {
        let memory = gpu.managed(LARGE, LEAST)?;
        memory.populate(1);
        if advised {
            gpu.read_mostly(memory.whole(), true)?;
        }
        let (mut first, mut leaving, mut again, mut writing) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        bench.repeat(ROUNDS, |_| {
            first.push(tools.prefetch(memory.whole(), Place::DEVICE)?);
            leaving.push(tools.prefetch(memory.whole(), Place::HOST)?);
            again.push(tools.prefetch(memory.whole(), Place::DEVICE)?);
            // A write ends the duplication: pages are the device's alone from here.
            writing.push(tools.sweep(memory.whole())?);
            tools.prefetch(memory.whole(), Place::HOST)?;
            memory.populate(2);
            Ok(0.0)
        })?;
        for (what, times) in [
            ("coming", first),
            ("leaving", leaving),
            ("again", again),
            ("writing", writing),
        ] {
            let times = Samples::new(times);
            let mut line = report.samples(&format!("{name}_{what}"), "ns", Clock::Device, &times);
            line = line.and("bytes", memory.bytes());
            if gpu.is_simulated() {
                line = line.and("note", NO_LEDGER);
            }
            line.print();
        }
    }
    Ok(())
}
