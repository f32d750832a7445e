// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use crate::bench::{ProbeBench, ProbeOptions};
use crate::driver::Gpu;
use crate::probe::Group;
use crate::registry::{PROBES, chosen, role};
use crate::report::Report;
use crate::run::{self, code};
use crate::{calibration, host, peer};

/// Measures a GPU through its driver, as JSON lines on stdout.
///
/// Needs only libcuda.so.1. Memory is bounded by the free memory, no device setting is changed, and
/// each probe runs in a process of its own: one that fails reports it in a line, and the next one
/// runs. Exits with 2 for a wrong command line, 3 without a driver or a device, otherwise 0.
///
///   weft-gpu-probe calibration --budget 120 > run.jsonl
///   weft-gpu-probe calibration --only copy --only event
///   weft-gpu-probe memory --budget 60
///   weft-gpu-probe movable --budget 15
///   weft-gpu-probe calibration --list
///   LD_LIBRARY_PATH=target/simgpu/lib weft-gpu-probe calibration   (the simulated GPU)
#[derive(Debug, Parser)]
#[command(verbatim_doc_comment)]
struct ProbeCli {
    #[command(subcommand)]
    command: ProbeCommand,
}

#[derive(Debug, Subcommand)]
enum ProbeCommand {
    /// Values for the simulated GPU: launches, events, copies, prefetches, faults, switches
    Calibration(Chosen),
    /// Two jobs on managed memory: switches by faults and by prefetches, page table, discards
    Memory(Chosen),
    /// Plain memory that leaves the device and comes back at its addresses; no managed memory
    Movable(Chosen),
    /// Probes that test the runner
    #[command(hide = true)]
    Selftest(Chosen),
    /// One probe, in this process
    #[command(hide = true)]
    Child(Child),
    /// A further process of a probe
    #[command(hide = true)]
    Peer {
        role: String,
        #[arg(long)]
        parent: u32,
    },
}

#[derive(Debug, Args)]
struct Chosen {
    /// Only this probe (may be given several times: they run in this order)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Seconds for all of them; probes that do not fit are named in the last line
    #[arg(long, default_value_t = 240.0, value_name = "S", value_parser = seconds)]
    budget: f64,
    /// Name the probes and end
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    options: Given,
}

#[derive(Debug, Args)]
struct Given {
    /// Pipe directory of a running MPS daemon (CUDA_MPS_PIPE_DIRECTORY); without it, nothing is
    /// measured under MPS
    #[arg(long, value_name = "DIR")]
    mps_pipe: Option<PathBuf>,
    /// CUPTI's library; without it, the usual places are searched
    #[arg(long, value_name = "FILE")]
    cupti: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Child {
    name: String,
    #[arg(long)]
    parent: u32,
    #[arg(long)]
    seconds: f64,
    #[command(flatten)]
    options: Given,
}

impl From<Given> for ProbeOptions {
    fn from(given: Given) -> ProbeOptions {
        ProbeOptions {
            mps_pipe: given.mps_pipe,
            cupti: given.cupti,
        }
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    // A day is longer than any run, and nothing overflows.
    if (1.0..=86_400.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("a number of seconds from 1 to 86400".to_owned())
    }
}

/// Parses the command line and runs its command.
pub fn run() -> ExitCode {
    let result = match ProbeCli::parse().command {
        ProbeCommand::Calibration(chosen) => group(Group::Calibration, chosen),
        ProbeCommand::Memory(chosen) => group(Group::Memory, chosen),
        ProbeCommand::Movable(chosen) => group(Group::Movable, chosen),
        ProbeCommand::Selftest(chosen) => group(Group::Selftest, chosen),
        ProbeCommand::Child(one) => return child(one),
        ProbeCommand::Peer { role: name, parent } => role(&name)
            .and_then(|role| peer::run(role, parent))
            .map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        eprintln!("weft-gpu-probe: {error:#}");
        // As clap does for a wrong command line.
        ExitCode::from(2)
    })
}

fn group(group: Group, given: Chosen) -> Result<ExitCode> {
    let probes = chosen(group, &given.only)?;
    if given.list {
        for probe in probes {
            println!("{:14} {} (at most {} s)", probe.name, probe.about, probe.seconds);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let budget = Duration::from_secs_f64(given.budget);
    if run::all(&probes, budget, &given.options.into())? {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("weft-gpu-probe: no driver or no device; the line above says what was tried");
    Ok(ExitCode::from(3))
}

fn child(given: Child) -> ExitCode {
    let report = Report::new(&given.name, false);
    if let Err(error) = host::end_with_parent(given.parent) {
        report.error(&format!("{error:#}"));
        return exit(code::FAILED);
    }
    let seconds = Duration::try_from_secs_f64(given.seconds).unwrap_or_default();
    let until = Instant::now() + seconds;
    if given.name == "about" {
        return match calibration::about::print(&report) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                report.error(&format!("{error:#}"));
                exit(code::NO_DRIVER)
            }
        };
    }
    let Some(probe) = PROBES.iter().find(|probe| probe.name == given.name) else {
        report.error("no such probe");
        return exit(code::FAILED);
    };
    let done = Gpu::open().map_err(anyhow::Error::from).and_then(|gpu| {
        (probe.run)(&ProbeBench {
            report: Report::new(probe.name, gpu.is_simulated()),
            gpu,
            until,
            options: given.options.into(),
        })
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report.error(&format!("{error:#}"));
            exit(code::FAILED)
        }
    }
}

fn exit(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
