// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels of exactly known accesses, launched with arguments of all sizes: templates from some
//! launches are tested on others.
#![forbid(unsafe_code)]

use proptest::prelude::*;

use super::*;

/// A kernel: layout of its parameter buffer, and the memory that it touches.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kernel {
    /// `f(a, b, out, n)`: out = a + b, floats.
    Add,
    /// `f({out, in}, n)`: pointers in a struct by value, halves.
    Copy,
    /// `f(a, b, c, m, n, k)`: c = a b, floats.
    Gemm,
    /// `f(in, out, rows, columns, pitch)`: copies columns of a pitched matrix of floats.
    Rows,
    /// `f(w, x, y, n, k)`: w in blocks of 32 weights in 34 bytes.
    Quantised,
    /// `f(p)`: always 1 KB.
    Constant,
    /// `f(table, index, out, n)`: reads somewhere in the table.
    Gather,
}

struct Job {
    live: Allocations,
    chance: u64,
}

struct One {
    kernel: Kernel,
    parameters: Vec<u8>,
    grid: [u32; 3],
    touched: Vec<Touched>,
}

impl One {
    fn launch(&self) -> LaunchArguments<'_> {
        LaunchArguments {
            kernel: self.kernel as u64 + 100,
            parameters: &self.parameters,
            grid: self.grid,
            block: [256, 1, 1],
        }
    }
}

fn parameters(longs: &[u64], words: &[u32]) -> Vec<u8> {
    let longs = longs.iter().flat_map(|long| long.to_le_bytes());
    longs.chain(words.iter().flat_map(|word| word.to_le_bytes())).collect()
}

fn touched(address: u64, bytes: u64, access: Access) -> Touched {
    Touched { address, bytes, access }
}

impl Job {
    /// One allocation of 8 GB, as of a caching allocator, and a small one.
    fn new(seed: u64) -> Job {
        let mut live = Allocations::new();
        live.add(0x7f00_0000_0000, 8 << 30);
        live.add(0x7e00_0000_0000, 1 << 20);
        Job { live, chance: seed | 1 }
    }

    fn random(&mut self, below: u64) -> u64 {
        // xorshift64
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        self.chance % below
    }

    /// A tensor in the allocation. Tensors of a launch never overlap: each has a gigabyte of its
    /// own.
    fn tensor(&mut self, number: u64) -> u64 {
        0x7f00_0000_0000 + (number << 30) + self.random(1 << 20) * 512
    }

    fn launch(&mut self, kernel: Kernel) -> One {
        let [a, b, c] = [self.tensor(0), self.tensor(2), self.tensor(4)];
        let n = 1 + self.random(100_000);
        let (m, k) = (1 + self.random(500), 1 + self.random(500));
        let word = |n: u64| n as u32;
        let mut grid = [word(n.div_ceil(256)), 1, 1];
        let (parameters, touched) = match kernel {
            Kernel::Add => (
                parameters(&[a, b, c], &[word(n)]),
                vec![
                    touched(a, n * 4, Access::Read),
                    touched(b, n * 4, Access::Read),
                    touched(c, n * 4, Access::Write),
                ],
            ),
            Kernel::Copy => (
                parameters(&[0x1234_5678, c, a], &[word(n), 7]),
                vec![touched(c, n * 2, Access::Write), touched(a, n * 2, Access::Read)],
            ),
            Kernel::Gemm => {
                let n = 1 + n % 700;
                grid = [word(m.div_ceil(16)), word(n.div_ceil(16)), 1];
                (
                    parameters(&[a, b, c], &[word(m), word(n), word(k)]),
                    vec![
                        touched(a, m * k * 4, Access::Read),
                        touched(b, k * n * 4, Access::Read),
                        touched(c, m * n * 4, Access::Write),
                    ],
                )
            }
            Kernel::Rows => {
                let (rows, columns) = (2 + m % 40, 1 + k % 64);
                let pitch = columns + 1 + n % 1000;
                let read = (0..rows).map(|row| touched(a + row * pitch * 4, columns * 4, Access::Read));
                let written = touched(c, rows * columns * 4, Access::Write);
                (
                    parameters(&[a, c], &[word(rows), word(columns), word(pitch)]),
                    read.chain([written]).collect(),
                )
            }
            Kernel::Quantised => {
                let (n, k) = (m, 32 * (1 + k % 64));
                (
                    parameters(&[a, b, c], &[word(n), word(k)]),
                    vec![
                        touched(a, n * k * 34 / 32, Access::Read),
                        touched(b, k * 4, Access::Read),
                        touched(c, n * 4, Access::Write),
                    ],
                )
            }
            Kernel::Constant => (
                parameters(&[0x7e00_0000_0000 + 512 * (n % 1000)], &[]),
                vec![touched(0x7e00_0000_0000 + 512 * (n % 1000), 1024, Access::ReadWrite)],
            ),
            Kernel::Gather => {
                let row = self.random(1000);
                (
                    parameters(&[a, b, c], &[64]),
                    vec![
                        touched(a + row * 4096, 4096, Access::Read),
                        touched(b, 256, Access::Read),
                        touched(c, 256, Access::Write),
                    ],
                )
            }
        };
        One {
            kernel,
            parameters,
            grid,
            touched,
        }
    }
}

const ALL: [Kernel; 7] = [
    Kernel::Add,
    Kernel::Copy,
    Kernel::Gemm,
    Kernel::Rows,
    Kernel::Quantised,
    Kernel::Constant,
    Kernel::Gather,
];

/// Working sets from `learnt` launches of each kernel.
fn learn(job: &mut Job, kernels: &[Kernel], learnt: usize) -> WorkingSets {
    let mut fitter = Fitter::default();
    for kernel in kernels {
        for _ in 0..learnt {
            let one = job.launch(*kernel);
            fitter.observe(&one.launch(), &job.live, &one.touched);
        }
    }
    fitter.fit()
}

/// Working sets with a template of each kind.
pub(crate) fn example() -> WorkingSets {
    learn(&mut Job::new(42), &ALL, 30)
}

fn held_out(job: &mut Job, sets: WorkingSets, kernels: &[Kernel]) -> WorkingSetAccuracy {
    let mut predictor = WorkingSetPredictor::new(sets);
    let ones: Vec<One> = kernels
        .iter()
        .flat_map(|kernel| (0..50).map(|_| *kernel).collect::<Vec<_>>())
        .map(|kernel| job.launch(kernel))
        .collect();
    let launches = ones.iter().map(|one| (one.launch(), &one.touched[..]));
    evaluate(&mut predictor, &job.live, 1, launches)
}

#[test]
fn what_follows_a_rule_is_predicted_to_the_byte() {
    let mut job = Job::new(42);
    let regular = &ALL[..6];
    let sets = learn(&mut job, regular, 30);
    for kernel in &sets.kernels {
        for word in &kernel.words {
            assert_ne!(word.template.name(), "recalled", "{} {}", kernel.kernel, word.offset);
        }
    }
    assert_eq!(
        sets.kernel(Kernel::Constant as u64 + 100).unwrap().words[0].template,
        Template::Fixed { offset: 0, bytes: 1024 }
    );
    assert_eq!(
        sets.kernel(Kernel::Rows as u64 + 100).unwrap().words[0].template.name(),
        "strided"
    );
    assert_eq!(
        sets.kernel(Kernel::Add as u64 + 100).unwrap().words[2].access,
        Access::Write
    );
    let evaluation = held_out(&mut job, sets, regular);
    assert_eq!(evaluation.launches, 300);
    assert_eq!(evaluation.unknown, 0);
    assert_eq!(
        (evaluation.false_negative_bytes, evaluation.false_positive_bytes),
        (0, 0),
        "{evaluation:?}"
    );
    assert!(evaluation.touched_bytes > 1 << 20);
}

#[test]
fn what_depends_on_data_is_left_to_paging() {
    let mut job = Job::new(7);
    let sets = learn(&mut job, &[Kernel::Gather], 30);
    let evaluation = held_out(&mut job, sets, &[Kernel::Gather]);
    assert_eq!(evaluation.false_positive_bytes, 0);
    // The index and the output are known, the row is not.
    assert_eq!(evaluation.false_negative_bytes, 50 * 4096);
    assert!(evaluation.false_negatives() > 0.8 && evaluation.mean_false_negatives() > 0.8);
}

#[test]
fn one_launch_is_enough_for_what_repeats_exactly() {
    let mut job = Job::new(3);
    let one = job.launch(Kernel::Gemm);
    let mut fitter = Fitter::default();
    fitter.observe(&one.launch(), &job.live, &one.touched);
    let mut predictor = WorkingSetPredictor::new(fitter.fit());
    let evaluation = evaluate(&mut predictor, &job.live, 4096, [(one.launch(), &one.touched[..])]);
    assert_eq!(
        (evaluation.false_negative_bytes, evaluation.false_positive_bytes),
        (0, 0)
    );
}

#[test]
fn an_unknown_kernel_is_guessed_within_bounds() {
    let mut job = Job::new(3);
    let one = job.launch(Kernel::Add);
    let mut predictor = WorkingSetPredictor::default();
    let predicted = predictor.predict(&one.launch(), &job.live);
    assert!(!predicted.known);
    assert_eq!(predicted.regions.len(), 3);
    assert!(predicted.regions.iter().all(|region| region.bytes == GUESSED_BYTES));
    let end = 0x7e00_0000_0000 + (1 << 20);
    let near_the_end = parameters(&[end - 100, end, 0], &[]);
    let launch = LaunchArguments {
        parameters: &near_the_end,
        ..one.launch()
    };
    let predicted = predictor.predict(&launch, &job.live);
    assert_eq!(
        predicted.regions,
        [Region::contiguous(end - 100, 100, Access::ReadWrite)]
    );
}

#[test]
fn evidence_in_pages_finds_the_same_rules() {
    const PAGE: u64 = 65536;
    let mut job = Job::new(11);
    let mut fitter = Fitter::new(PAGE);
    let kernels = [Kernel::Add, Kernel::Copy, Kernel::Constant];
    for kernel in kernels {
        for _ in 0..40 {
            let one = job.launch(kernel);
            let coarse: Vec<Touched> = one
                .touched
                .iter()
                .map(|range| {
                    let begin = range.address / PAGE * PAGE;
                    touched(begin, range.end().div_ceil(PAGE) * PAGE - begin, Access::ReadWrite)
                })
                .collect();
            fitter.observe(&one.launch(), &job.live, &coarse);
        }
    }
    let sets = fitter.fit();
    let linear = |kernel: Kernel, word: usize| match &sets.kernel(kernel as u64 + 100).unwrap().words[word].template {
        Template::Linear { offset, bytes } => {
            (offset.constant, bytes.numerator, bytes.denominator, bytes.terms.clone())
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(linear(Kernel::Add, 0), (0, 4, 1, vec![Term::Word32(24)]));
    assert_eq!(linear(Kernel::Copy, 1), (0, 2, 1, vec![Term::Word32(24)]));
    let evaluation = held_out(&mut job, sets, &kernels[..2]);
    assert_eq!(
        (evaluation.false_negative_bytes, evaluation.false_positive_bytes),
        (0, 0),
        "{evaluation:?}"
    );
}

/// Widens ranges as a driver's density prefetcher does: granules of 64 KB. In a block of 2 MB they
/// grow to the largest aligned part that is more than half present.
fn widened(touched: &[Touched]) -> Vec<Touched> {
    const GRANULE: u64 = HostResidency::GRANULE;
    let mut blocks = std::collections::BTreeMap::<u64, u32>::new();
    for one in touched {
        for granule in one.address / GRANULE..one.end().div_ceil(GRANULE) {
            *blocks.entry(granule / 32).or_default() |= 1 << (granule % 32);
        }
    }
    let mut moved = Vec::new();
    for (block, faulted) in blocks {
        let mut came = faulted;
        for granule in (0..32u32).filter(|granule| faulted & (1 << granule) != 0) {
            let part = |size: u32| (u32::MAX >> (32 - size)) << (granule / size * size);
            let dense = |size: &u32| (faulted & part(*size)).count_ones() * 100 > 51 * size;
            came |= [32, 16, 8, 4, 2].into_iter().find(dense).map_or(0, part);
        }
        let granules = (0..32u64).filter(|granule| came & (1 << granule) != 0);
        moved.extend(
            granules.map(|granule| self::touched((block * 32 + granule) * GRANULE, GRANULE, Access::ReadWrite)),
        );
    }
    moved
}

#[test]
fn evidence_that_a_prefetcher_widened_misses_nothing() {
    let mut job = Job::new(5);
    let kernels = [Kernel::Add, Kernel::Copy, Kernel::Quantised, Kernel::Constant];
    let mut fitter = Fitter::of_residency();
    for kernel in kernels {
        for _ in 0..40 {
            let one = job.launch(kernel);
            let moved = widened(&one.touched);
            for touched in &one.touched {
                let covers = |moved: &Touched| moved.address <= touched.address && touched.address < moved.end();
                assert!(
                    moved.iter().any(covers),
                    "the widened granules are not the touched ones"
                );
            }
            fitter.observe(&one.launch(), &job.live, &moved);
        }
    }
    let evaluation = held_out(&mut job, fitter.fit(), &kernels);
    assert_eq!(evaluation.unknown, 0);
    assert!(evaluation.false_negatives() < 0.001, "{evaluation:?}");
    // At most half a granule per operand, of which the true size is some hundred KB.
    assert!(evaluation.false_positives() < 0.25, "{evaluation:?}");
}

#[test]
fn the_same_arguments_are_recalled_where_no_rule_is_found() {
    let job = Job::new(1);
    let base = 0x7f00_0000_0000u64;
    let mut fitter = Fitter::default();
    let sizes = [(3u32, 700u64), (5, 100), (9, 1300), (11, 20)];
    let one = |n: u32| parameters(&[base], &[n]);
    let launch = |parameters: &'static [u8]| LaunchArguments {
        kernel: 1,
        parameters,
        grid: [1; 3],
        block: [1; 3],
    };
    for (n, bytes) in sizes.into_iter().chain(sizes) {
        fitter.observe(&launch(one(n).leak()), &job.live, &[touched(base, bytes, Access::Read)]);
    }
    let mut predictor = WorkingSetPredictor::new(fitter.fit());
    for (n, bytes) in sizes {
        let predicted = predictor.predict(&launch(one(n).leak()), &job.live);
        assert_eq!(predicted.regions, [Region::contiguous(base, bytes, Access::Read)]);
    }
    let other = predictor.predict(&launch(one(4).leak()), &job.live);
    assert_eq!(
        other.regions,
        [Region::contiguous(base, 20, Access::Read)],
        "what all had in common"
    );
}

#[test]
fn adjacent_tensors_are_told_apart() {
    // out adjoins in, so the touched memory is one range.
    let job = Job::new(1);
    let base = 0x7f00_0000_0000u64;
    let mut fitter = Fitter::new(1);
    for n in [10u64, 20, 35] {
        let parameters = parameters(&[base, base + n * 4], &[n as u32]).leak();
        let launch = LaunchArguments {
            kernel: 1,
            parameters,
            grid: [1; 3],
            block: [1; 3],
        };
        fitter.observe(&launch, &job.live, &[touched(base, n * 8, Access::ReadWrite)]);
    }
    let sets = fitter.fit();
    for word in &sets.kernels[0].words {
        let Template::Linear { bytes, .. } = &word.template else {
            panic!("{word:?}")
        };
        assert_eq!((bytes.constant, bytes.numerator), (0, 4));
    }
}

/// A launch of one block.
fn plain(parameters: &[u8]) -> LaunchArguments<'_> {
    LaunchArguments {
        kernel: 5,
        parameters,
        grid: [1; 3],
        block: [512, 1, 1],
    }
}

/// A list of 40 tensors, all used or only the first. `noise` is a leftover after the parameters, in
/// some launches the address of a tensor.
fn listed(base: u64, all: bool, noise: u64) -> (Vec<u8>, Vec<Touched>) {
    let tensors: Vec<u64> = (0..40).map(|n| base + n * 65_536).collect();
    let sizes = (0..40u32).map(|n| 100 + (n * 37) % 23);
    let words: Vec<u32> = [if all { 40 } else { 1 }, 0].into_iter().chain(sizes.clone()).collect();
    let mut parameters = parameters(&tensors, &words);
    parameters.extend(noise.to_le_bytes());
    let used = if all { 40 } else { 1 };
    let touches = tensors.iter().zip(sizes).take(used);
    let touches = touches.map(|(tensor, size)| touched(*tensor, u64::from(size) * 4, Access::Write));
    (parameters, touches.collect())
}

#[test]
fn a_list_is_recalled_whatever_lies_behind_it() {
    let mut live = Allocations::new();
    live.add(0x7f00_0000_0000, 1 << 30);
    let mut fitter = Fitter::default();
    for step in 0..6u64 {
        let base = 0x7f00_0000_0000 + (step << 24);
        let noise = [7, base + 65_536 * 3, base + 65_536 * 7 + 40][step as usize % 3];
        for all in [true, false] {
            let (parameters, touches) = listed(base, all, noise);
            fitter.observe(&plain(&parameters), &live, &touches);
        }
    }
    let mut predictor = WorkingSetPredictor::new(fitter.fit());
    for all in [true, false] {
        let (parameters, touches) = listed(0x7f00_3000_0000, all, 9);
        let launches = [(plain(&parameters), &touches[..])];
        let found = evaluate(&mut predictor, &live, 4, launches);
        assert_eq!(
            (found.false_negative_bytes, found.false_positive_bytes),
            (0, 0),
            "{all}"
        );
    }
}

#[test]
fn a_gap_that_held_a_used_pointer_in_some_launch_is_no_operand() {
    // A gap after an operand: empty, or the operand's start, left by an earlier launch. Later it is
    // another tensor's.
    let job = Job::new(1);
    let base = 0x7f00_0000_0000u64;
    let launch = |n: u64, gap: u64| {
        let parameters = parameters(&[base, gap], &[n as u32]);
        (parameters, vec![touched(base, n * 4, Access::Write)])
    };
    let mut fitter = Fitter::default();
    for (n, gap) in [(100, 7), (300, base), (500, 7), (700, base)] {
        let (parameters, touches) = launch(n, gap);
        fitter.observe(&plain(&parameters), &job.live, &touches);
    }
    let mut predictor = WorkingSetPredictor::new(fitter.fit());
    for gap in [7, base, base + (1 << 20)] {
        let (parameters, touches) = launch(400, gap);
        let found = evaluate(&mut predictor, &job.live, 1, [(plain(&parameters), &touches[..])]);
        let wrong = (found.false_negative_bytes, found.false_positive_bytes);
        assert_eq!(wrong, (0, 0), "{gap:x}");
    }
}

#[test]
fn what_holds_for_some_launches_by_chance_is_tried_on_all() {
    // Bytes are 4 n m; k is n m in all launches but one in sixty.
    let mut live = Allocations::new();
    live.add(0x7f00_0000_0000, 1 << 30);
    let launch = |number: u32| {
        let (n, m) = (3 + number % 29, 5 + number % 31);
        let k = if number % 60 == 59 { 1 } else { n * m };
        (parameters(&[0x7f00_0000_0000], &[k, n, m]), u64::from(n * m) * 4)
    };
    let mut fitter = Fitter::default();
    for number in 0..800 {
        let (parameters, bytes) = launch(number);
        let touches = [touched(0x7f00_0000_0000, bytes, Access::Read)];
        fitter.observe(&plain(&parameters), &live, &touches);
    }
    let sets = fitter.fit();
    assert_eq!(sets.counts(), [0, 1, 0, 0], "{sets:?}");
}

#[test]
fn guesses_count_for_nothing_beside_what_is_exact() {
    let job = Job::new(1);
    let base = 0x7f00_0000_0000u64;
    let parameters = parameters(&[base], &[3]);
    let launch = LaunchArguments {
        kernel: 1,
        parameters: &parameters,
        grid: [1; 3],
        block: [1; 3],
    };
    let mut fitter = Fitter::default();
    let guess = [touched(base, 5000, Access::ReadWrite)];
    fitter.observe_as(Certainty::Guessed, &launch, &job.live, &guess);
    let fixed = |fitter: &mut Fitter| fitter.fit().kernels[0].words[0].template.clone();
    assert_eq!(fixed(&mut fitter), Template::Fixed { offset: 0, bytes: 5000 });
    fitter.observe(&launch, &job.live, &[touched(base, 70, Access::Read)]);
    fitter.observe_as(Certainty::Guessed, &launch, &job.live, &guess);
    assert_eq!(fixed(&mut fitter), Template::Fixed { offset: 0, bytes: 70 });
    assert_eq!(fitter.fit().kernels[0].observed, 3);
}

#[test]
fn a_rule_holds_where_two_words_are_the_same_pointer_too() {
    // A matrix product with a workspace: in parts, which stay there, or with the result in both
    // words.
    let job = Job::new(1);
    let base = 0x7f00_0000_0000u64;
    let (result, sums) = (base, base + (1 << 19));
    let mut fitter = Fitter::default();
    let mut launches = Vec::new();
    for n in [100u64, 300, 200, 500] {
        for parts in [1u64, 2, 5] {
            let (there, size) = if parts > 1 {
                (sums, n * 4 * parts)
            } else {
                (result, n * 4)
            };
            let parameters = parameters(&[result, there], &[n as u32, parts as u32]).leak();
            let launch = LaunchArguments {
                kernel: 1,
                parameters,
                grid: [1; 3],
                block: [1; 3],
            };
            launches.push((launch, vec![touched(there, size, Access::Write)]));
        }
    }
    for (launch, touched) in launches.iter().chain(&launches) {
        fitter.observe(launch, &job.live, touched);
    }
    let mut predictor = WorkingSetPredictor::new(fitter.fit());
    let launches = launches.iter().map(|(launch, touched)| (*launch, &touched[..]));
    let evaluation = evaluate(&mut predictor, &job.live, 1, launches);
    assert_eq!(
        (evaluation.false_negative_bytes, evaluation.false_positive_bytes),
        (0, 0),
        "{evaluation:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// After any number of launches, predictions for seen arguments are exact: no excess, no miss.
    #[test]
    fn what_was_seen_is_predicted(seed in 1u64.., learnt in 1usize..12, which in 0usize..6) {
        let mut job = Job::new(seed);
        let mut fitter = Fitter::default();
        let ones: Vec<One> = (0..learnt).map(|_| job.launch(ALL[which])).collect();
        for one in ones.iter().chain(&ones) {
            fitter.observe(&one.launch(), &job.live, &one.touched);
        }
        let sets = fitter.fit();
        prop_assert_eq!(sets.unsound(), None);
        let mut predictor = WorkingSetPredictor::new(sets);
        let evaluation = evaluate(&mut predictor, &job.live, 1, ones.iter().map(|one| (one.launch(), &one.touched[..])));
        prop_assert_eq!(evaluation.false_negative_bytes, 0);
        prop_assert_eq!(evaluation.false_positive_bytes, 0);
    }

    /// Parameters and files may hold anything.
    #[test]
    fn no_launch_is_a_panic(seed in 1u64.., bytes in prop::collection::vec(any::<u8>(), 0..200), shape in any::<[u32; 3]>()) {
        let mut job = Job::new(seed);
        let sets = learn(&mut job, &ALL, 5);
        let mut predictor = WorkingSetPredictor::new(sets);
        for kernel in ALL {
            let launch = LaunchArguments { kernel: kernel as u64 + 100, parameters: &bytes, grid: shape, block: shape };
            for region in predictor.predict(&launch, &job.live).regions {
                prop_assert!(job.live.find(region.address).is_some_and(|(_, end)| region.end() <= end));
            }
        }
    }
}
