// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small client of the simulated device, for tests, measurements and trying things out.
//!
//! It finds its device as every client does (`SIMGPU_SOCKET` …). It prints `ready DEVICE_PID` when
//! it is attached, then obeys its command:
//!
//! * `run COUNT NS`: COUNT kernels of NS each on one stream, then prints when they began and ended;
//! * `sync COUNT NS`: the same, waiting for each; prints the times a wait took;
//! * `burst COUNT`: COUNT submissions while no thread waits; prints nanoseconds each;
//! * `stay`: reserves 1 MiB and stays until standard input ends;
//! * `hang`: reserves 1 MiB, starts a kernel that never ends, waits for it;
//! * `flood`: submits without end on four streams;
//! * `fork`: forks; the child tries to use the link, prints the result, and outlives the parent's
//!   end by staying until standard input ends.

use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use simgpu_device::{Extra, KernelLaunch, Link, LinkError, NoEffects, Op, Options, Status};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize| -> u64 { arguments.get(index).and_then(|text| text.parse().ok()).unwrap_or(1) };
    let link = match Link::open(&Options::default(), Arc::new(NoEffects)) {
        Ok(link) => link,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    };
    if let Some(warning) = link.warning() {
        eprintln!("{warning}");
    }
    println!("ready {}", link.device_pid());
    let done = match arguments.first().map(String::as_str) {
        Some("run") => run(&link, number(1), number(2)),
        Some("sync") => sync(&link, number(1), number(2)),
        Some("burst") => burst(&link, number(1)),
        Some("stay") => link.reserve(1 << 20).map(|()| until_told()),
        Some("hang") => hang(&link),
        Some("flood") => flood(&link),
        Some("fork") => fork(&link),
        _ => {
            eprintln!("run, sync, burst, stay, hang, flood or fork?");
            std::process::exit(2);
        }
    };
    if let Err(error) = done {
        println!("failed: {error}");
        std::process::exit(3);
    }
}

fn kernel(link: &Link, ns: u64) -> Op {
    Op::Kernel(KernelLaunch {
        name: link.name("client_kernel"),
        grid: [4, 1, 1],
        block: [256, 1, 1],
        duration: Some(ns),
        ..KernelLaunch::default()
    })
}

fn run(link: &Link, count: u64, ns: u64) -> Result<(), LinkError> {
    let stream = link.stream(link.context()?, 0)?;
    let kernel = kernel(link, ns);
    let first = link.submit(stream, kernel, Extra::default())?;
    let mut last = first;
    for _ in 1..count {
        last = link.submit(stream, kernel, Extra::default())?;
    }
    let end = match link.wait(last, None)? {
        Status::Done(times) => times.end,
        _ => 0,
    };
    let start = match link.status(first) {
        Status::Done(times) => times.start,
        _ => 0,
    };
    println!("ran {count} from {start} to {end}");
    Ok(())
}

fn sync(link: &Link, count: u64, ns: u64) -> Result<(), LinkError> {
    let stream = link.stream(link.context()?, 0)?;
    let kernel = kernel(link, ns);
    let mut took = Vec::new();
    for _ in 0..count {
        let begin = Instant::now();
        let seq = link.submit(stream, kernel, Extra::default())?;
        link.wait(seq, None)?;
        took.push(begin.elapsed().as_nanos());
    }
    took.sort_unstable();
    let at = |percent: usize| took.get(took.len() * percent / 100).copied().unwrap_or(0);
    println!(
        "submit and wait, ns: p10 {} p50 {} p90 {} p99 {}",
        at(10),
        at(50),
        at(90),
        at(99)
    );
    Ok(())
}

fn burst(link: &Link, count: u64) -> Result<(), LinkError> {
    let stream = link.stream(link.context()?, 0)?;
    let kernel = kernel(link, 1_000);
    let mut best = u128::MAX;
    // Below the stream's depth, so that nothing waits; the device is idle in between.
    let piece = count.clamp(1, 1_000);
    for _ in 0..count.div_ceil(piece) {
        let begin = Instant::now();
        let mut last = link.submit(stream, kernel, Extra::default())?;
        for _ in 1..piece {
            last = link.submit(stream, kernel, Extra::default())?;
        }
        best = best.min(begin.elapsed().as_nanos() / u128::from(piece));
        link.wait(last, None)?;
    }
    println!("submit, ns each, best of the bursts: {best}");
    Ok(())
}

fn until_told() {
    let mut nothing = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut nothing);
}

fn hang(link: &Link) -> Result<(), LinkError> {
    link.reserve(1 << 20)?;
    let stream = link.stream(link.context()?, 0)?;
    let seq = link.submit(stream, kernel(link, u64::MAX / 4), Extra::default())?;
    println!("hangs");
    link.wait(seq, None).map(drop)
}

fn flood(link: &Link) -> Result<(), LinkError> {
    let context = link.context()?;
    let streams = [
        link.stream(context, 0)?,
        link.stream(context, -1)?,
        link.stream(context, 0)?,
        link.stream(context, 1)?,
    ];
    let kernel = kernel(link, 2_000);
    loop {
        for stream in streams {
            let seq = link.submit(stream, kernel, Extra::default())?;
            for other in streams {
                link.submit(other, Op::WaitFor(seq), Extra::default())?;
            }
        }
    }
}

fn fork(link: &Link) -> Result<(), LinkError> {
    link.reserve(1 << 20)?;
    let stream = link.stream(link.context()?, 0)?;
    // SAFETY: this program has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let answers = (
            link.usable(),
            link.submit(stream, Op::Marker, Extra::default()).is_err(),
            link.wait(simgpu_device::Seq::NONE, Some(Duration::from_secs(1)))
                .is_err(),
            link.reserve(1).is_err(),
        );
        println!("child {answers:?}");
        until_told();
        std::process::exit(0);
    }
    let seq = link.submit(stream, kernel(link, 1_000), Extra::default())?;
    link.wait(seq, None)?;
    println!("parent goes on");
    until_told();
    Ok(())
}
