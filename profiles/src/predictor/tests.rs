// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forecasts on sequences like those of jobs, each from a seed.

use super::*;

/// A small generator of our own: results must not depend on the machine or a crate's version.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 ^ self.0 >> 29).wrapping_mul(0xd134_2543_de82_ef95) >> 16
    }

    fn part(&mut self) -> f64 {
        (self.next() % (1 << 24)) as f64 / (1 << 24) as f64
    }

    /// Bell-shaped around 1.
    fn around(&mut self, spread: f64) -> f64 {
        let bell: f64 = (0..12).map(|_| self.part()).sum::<f64>() - 6.0;
        (1.0 + spread * bell).max(0.01)
    }

    /// Exponentially distributed, mean 1.
    fn waiting(&mut self) -> f64 {
        -(1.0 - self.part()).ln()
    }
}

/// Steps of a model: `length` launches of `kinds` kernels. The place decides the gap, not the
/// kernel.
fn steps(random: &mut Random, length: usize, kinds: u64, count: usize, spread: f64) -> Vec<(u64, Ns)> {
    let places: Vec<(u64, f64)> = (0..length)
        .map(|at| {
            let kernel = 1 + random.next() % kinds;
            let gap = match (at + 1 == length, random.next() % 8) {
                (true, _) => 5e6,
                (_, 0) => 300e3,
                (_, 1 | 2) => 40e3,
                _ => 0.0,
            };
            (kernel, gap)
        })
        .collect();
    (0..count)
        .flat_map(|_| places.clone())
        .map(|(kernel, gap)| (kernel, (gap * random.around(spread)) as Ns))
        .collect()
}

type Values = [(u64, Ns)];

fn halves(all: &Values) -> (&Values, &Values) {
    all.split_at(all.len() / 2)
}

#[test]
fn a_step_that_repeats_is_foreseen_far_better_than_by_means() {
    for (seed, spread) in [(1, 0.02), (2, 0.1), (3, 0.3)] {
        let all = steps(&mut Random(seed), 150, 12, 100, spread);
        let (known, new) = halves(&all);
        let found = evaluate(known, new);
        println!("spread {spread}: {found:?}");
        assert!(found.gain() > 2.0, "{found:?}");
        assert!((0.87..=0.93).contains(&found.covered), "{found:?}");
    }
}

#[test]
fn nine_values_in_ten_are_above_the_low_one_whatever_their_distribution() {
    type Draw = fn(&mut Random) -> f64;
    let draws: [(&str, Draw); 5] = [
        ("bell", |random| 1e6 * random.around(0.2)),
        ("no memory", |random| 1e6 * random.waiting()),
        ("floor and tail", |random| 1e6 + 300e3 * random.waiting()),
        (
            "two humps",
            |random| if random.part() < 0.4 { 2e5 } else { 3e6 } * random.around(0.05),
        ),
        ("even", |random| 2e6 * random.part()),
    ];
    for (name, draw) in draws {
        let mut random = Random(7);
        let all: Vec<(u64, Ns)> = (0..4_000).map(|_| (1, draw(&mut random) as Ns)).collect();
        let (known, new) = halves(&all);
        let found = evaluate(known, new);
        println!("{name}: {found:?}");
        assert!((0.87..=0.93).contains(&found.covered), "{name}: {found:?}");
    }
}

#[test]
fn after_one_step_the_next_is_foreseen() {
    let all = steps(&mut Random(5), 100, 10, 2, 0.0);
    let (known, new) = halves(&all);
    let found = evaluate(known, new);
    assert!(found.gain() > 5.0, "{found:?}");
}

#[test]
fn a_new_place_is_judged_by_its_kernel_and_a_new_kernel_by_its_job() {
    let mut history = History::default();
    let mut predictor = Predictor::default();
    assert_eq!(predictor.forecast(&history.context()), None);
    for _ in 0..20 {
        for kernel in [1, 2, 3] {
            let context = history.push(kernel);
            predictor.learn(&context, kernel * 1_000_000);
        }
    }
    history.push(9);
    let by_kernel = predictor.forecast(&history.push(2)).unwrap();
    assert!(by_kernel.middle.abs_diff(2_000_000) < 20_000, "{by_kernel:?}");
    let by_job = predictor.forecast(&history.push(77)).unwrap();
    assert!((1_000_000..=3_000_000).contains(&by_job.middle), "{by_job:?}");
    assert!(by_job.low <= 1_200_000, "{by_job:?}");
}

#[test]
fn a_profile_is_a_beginning_that_what_is_seen_replaces() {
    let mut known = Sketch::default();
    for value in 0..100u64 {
        known.add(1_000_000 + value * 1_000);
    }
    let mut predictor = Predictor::default();
    predictor.prime(4, &known);
    let mut history = History::default();
    let context = history.push(4);
    let first = predictor.forecast(&context).unwrap();
    assert!(first.middle.abs_diff(1_050_000) < 20_000, "{first:?}");
    assert!(first.low.abs_diff(1_010_000) < 20_000, "{first:?}");
    for _ in 0..100 {
        let context = history.push(4);
        predictor.learn(&context, 300_000);
    }
    let later = predictor.forecast(&history.push(4)).unwrap();
    assert!(later.middle.abs_diff(300_000) < 10_000, "{later:?}");
}

#[test]
fn no_values_break_it() {
    let mut history = History::default();
    let mut predictor = Predictor::default();
    for value in [0, u64::MAX, 1, u64::MAX, 0, 3_600_000_000_000] {
        let context = history.push(value);
        predictor.learn(&context, value);
        let forecast = predictor.forecast(&context).unwrap();
        assert!(forecast.low <= forecast.middle && forecast.middle <= forecast.high);
    }
    assert!(predictor.quality().coverage().is_none_or(|part| part <= 1.0));
}

#[test]
fn memory_is_bounded() {
    let mut random = Random(3);
    let mut history = History::default();
    let mut predictor = Predictor::default();
    for _ in 0..100_000 {
        let context = history.push(random.next());
        predictor.learn(&context, random.next() % 1_000_000);
    }
    assert!(predictor.contexts() <= MOST_CONTEXTS);
}
