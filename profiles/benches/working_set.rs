// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cost of predicting a launch's regions:
//! `cargo bench -p weft-profiles --bench working_set -- [--check] [--json FILE]`.
//!
//! It measures launches of five kinds of kernels, as in PyTorch and llama.cpp, in a job with a
//! thousand allocations, on one thread. The aim is MSched's: a microsecond per launch.
#![forbid(unsafe_code)]

use std::{hint::black_box, process::ExitCode, time::Instant};

use weft_profiles::working_set::{Access, Allocations, Fitter, LaunchArguments, Touched, WorkingSetPredictor};

#[path = "../../tests/figures.rs"]
mod figures;

use figures::Asked;

/// Largest allowed cost of a launch, ns.
const AIM_NS: f64 = 1_000.0;

/// First address of the job's allocations.
const BASE: u64 = 0x7f00_0000_0000;

struct BenchCall {
    kernel: u64,
    parameters: Vec<u8>,
    touched: Vec<Touched>,
}

fn parameters(longs: &[u64], words: &[u32]) -> Vec<u8> {
    let longs = longs.iter().flat_map(|long| long.to_le_bytes());
    longs.chain(words.iter().flat_map(|word| word.to_le_bytes())).collect()
}

fn touched(address: u64, bytes: u64, access: Access) -> Touched {
    Touched { address, bytes, access }
}

/// A launch of this kind; `n` varies sizes and places.
fn calls(kind: u64, n: u64) -> BenchCall {
    let place = |number: u64| BASE + ((n * 7 + number * 131) % 1000) * (64 << 20);
    let (a, b, c) = (place(1), place(2), place(3));
    let size = 1000 + n * 37;
    let (parameters, touched) = match kind {
        // An element-wise kernel of three tensors.
        0 => (
            parameters(&[a, b, c], &[size as u32]),
            vec![
                touched(a, size * 4, Access::Read),
                touched(b, size * 4, Access::Read),
                touched(c, size * 4, Access::Write),
            ],
        ),
        // A matrix product: sizes are products of two arguments.
        1 => {
            let (rows, columns, inner) = (8 + n % 50, 16 + n % 33, 32 + n % 77);
            (
                parameters(&[a, b, c], &[rows as u32, columns as u32, inner as u32]),
                vec![
                    touched(a, rows * inner * 2, Access::Read),
                    touched(b, inner * columns * 2, Access::Read),
                    touched(c, rows * columns * 2, Access::Write),
                ],
            )
        }
        // Rows of a pitched matrix.
        2 => {
            let (rows, width, pitch) = (2 + n % 40, 64 + n % 64, 200 + n % 90);
            (
                parameters(&[a, c], &[rows as u32, width as u32, pitch as u32]),
                (0..rows)
                    .map(|row| touched(a + row * pitch * 4, width * 4, Access::Read))
                    .chain([touched(c, 512, Access::Write)])
                    .collect(),
            )
        }
        // A fused optimiser: 64 tensors in a struct by value, all of fixed size.
        3 => {
            let all: Vec<u64> = (0..64).map(|number| place(number + 10)).collect();
            let regions = all
                .iter()
                .map(|address| touched(*address, 4 << 20, Access::ReadWrite))
                .collect();
            (parameters(&all, &[3]), regions)
        }
        // No rule, recalled.
        _ => {
            let which = n % 5;
            let bytes = [700, 100, 1300, 20, 999][which as usize];
            (
                parameters(&[a, b], &[which as u32]),
                vec![touched(a, bytes, Access::Read)],
            )
        }
    };
    BenchCall {
        kernel: 1000 + kind,
        parameters,
        touched,
    }
}

const KINDS: [&str; 5] = [
    "element-wise",
    "matrix product",
    "strided rows",
    "64 tensors",
    "recalled",
];

fn launch(call: &BenchCall) -> LaunchArguments<'_> {
    LaunchArguments {
        kernel: call.kernel,
        parameters: &call.parameters,
        grid: [108, 1, 1],
        block: [256, 1, 1],
    }
}

fn main() -> ExitCode {
    let asked = Asked::read();

    let mut live = Allocations::new();
    for number in 0..1000 {
        live.add(BASE + number * (64 << 20), 48 << 20);
    }
    let mut fitter = Fitter::default();
    for kind in 0..5 {
        for n in 0..60 {
            let call = calls(kind, n);
            fitter.observe(&launch(&call), &live, &call.touched);
        }
    }
    let begin = Instant::now();
    let sets = fitter.fit();
    let fitting = begin.elapsed();
    let mut predictor = WorkingSetPredictor::new(sets);

    let mut figures = Vec::new();
    for (kind, name) in (0..).zip(KINDS) {
        let launches: Vec<BenchCall> = (60..160).map(|n| calls(kind, n)).collect();
        // Median over rounds of a thousand launches, because few rounds contain an interrupt.
        let mut rounds: Vec<f64> = (0..101)
            .map(|_| {
                let begin = Instant::now();
                for _ in 0..10 {
                    for call in &launches {
                        black_box(predictor.predict(black_box(&launch(call)), &live));
                    }
                }
                begin.elapsed().as_nanos() as f64 / (10 * launches.len()) as f64
            })
            .collect();
        rounds.sort_by(f64::total_cmp);
        figures.push((name, rounds[rounds.len() / 2]));
    }
    println!("predicting a launch's regions, ns (median of 101 rounds of 1,000 launches; 1,000 allocations)");
    for (name, figure) in &figures {
        println!("{name:>16} {figure:>8.0}");
    }
    println!(
        "fitting 5 kernels from 300 launches: {:.1} ms",
        fitting.as_secs_f64() * 1e3
    );
    let rows: Vec<String> = figures
        .iter()
        .map(|(name, figure)| format!("{name:?}: {figure:.1}"))
        .collect();
    let text = format!("{{\"ns_a_launch\": {{{}}}, \"aim\": {AIM_NS}}}\n", rows.join(", "));
    let missed = figures.iter().filter(|(_, figure)| *figure > AIM_NS);
    let missed: Vec<String> = missed
        .map(|(name, figure)| format!("missed: {name}: {figure:.0} ns, aim {AIM_NS} ns"))
        .collect();
    asked.end(&text, &missed)
}
