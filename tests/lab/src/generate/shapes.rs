// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shapes that decide whether a scheduler is any good, each from a seed: a model drawn once,
//! then requests or iterations that differ as real ones do.
//!
//! | shape | what is hard about it |
//! |---|---|
//! | [`decode_with_graphs`] | a launch is a whole token: it fits few gaps, and hides its kernels; requests are of any length |
//! | [`bursty`] | a gap between requests is tiny or huge, and nothing before tells which |
//! | [`long_kernels`] | as a background job, one kernel outlasts any gap |
//! | [`loader_stalls`] | an iteration is always the same, the pause before it is not |
//! | [`syncs_after_every_kernel`] | a gap behind each kernel, too short for most |
//!
//! The seed determines the kernels, their order and their mean times: every step launches the same
//! model. Each time varies from step to step by a few per cent, and the shape's own property
//! varies.
#![forbid(unsafe_code)]

use weft_random::{Random, at, exponential, factor};
use weft_trace_format::Trace;

use super::Builder;
use crate::{MS, Ns, US};

/// Deviation of a kernel's time from its mean, from step to step.
const KERNEL: f64 = 0.03;

/// Deviation of a host gap from its mean.
const HOST: f64 = 0.15;

/// A launch of the drawn model.
#[derive(Debug, Clone, Copy)]
struct ShapedLaunch {
    kernel: u32,
    host: Ns,
    time: Ns,
}

/// Draws a model and varies it.
#[derive(Debug)]
struct Draw {
    random: Random,
    seed: u64,
    /// Number of values varied so far: each gets a place of its own.
    varied: u64,
}

impl Draw {
    fn new(seed: u64) -> Draw {
        Draw {
            random: Random::new(seed),
            seed,
            varied: 0,
        }
    }

    /// A value with the same probability in each octave between the two.
    fn log_even(&mut self, low: Ns, high: Ns) -> Ns {
        let (low, high) = ((low as f64).ln(), (high as f64).ln());
        (low + self.random.unit() * (high - low)).exp() as Ns
    }

    /// A model of `launches` launches of `kernels` kernels. Each launch has a time of its own, so
    /// one kernel has many times.
    fn model(&mut self, launches: u32, kernels: u32, host: (Ns, Ns), time: (Ns, Ns)) -> Vec<ShapedLaunch> {
        let means: Vec<Ns> = (0..kernels.max(1)).map(|_| self.log_even(time.0, time.1)).collect();
        (0..launches)
            .map(|_| {
                let kernel = (self.random.word() % means.len() as u64) as u32;
                let scale = 0.5 + self.random.unit();
                let mean = means.get(kernel as usize).copied().unwrap_or(time.0);
                ShapedLaunch {
                    kernel,
                    host: self.random.between(host),
                    time: ((mean as f64 * scale) as Ns).clamp(time.0, time.1),
                }
            })
            .collect()
    }

    fn vary(&mut self, mean: Ns, deviation: f64) -> Ns {
        self.varied += 1;
        let word = at(self.seed, [1, self.varied, 0]);
        (mean as f64 * factor(word, deviation)) as Ns
    }

    fn exponential(&mut self, mean: Ns) -> Ns {
        self.varied += 1;
        let word = at(self.seed, [2, self.varied, 0]);
        exponential(word, mean as f64) as Ns
    }

    fn launch_all(&mut self, builder: &mut Builder, model: &[ShapedLaunch]) {
        for launch in model {
            let (host, time) = (self.vary(launch.host, HOST), self.vary(launch.time, KERNEL));
            builder.launch(launch.kernel, host, time);
        }
    }
}

/// A language model that serves: a prompt of eager kernels (its times grow with its length), then 4
/// to 64 tokens, each one CUDA graph of 300 kernels. Between two tokens the host samples.
pub fn decode_with_graphs(seed: u64, requests: usize) -> Trace {
    let mut draw = Draw::new(seed);
    let prompt = draw.model(120, 12, (3 * US, 9 * US), (20 * US, 400 * US));
    let nodes: Vec<Ns> = (0..300).map(|_| draw.log_even(2 * US, 25 * US)).collect();
    let mut builder = Builder::new("decode_with_graphs");
    // The graph's nodes take the first numbers, the prompt's kernels the next ones.
    let graph = builder.graph(&nodes);
    let token = nodes.iter().sum();
    for _ in 0..requests {
        let think = draw.exponential(30 * MS);
        builder.step(think).input(4_096, 2 * US);
        let length = 0.25 + 1.5 * draw.random.unit();
        for launch in &prompt {
            let time = (launch.time as f64 * length) as Ns;
            let (host, time) = (draw.vary(launch.host, HOST), draw.vary(time, KERNEL));
            builder.launch(graph + 1 + launch.kernel, host, time);
        }
        for _ in 0..draw.log_even(4, 64) {
            let (host, time) = (draw.vary(180 * US, HOST), draw.vary(token, KERNEL));
            builder.launch(graph, host, time).sync();
        }
    }
    builder.done()
}

/// A service whose requests come in bursts of up to 12 with hardly any time between them, then a
/// pause of 60 ms on average.
pub fn bursty(seed: u64, requests: usize) -> Trace {
    let mut draw = Draw::new(seed);
    let model = draw.model(150, 20, (4 * US, 12 * US), (3 * US, 150 * US));
    let mut builder = Builder::new("bursty");
    let mut left = 0;
    for _ in 0..requests {
        let think = if left == 0 {
            left = draw.log_even(1, 12);
            draw.exponential(60 * MS)
        } else {
            draw.vary(150 * US, HOST)
        };
        left -= 1;
        builder.step(think).input(602_112, 26 * US);
        draw.launch_all(&mut builder, &model);
        builder.sync();
    }
    builder.done()
}

/// A computation of few long kernels, 2 to 40 ms each, launched ahead.
pub fn long_kernels(seed: u64, iterations: usize) -> Trace {
    let mut draw = Draw::new(seed);
    let model = draw.model(8, 5, (10 * US, 60 * US), (2 * MS, 40 * MS));
    let mut builder = Builder::new("long_kernels");
    for _ in 0..iterations {
        let think = draw.vary(500 * US, HOST);
        builder.step(think);
        draw.launch_all(&mut builder, &model);
        builder.sync();
    }
    builder.done()
}

/// Training whose data is usually present, but comes 20 to 200 ms late every tenth time on average.
pub fn loader_stalls(seed: u64, iterations: usize) -> Trace {
    let mut draw = Draw::new(seed);
    let model = draw.model(600, 60, (3 * US, 14 * US), (3 * US, 500 * US));
    let mut builder = Builder::new("loader_stalls");
    for _ in 0..iterations {
        let late = draw.random.unit() < 0.1;
        let think = if late {
            draw.log_even(20 * MS, 200 * MS)
        } else {
            draw.vary(200 * US, HOST)
        };
        builder.step(think).input(9_633_792, 400 * US);
        draw.launch_all(&mut builder, &model);
        builder.sync();
    }
    builder.done()
}

/// A service that reads the result of every kernel before it launches the next one.
pub fn syncs_after_every_kernel(seed: u64, requests: usize) -> Trace {
    let mut draw = Draw::new(seed);
    let model = draw.model(60, 10, (5 * US, 80 * US), (8 * US, 300 * US));
    let mut builder = Builder::new("syncs_after_every_kernel");
    for _ in 0..requests {
        let think = draw.exponential(4 * MS);
        builder.step(think).input(150_528, 8 * US);
        for launch in &model {
            let (host, time) = (draw.vary(launch.host, HOST), draw.vary(launch.time, KERNEL));
            builder.launch(launch.kernel, host, time).sync();
        }
    }
    builder.done()
}

/// A shape: a function of a seed and a number of steps.
pub type Shape = fn(u64, usize) -> Trace;

/// All shapes, by name.
pub const ALL: [(&str, Shape); 5] = [
    ("decode_with_graphs", decode_with_graphs),
    ("bursty", bursty),
    ("long_kernels", long_kernels),
    ("loader_stalls", loader_stalls),
    ("syncs_after_every_kernel", syncs_after_every_kernel),
];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use weft_trace_format::timeline::{self, CallCosts};
    use weft_trace_format::{Call, Step, codec};

    use super::*;

    fn kernels(step: &Step) -> Vec<u32> {
        let calls = step.operations.iter().map(|operation| operation.call);
        calls
            .filter_map(|call| {
                if let Call::Launch { kernel, .. } = call {
                    Some(kernel)
                } else {
                    None
                }
            })
            .collect()
    }

    fn durations(step: &Step) -> Vec<Ns> {
        step.operations
            .iter()
            .filter_map(|operation| operation.call.duration())
            .collect()
    }

    #[test]
    fn a_seed_is_a_trace_and_another_seed_another() {
        for (name, shape) in ALL {
            let trace = shape(7, 20);
            assert_eq!(trace.unsound(), None, "{name}");
            assert_eq!((trace.name.as_str(), trace.steps.len()), (name, 20));
            assert_eq!(trace, shape(7, 20), "{name}");
            assert_ne!(trace, shape(8, 20), "{name}");
            // A longer trace begins like a shorter one: the number of steps changes nothing else.
            assert_eq!(trace.steps[..5], shape(7, 5).steps[..], "{name}");
        }
    }

    #[test]
    fn a_model_is_the_same_in_every_step_and_its_times_are_nearly() {
        for (name, shape) in ALL.into_iter().filter(|(name, _)| *name != "decode_with_graphs") {
            let trace = shape(3, 30);
            for step in &trace.steps {
                assert_eq!(kernels(step), kernels(&trace.steps[0]), "{name}");
                for (here, first) in durations(step).into_iter().zip(durations(&trace.steps[0])) {
                    // The sum of four even draws ends at 3.5 deviations to either side of its mean.
                    assert!(here.abs_diff(first) <= first * 25 / 100, "{name}: {here} {first}");
                }
            }
        }
    }

    #[test]
    fn one_kernel_has_many_times() {
        let trace = loader_stalls(5, 1);
        let mut most = std::collections::HashMap::<u32, (Ns, Ns)>::new();
        for operation in &trace.steps[0].operations {
            if let Call::Launch { kernel, duration, .. } = operation.call {
                let (low, high) = most.entry(kernel).or_insert((duration, duration));
                (*low, *high) = ((*low).min(duration), (*high).max(duration));
            }
        }
        assert!(most.values().any(|(low, high)| high > &(low * 3 / 2)));
    }

    #[test]
    fn tokens_are_graphs_and_requests_of_any_length() {
        let trace = decode_with_graphs(1, 60);
        let graphs: Vec<usize> = (0..trace.kernels.len())
            .filter(|at| !trace.kernels[*at].nodes.is_empty())
            .collect();
        let [graph] = graphs[..] else { panic!("{graphs:?}") };
        let tokens: Vec<usize> = trace
            .steps
            .iter()
            .map(|step| kernels(step).iter().filter(|kernel| **kernel as usize == graph).count())
            .collect();
        let (least, most) = (tokens.iter().min().unwrap(), tokens.iter().max().unwrap());
        assert!(*least >= 4 && *most < 64 && most > &(3 * least), "{least} {most}");
        assert_eq!(trace.kernels[graph].nodes.len(), 300);
    }

    #[test]
    fn bursts_and_stalls_are_far_from_the_rest() {
        let thinks = |trace: &Trace| -> Vec<Ns> { trace.steps.iter().map(|step| step.think).collect() };
        let short = |thinks: &[Ns], below: Ns| thinks.iter().filter(|think| **think < below).count();
        let bursty = thinks(&bursty(2, 400));
        let stalls = thinks(&loader_stalls(2, 400));
        // Think times below 1 ms: most are tiny, some are long.
        assert!((200..380).contains(&short(&bursty, MS)), "{}", short(&bursty, MS));
        assert!(bursty.iter().any(|think| *think > 60 * MS));
        assert!((330..395).contains(&short(&stalls, MS)), "{}", short(&stalls, MS));
        assert_eq!(short(&stalls, 19 * MS), short(&stalls, MS));
    }

    #[test]
    fn every_kernel_of_the_syncing_one_has_a_gap_behind_it() {
        let timeline = timeline::alone(&syncs_after_every_kernel(9, 10), CallCosts::default());
        assert!(timeline.spans.iter().filter_map(|span| span.gap).all(|gap| gap > 0));
        let ahead = timeline::alone(&long_kernels(9, 1), CallCosts::default());
        assert!(ahead.spans.iter().filter_map(|span| span.gap).all(|gap| gap == 0));
    }

    #[test]
    fn they_fit_a_file() {
        for (name, shape) in ALL {
            let trace = shape(1, 40);
            let bytes = codec::encode(&trace, Path::new(name)).unwrap();
            assert_eq!(
                codec::decode(&bytes, Path::new(name)).unwrap(),
                trace.quantised(),
                "{name}"
            );
        }
    }
}
