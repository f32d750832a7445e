// SPDX-License-Identifier: MIT OR Apache-2.0
//! A job that keeps the device busy in a set pattern until a file is gone. The job under test
//! shares the device with it.
//!
//! It launches `simgpu_fill` on a few bytes (the simulated device's configuration decides how long
//! that takes), so it costs next to no CPU. It runs while the file named by `--while` exists. So a
//! test that died leaves no job running.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use weft_client_programs::gpu::{Argument, TestGpu};

/// A companion job
#[derive(Debug, Parser)]
struct Args {
    /// Runs while this file exists
    #[arg(long = "while", value_name = "FILE")]
    runs_while: PathBuf,
    /// Launches before each synchronisation
    #[arg(long, default_value_t = 16)]
    burst: u32,
    /// The object that the host waits for at the end of a burst
    #[arg(long, value_enum, default_value_t = End::Stream)]
    end: End,
    /// Pause after each synchronisation
    #[arg(long, default_value_t = 0, value_name = "MICROSECONDS")]
    pause: u64,
    /// Ends by itself after this time
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    at_most: u64,
    /// Written once the first burst is done
    #[arg(long, value_name = "FILE")]
    ready: Option<PathBuf>,
    /// Behind its first burst it launches nothing until this file exists
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Written at the end: launches so far, as JSON
    #[arg(long, value_name = "FILE")]
    result: Option<PathBuf>,
}

/// Interval between two looks for the file of `--from`: short compared with a client's start.
const LOOKS_APART: Duration = Duration::from_millis(5);

/// The object that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum End {
    /// The stream.
    Stream,
    /// An event behind the launches.
    Event,
    /// An event behind a copy on another stream, which waits for the launches by an event: as vLLM
    /// ends a token.
    Copy,
    /// The stream, after every second launch of the burst went to another one. The other stream
    /// waits for this one by an event, and this one for the other, as cuDNN's recurrent networks
    /// fork and join.
    Join,
    /// An event behind the launches of the burst before: as an engine that queues the next step
    /// before the last one's end. It never sees all of its work ended.
    Before,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let gpu = TestGpu::open()?;
    let kernel = gpu.kernel("simgpu_fill")?;
    let (stream, data) = (gpu.stream()?, gpu.allocate(64)?);
    let (copies, mut launched, mut copied) = (gpu.stream()?, gpu.event()?, gpu.event()?);
    let end = Instant::now() + Duration::from_secs(args.at_most);
    let mut ready = args.ready;
    let mut launches = 0u64;
    while args.runs_while.exists() && Instant::now() < end {
        if args.end == End::Join {
            gpu.record(launched, stream)?;
            gpu.wait_for(copies, launched)?;
        }
        for number in 0..args.burst {
            let stream = match args.end {
                End::Join if number % 2 == 1 => copies,
                _ => stream,
            };
            let mut arguments = [Argument::Wide(data.address), Argument::Narrow(7), Argument::Wide(16)];
            gpu.launch(kernel, 1, 32, &mut arguments, stream)?;
            launches += 1;
        }
        match args.end {
            End::Stream => gpu.synchronize(stream)?,
            End::Before => {
                gpu.record(launched, stream)?;
                if launches > u64::from(args.burst) {
                    gpu.reach(copied)?;
                }
                std::mem::swap(&mut launched, &mut copied);
            }
            End::Event => {
                gpu.record(launched, stream)?;
                gpu.reach(launched)?;
            }
            End::Copy => {
                gpu.record(launched, stream)?;
                gpu.wait_for(copies, launched)?;
                gpu.set_bytes(data, 0, copies)?;
                gpu.record(copied, copies)?;
                gpu.reach(copied)?;
            }
            End::Join => {
                gpu.record(copied, copies)?;
                gpu.wait_for(stream, copied)?;
                gpu.synchronize(stream)?;
            }
        }
        if let Some(file) = ready.take() {
            std::fs::write(file, "ready\n")?;
        }
        while args.from.as_ref().is_some_and(|file| !file.exists()) && args.runs_while.exists() && Instant::now() < end
        {
            std::thread::sleep(LOOKS_APART);
        }
        if args.pause > 0 {
            std::thread::sleep(Duration::from_micros(args.pause));
        }
    }
    if let Some(file) = args.result {
        std::fs::write(file, format!("{}\n", serde_json::json!({"launches": launches})))?;
    }
    Ok(())
}
