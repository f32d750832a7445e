// SPDX-License-Identifier: MIT OR Apache-2.0
//! The repository's traces: complete, readable, small, and as their README describes them.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use weft_trace_format::timeline::{self, CallCosts};
use weft_trace_format::{Call, Source, Step, Trace};

/// Size limit for a repository, also in `scripts/traces`.
const MAX_TRACE_BYTES: u64 = 400_000;
const MAX_TOTAL_BYTES: u64 = 6_000_000;

const MODELS: [&str; 12] = [
    "resnet50",
    "resnet152",
    "vgg19",
    "inception_v3",
    "densenet201",
    "vit_b_16",
    "bert_base",
    "gpt2",
    "llama",
    "unet",
    "detection",
    "lstm",
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../recorded/simulated-A100")
}

fn traces() -> Vec<(String, Trace)> {
    let mut found: Vec<(String, Trace)> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "trace"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, Trace::load(&path).unwrap())
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// A step's calls without their times.
fn sequence(step: &Step) -> Vec<(u16, bool, String)> {
    let call = |call: &Call| format!("{:?}", call.with_duration(0));
    step.operations
        .iter()
        .map(|operation| (operation.thread, operation.handed_over, call(&operation.call)))
        .collect()
}

#[test]
fn every_model_is_there_in_both_modes_and_they_are_small() {
    let mut all = 0;
    for model in MODELS {
        for mode in ["infer", "train"] {
            let bytes = fs::metadata(folder().join(format!("{model}-{mode}.trace"))).map(|file| file.len());
            let bytes = bytes.unwrap_or_else(|error| panic!("{model}-{mode}: {error}"));
            assert!(bytes <= MAX_TRACE_BYTES, "{model}-{mode}: {bytes}");
            all += bytes;
        }
    }
    assert!(all <= MAX_TOTAL_BYTES, "{all}");
}

#[test]
fn each_says_what_it_is() {
    for (name, trace) in traces() {
        assert_eq!(trace.name, name);
        assert_eq!(trace.unsound(), None, "{name}");
        // Estimates must not pass for measured times.
        assert_eq!(trace.source, Source::Estimated, "{name}");
        assert!(
            trace.note.contains("estimates for an A100") && trace.note.contains("seed"),
            "{name}: {}",
            trace.note
        );
        assert!(trace.gpu.name.contains("simulated"), "{name}: {}", trace.gpu);
        assert!(trace.steps.len() >= 20, "{name}: {} steps", trace.steps.len());
    }
}

#[test]
fn a_models_steps_repeat_one_sequence() {
    for (name, trace) in traces() {
        let sequences: HashSet<_> = trace.steps.iter().map(sequence).collect();
        // A growing pool or a first use may change one or two.
        assert!(
            sequences.len() <= 3,
            "{name}: {} sequences in {} steps",
            sequences.len(),
            trace.steps.len()
        );
    }
}

#[test]
fn every_kernel_has_a_name_and_every_piece_of_work_a_time() {
    for (name, trace) in traces() {
        for kernel in &trace.kernels {
            assert!(!kernel.id.symbol.is_empty() && kernel.id.symbol != "?", "{name}");
            assert_eq!(kernel.hash, kernel.id.hash64(), "{name}: {}", kernel.id);
        }
        let durations = trace
            .steps
            .iter()
            .flat_map(|step| &step.operations)
            .filter_map(|op| op.call.duration());
        // Half a microsecond is the least estimate. Ten milliseconds exceed every kernel of these
        // models; a graph may take longer.
        assert!(durations.clone().all(|time| time >= 490), "{name}");
        assert!(
            durations.clone().max() < Some(40_000_000),
            "{name}: {:?}",
            durations.max()
        );
    }
}

#[test]
fn training_runs_on_two_threads_that_hand_over_and_inference_on_one() {
    for (name, trace) in traces() {
        let threads: HashSet<u16> = trace.steps[0]
            .operations
            .iter()
            .map(|operation| operation.thread)
            .collect();
        let handed = trace.steps[0]
            .operations
            .iter()
            .filter(|operation| operation.handed_over)
            .count();
        match name.ends_with("train") {
            // To the backward pass and back.
            true => assert!(threads.len() == 2 && handed >= 2, "{name}: {threads:?} {handed}"),
            false => assert!(threads.len() == 1 && handed == 0, "{name}: {threads:?} {handed}"),
        }
    }
}

#[test]
fn one_identity_has_many_durations() {
    // A mean per identity cannot separate these: one kernel at two places of a model, with other
    // tensors.
    let (_, trace) = traces().into_iter().find(|(name, _)| name == "resnet50-train").unwrap();
    let mut by_kernel: HashMap<u32, Vec<u64>> = HashMap::new();
    for operation in &trace.steps[0].operations {
        if let Call::Launch { kernel, duration, .. } = operation.call {
            by_kernel.entry(kernel).or_default().push(duration);
        }
    }
    let apart = by_kernel
        .values()
        .filter(|times| times.iter().max() > times.iter().min().map(|least| least * 3 / 2).as_ref());
    assert!(apart.count() >= 3);
}

#[test]
fn played_alone_each_leaves_gaps_and_ends() {
    for (name, trace) in traces() {
        let timeline = timeline::alone(&trace, CallCosts::default());
        assert_eq!(timeline.steps.len(), trace.steps.len(), "{name}");
        let idle: u64 = timeline.spans.iter().filter_map(|span| span.gap).sum();
        assert!(idle > 0, "{name}");
    }
}
