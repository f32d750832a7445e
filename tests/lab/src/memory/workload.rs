// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs that compete for memory: their allocations, and the regions that their kernels touch, with
//! order and times.
//!
//! A job repeats a period (a decoded token, a training step, a batch). Its kernels' regions follow
//! the proportions that MSched (arXiv 2512.24637, section 2.1 of the project's facts) measured:
//! most are *fixed*, some *linear* in a launch argument (a growing KV cache, a batch), a few
//! *strided*. Under one per cent of Rodinia's accesses go through pointers that no template
//! predicts. Weights are only read; activations are overwritten whole, read, and then dead;
//! training reads them once more, backwards.
//!
//! Kernel times are those of an RTX 5080 for the bytes (960 GB/s, of which kernels reach three
//! quarters) or the operations (40 TFLOP/s), whichever is longer, and 2.5 us at least.
#![forbid(unsafe_code)]

use weft_engine::memory::{BLOCK_BYTES, Range};
use weft_profiles::working_set::Access;
use weft_random::{at as draw, factor};

use crate::Ns;

/// Bytes that a kernel moves in a nanosecond: three quarters of an RTX 5080's 960 GB/s.
const BYTES_A_NS: f64 = 720.0;
/// Operations a kernel does in a nanosecond.
const FLOP_A_NS: f64 = 40_000.0;
/// Time of the smallest kernel.
const SMALLEST: f64 = 2_500.0;

/// A region that a kernel uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touch {
    /// Its bytes, in the job's own addresses.
    pub range: Range,
    /// Whether it is read, written or both.
    pub access: Access,
    /// Whether no template predicts it.
    pub hidden: bool,
}

/// A launch.
#[derive(Debug, Clone, PartialEq)]
pub struct PagedKernel {
    /// Its time when all its memory is present.
    pub time: Ns,
    /// The regions that it touches, in order; its time is spread over them by size.
    pub touches: Vec<Touch>,
}

/// A job.
#[derive(Debug, Clone, PartialEq)]
pub struct PagedJob {
    /// Its name.
    pub name: String,
    /// Its allocations.
    pub allocations: Vec<Range>,
    /// The kernels of one period.
    pub kernels: Vec<PagedKernel>,
}

impl PagedJob {
    /// Time of a period when all its memory is present.
    pub fn period(&self) -> Ns {
        self.kernels.iter().map(|kernel| kernel.time).sum()
    }

    /// Size of all its allocations.
    pub fn bytes(&self) -> u64 {
        self.allocations.iter().map(|range| range.len).sum()
    }
}

/// Jobs that share a device.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// Whether the aims for decoders apply to it, or those for mixes.
    pub decoders: bool,
    /// Memory of all jobs together, per cent of the device.
    pub share: u64,
    /// The jobs.
    pub jobs: Vec<PagedJob>,
}

/// The name of the workload of [`filling`].
pub const FILLING: &str = "two full";

/// Two jobs of `bytes` each, which fill the device.
pub fn filling(bytes: u64, seed: u64) -> Workload {
    Workload {
        name: FILLING,
        decoders: true,
        share: 200,
        jobs: (0..2)
            .map(|n| decoder(bytes / BLOCK_BYTES * BLOCK_BYTES, place(seed, n)))
            .collect(),
    }
}

/// The names of the workloads.
pub const NAMES: [&str; 5] = ["decoders", "vectors", "rodinia", "cnns", "hybrid"];

/// A workload whose jobs together have `share` per cent of `capacity` bytes.
pub fn generate(name: &'static str, capacity: u64, share: u64, seed: u64) -> Workload {
    let total = capacity / 100 * share;
    let jobs = match name {
        // MSched's own: its demonstration has eight of 8 GB on 16 GB, two for each 100 % here.
        "decoders" => {
            let count = share / 50;
            (0..count).map(|n| decoder(total / count, place(seed, n))).collect()
        }
        "vectors" => {
            let each = total / 4;
            vec![
                vectors(each, place(seed, 0)),
                matmul(each, place(seed, 1)),
                vectors(each, place(seed, 2)),
                matmul(each, place(seed, 3)),
            ]
        }
        "rodinia" => (0..4).map(|n| stencil(total / 4, n, place(seed, n))).collect(),
        "cnns" => (0..4).map(|n| network(total / 4, n, false, place(seed, n))).collect(),
        _ => (0..4).map(|n| network(total / 4, n, n < 2, place(seed, n))).collect(),
    };
    Workload {
        name,
        decoders: name == "decoders",
        share,
        jobs,
    }
}

/// A service of `service` bytes and a batch job of `batch` bytes, both modelled on ResNet152 (the
/// model of MSched's comparison with XSched). The batch job is inference on batches of its own
/// size, or training.
///
/// The time of a request of 6 GB, 529 ms on 16 GB, follows from the model of [`network`]; it was
/// not tuned. A ResNet152 on an RTX 5080 would take about the same time:
///
/// * Pictures. In PyTorch a picture of 224 x 224 needs at most its block's input, a convolution's
///   result and its normalised copy at once, each 256 x 56 x 56 x 4 bytes = 3.2 MB, and a smaller
///   one in the first block: 10 to 13 MB. So 6 GB are a batch of some 460 to 570.
/// * Operations: 11.6 G multiply-adds = 23 GFLOP a picture, at 40 of the 56 TFLOP/s for FP32 and
///   TF32 in the card's data sheet: 0.58 ms.
/// * Bytes: 22.6 M activations of 4 bytes = 90 MB. Convolutions read and write them once (180 MB,
///   hidden behind the operations). Normalisation, ReLU and sums go over them again (some 420 MB,
///   at 720 GB/s): 0.58 ms more if they are not fused, little if they are.
/// * So 460 to 570 pictures take 0.27 s (all fused) to 0.66 s (nothing fused). The model's 0.53 s
///   lies between.
/// * Against a measurement: a public benchmark (pytorch-image-models,
///   `results/benchmark-infer-amp-nchw-pt240-cu124-rtx4090.csv`) has ResNet152 at 1,942 pictures a
///   second on an RTX 4090 with 2 bytes an element. That card has about the same bandwidth (1,008
///   to 960 GB/s). With 4 bytes twice as much moves: about 1.0 ms a picture, 0.46 to 0.57 s.
pub fn service(service: u64, batch: u64, training: bool, seed: u64) -> Workload {
    Workload {
        name: if training {
            "beside training"
        } else {
            "beside inference"
        },
        decoders: false,
        share: 0,
        jobs: vec![
            network(service, 0, false, place(seed, 0)),
            network(batch, 0, training, place(seed, 1)),
        ],
    }
}

fn place(seed: u64, job: u64) -> [u64; 2] {
    [seed, job]
}

/// Lays allocations out one after the other, each from the begin of a block.
#[derive(Default)]
struct WorkloadBuilder {
    next: u64,
    allocations: Vec<Range>,
    kernels: Vec<PagedKernel>,
    /// Determines by how much kernels differ.
    seed: [u64; 2],
}

impl WorkloadBuilder {
    fn new(seed: [u64; 2]) -> WorkloadBuilder {
        WorkloadBuilder {
            seed,
            ..WorkloadBuilder::default()
        }
    }

    fn allocate(&mut self, bytes: u64) -> Range {
        let range = Range::new(self.next, whole(bytes));
        self.next += range.len;
        self.allocations.push(range);
        range
    }

    /// Adds a kernel that moves the bytes that it touches and does `flop` operations.
    fn kernel(&mut self, flop: f64, touches: &[(Range, Access)]) {
        let bytes: u64 = touches.iter().map(|(range, _)| range.len).sum();
        let time = (bytes as f64 / BYTES_A_NS).max(flop / FLOP_A_NS).max(SMALLEST);
        let word = draw(self.seed[0], [self.seed[1], self.kernels.len() as u64, 7]);
        self.kernels.push(PagedKernel {
            time: (time * factor(word, 0.03)) as Ns,
            touches: touches
                .iter()
                .map(|&(range, access)| Touch {
                    range,
                    access,
                    hidden: false,
                })
                .collect(),
        });
    }

    fn done(self, name: String) -> PagedJob {
        PagedJob {
            name,
            allocations: self.allocations,
            kernels: self.kernels,
        }
    }
}

fn whole(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK_BYTES)
}

/// A part of a range, in per mille.
fn part(range: Range, from: u64, to: u64) -> Range {
    let at = |n: u64| range.len / 1000 * n;
    Range::new(range.start + at(from), at(to) - at(from))
}

use Access::{Read, ReadWrite, Write};

/// A decoder of `bytes` bytes modelled on Llama3-8B in 8 bits under llama.cpp. It has 32 layers,
/// one monolithic block of weights, a cache of keys and values of which a quarter is filled, and
/// scratch. (MSched: 7.6 GB of weights, 0.3 GB of activations, kernels that touch 16 KB to 60 MB.)
fn decoder(bytes: u64, seed: [u64; 2]) -> PagedJob {
    const LAYERS: u64 = 32;
    let mut b = WorkloadBuilder::new(seed);
    let cache_bytes = bytes / 1000 * 40;
    let scratch_bytes = bytes / 1000 * 8;
    let weights = b.allocate(bytes - whole(cache_bytes) - whole(scratch_bytes));
    let cache = b.allocate(cache_bytes);
    let scratch = b.allocate(scratch_bytes);
    // The 8.03 GB are 32 layers of 218 MB, and 525 MB of embeddings at each end. The first of these
    // are looked up one token at a time.
    let ends = weights.len / 1000 * 65;
    let layer_bytes = (weights.len - 2 * ends) / LAYERS;
    let x = part(scratch, 0, 125);
    let hidden = part(scratch, 125, 500);
    let line = |range: Range| Range::new(range.start, range.len.min(64 << 10));
    b.kernel(0.0, &[(Range::new(weights.start, 64 << 10), Read), (line(x), Write)]);
    for layer in 0..LAYERS {
        let base = Range::new(weights.start + ends + layer * layer_bytes, layer_bytes);
        // q, k, v, o: 77, 19, 19, 77 of 1000; gate, up, down: 269 each.
        let cuts = [0, 77, 96, 115, 192, 461, 730, 1000];
        let weight = |n: usize| part(base, cuts[n], cuts[n + 1]);
        let of_layer = Range::new(cache.start + layer * (cache.len / LAYERS), cache.len / LAYERS);
        let (keys, values) = (part(of_layer, 0, 500), part(of_layer, 500, 1000));
        b.kernel(0.0, &[(line(x), ReadWrite)]);
        for n in 0..3 {
            b.kernel(0.0, &[(weight(n), Read), (line(x), ReadWrite)]);
        }
        b.kernel(0.0, &[(line(x), ReadWrite)]);
        b.kernel(0.0, &[(line(keys), ReadWrite), (line(values), ReadWrite)]);
        // Linear in the number of tokens so far; strided over heads.
        b.kernel(
            0.0,
            &[
                (part(keys, 0, 250), Read),
                (part(values, 0, 250), Read),
                (line(hidden), Write),
            ],
        );
        b.kernel(0.0, &[(weight(3), Read), (line(x), ReadWrite)]);
        b.kernel(0.0, &[(line(x), ReadWrite)]);
        b.kernel(0.0, &[(weight(4), Read), (line(hidden), ReadWrite)]);
        b.kernel(0.0, &[(weight(5), Read), (line(hidden), ReadWrite)]);
        b.kernel(0.0, &[(line(hidden), ReadWrite)]);
        b.kernel(0.0, &[(weight(6), Read), (line(x), ReadWrite)]);
    }
    let last = Range::new(weights.end() - ends, ends);
    b.kernel(0.0, &[(last, Read), (line(hidden), ReadWrite)]);
    b.done("decoder".to_owned())
}

/// `c = a + b` over and over, in 16 launches, each over a part.
fn vectors(bytes: u64, seed: [u64; 2]) -> PagedJob {
    let mut b = WorkloadBuilder::new(seed);
    let arrays = [bytes / 3; 3].map(|bytes| b.allocate(bytes));
    for n in 0..16 {
        let part = arrays.map(|array| Range::new(array.start + array.len / 16 * n, array.len / 16));
        b.kernel(0.0, &[(part[0], Read), (part[1], Read), (part[2], Write)]);
    }
    b.done("vectors".to_owned())
}

/// A square product in 16 launches, each of some rows of the first factor by the whole second one.
fn matmul(bytes: u64, seed: [u64; 2]) -> PagedJob {
    let mut b = WorkloadBuilder::new(seed);
    let [first, second, product] = [bytes / 3; 3].map(|bytes| b.allocate(bytes));
    let side = ((bytes / 3) as f64 / 4.0).sqrt();
    for n in 0..16 {
        let rows = |array: Range| Range::new(array.start + array.len / 16 * n, array.len / 16);
        b.kernel(
            2.0 * side.powi(3) / 16.0,
            &[(rows(first), Read), (second, Read), (rows(product), Write)],
        );
    }
    b.done("matmul".to_owned())
}

/// Iterations over grids as in Rodinia: `hotspot` (two inputs, one output, which change places),
/// `srad` (six grids), `kmeans` (one large array that is only read), `bfs` (edges that no template
/// predicts).
fn stencil(bytes: u64, which: u64, seed: [u64; 2]) -> PagedJob {
    let mut b = WorkloadBuilder::new(seed);
    match which {
        0 => {
            let [one, other, power] = [bytes / 3; 3].map(|bytes| b.allocate(bytes));
            for (from, to) in [(one, other), (other, one)] {
                b.kernel(
                    from.len as f64 / 4.0 * 15.0,
                    &[(from, Read), (power, Read), (to, Write)],
                );
            }
            b.done("hotspot".to_owned())
        }
        1 => {
            let grids = [bytes / 6; 6].map(|bytes| b.allocate(bytes));
            let cells = grids[0].len as f64 / 4.0;
            let [image, north, south, east, west, factor] = grids;
            b.kernel(cells * 2.0, &[(image, Read)]);
            b.kernel(
                cells * 40.0,
                &[
                    (image, Read),
                    (north, Write),
                    (south, Write),
                    (east, Write),
                    (west, Write),
                    (factor, Write),
                ],
            );
            b.kernel(
                cells * 12.0,
                &[
                    (north, Read),
                    (south, Read),
                    (east, Read),
                    (west, Read),
                    (factor, Read),
                    (image, ReadWrite),
                ],
            );
            b.done("srad".to_owned())
        }
        2 => {
            let points = b.allocate(bytes / 100 * 98);
            let centres = b.allocate(bytes / 100);
            let found = b.allocate(bytes / 100);
            // 32 centres; each point's distance to each.
            b.kernel(
                points.len as f64 / 4.0 * 96.0,
                &[(points, Read), (centres, Read), (found, Write)],
            );
            b.kernel(0.0, &[(found, Read), (centres, ReadWrite)]);
            b.done("kmeans".to_owned())
        }
        _ => {
            let nodes = b.allocate(bytes / 4);
            let edges = b.allocate(bytes / 2);
            let state = b.allocate(bytes / 4);
            for level in 0..12 {
                b.kernel(
                    0.0,
                    &[
                        (nodes, Read),
                        (part(edges, level * 80, level * 80 + 80), Read),
                        (state, ReadWrite),
                    ],
                );
                // The neighbours of a few nodes: their addresses are in device memory. 0.92 % of
                // the bytes that Rodinia touches are of this kind.
                let hidden = Range::new(edges.start + edges.len / 13 * level, edges.len / 100);
                if let Some(kernel) = b.kernels.last_mut() {
                    kernel.touches.push(Touch {
                        range: hidden,
                        access: Read,
                        hidden: true,
                    });
                }
            }
            b.done("bfs".to_owned())
        }
    }
}

/// A convolutional network on large batches: 120 layers, activations that are written whole, read
/// by the next layer, and dead. Training keeps them and reads them once more, backwards, with
/// gradients and the optimiser's state. ResNet-like: 0.7 ms for a picture of the batch, for 230 MB
/// of activations moved.
fn network(bytes: u64, which: u64, training: bool, seed: [u64; 2]) -> PagedJob {
    const LAYERS: u64 = 120;
    /// Operations for each byte of activations that a convolution reads and writes: 23 GFLOP for
    /// 230 MB.
    const FLOP_A_BYTE: f64 = 100.0;
    let mut b = WorkloadBuilder::new(seed);
    // Weights of 60 to 140 MB with batches of gigabytes: a fiftieth, for VGG more.
    let weights = b.allocate(bytes / if which == 1 { 20 } else { 50 });
    let of = |n: u64, range: Range| Range::new(range.start + range.len / LAYERS * n, range.len / LAYERS);
    if training {
        let optimiser = b.allocate(2 * weights.len);
        let gradients = b.allocate(weights.len);
        let kept = b.allocate((bytes - 4 * weights.len) / 10 * 9);
        let flow = b.allocate((bytes - 4 * weights.len) / 10);
        let halves = [part(flow, 0, 500), part(flow, 500, 1000)];
        let flop = 2.0 * (kept.len / LAYERS) as f64 * FLOP_A_BYTE;
        for n in 0..LAYERS {
            let before = of(n.max(1) - 1, kept);
            b.kernel(flop, &[(of(n, weights), Read), (before, Read), (of(n, kept), Write)]);
        }
        for n in (0..LAYERS).rev() {
            let (from, to) = (halves[(n % 2) as usize], halves[((n + 1) % 2) as usize]);
            let size = of(0, kept).len.min(from.len);
            let (from, to) = (Range::new(from.start, size), Range::new(to.start, size));
            let read = [(of(n, weights), Read), (of(n, kept), Read), (from, Read)];
            b.kernel(
                2.0 * flop,
                &[read[0], read[1], read[2], (to, Write), (of(n, gradients), ReadWrite)],
            );
        }
        for n in 0..8 {
            let eighth = |range: Range| Range::new(range.start + range.len / 8 * n, range.len / 8);
            b.kernel(
                0.0,
                &[
                    (eighth(gradients), Read),
                    (eighth(optimiser), ReadWrite),
                    (eighth(weights), ReadWrite),
                ],
            );
        }
        return b.done("cnn training".to_owned());
    }
    // The allocator's pool for inference: four parts that layers take in turns (a block's input
    // stays for its sum).
    let pool = b.allocate(bytes - weights.len);
    let parts: Vec<Range> = (0..4).map(|n| part(pool, n * 250, n * 250 + 250)).collect();
    for n in 0..LAYERS {
        // Early layers have the largest activations; ResNet halves them four times.
        let size = |n: u64| whole(parts[0].len >> (n / 30).min(3)).min(parts[0].len / BLOCK_BYTES * BLOCK_BYTES);
        let from = parts[(n % 3) as usize];
        let to = parts[((n + 1) % 3) as usize];
        let read = Range::new(from.start, size(n.max(1) - 1));
        let write = Range::new(
            to.start.next_multiple_of(BLOCK_BYTES),
            size(n).saturating_sub(BLOCK_BYTES),
        );
        let mut touches = vec![(of(n, weights), Read), (read, Read)];
        if n % 3 == 2 {
            touches.push((Range::new(parts[3].start, size(n)), Read));
        }
        touches.push((write, Write));
        b.kernel((read.len + write.len) as f64 * FLOP_A_BYTE, &touches);
        if n % 3 == 0 {
            let stays = Range::new(
                parts[3].start.next_multiple_of(BLOCK_BYTES),
                size(n).saturating_sub(BLOCK_BYTES),
            );
            b.kernel(0.0, &[(write, Read), (stays, Write)]);
        }
    }
    b.done("cnn inference".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_have_the_memory_asked_for_and_touch_what_they_have() {
        let capacity = 16 << 30;
        for name in NAMES {
            for share in [100, 150, 200, 300] {
                let workload = generate(name, capacity, share, 1);
                let total: u64 = workload.jobs.iter().map(PagedJob::bytes).sum();
                let asked = capacity / 100 * share;
                assert!(
                    total.abs_diff(asked) < asked / 100,
                    "{name} {share}: {total} of {asked}"
                );
                for job in &workload.jobs {
                    let touches = job.kernels.iter().flat_map(|kernel| &kernel.touches);
                    for touch in touches {
                        let inside =
                            |range: &&Range| range.start <= touch.range.start && touch.range.end() <= range.end();
                        assert!(
                            job.allocations.iter().any(|range| inside(&range)),
                            "{}: {touch:?}",
                            job.name
                        );
                    }
                    assert!(job.period() > 0);
                }
            }
        }
    }

    #[test]
    fn a_decoded_word_takes_what_the_paper_says() {
        let workload = generate("decoders", 16 << 30, 100, 1);
        // 12.7 ms for 8.5 GB touched.
        for job in &workload.jobs {
            let period = job.period() as f64 / 1e6;
            assert!((11.0..14.5).contains(&period), "{period} ms");
        }
    }

    #[test]
    fn the_same_seed_is_the_same_workload() {
        assert_eq!(generate("hybrid", 1 << 34, 200, 3), generate("hybrid", 1 << 34, 200, 3));
        assert_ne!(generate("hybrid", 1 << 34, 200, 3), generate("hybrid", 1 << 34, 200, 4));
    }
}
