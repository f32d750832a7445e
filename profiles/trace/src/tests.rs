// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of traces, and a sample for other modules' tests.

use super::*;

/// Two requests of one sequence and one of another: two threads, a graph, a copy back, a second
/// stream.
pub(crate) fn sample() -> Trace {
    let mut trace = Trace {
        name: "resnet".into(),
        taken: 1_700_000_000,
        gpu: GpuIdentity {
            name: "NVIDIA A100-SXM4-40GB".into(),
            memory: 40 << 30,
            ..GpuIdentity::default()
        },
        source: Source::Estimated,
        note: "estimates for an A100".into(),
        launch_cost: 4_000,
        ..Trace::default()
    };
    for (symbol, grid) in [("_Z4gemmPf", 80), ("_Z4gemmPf", 160), ("_Z7softmaxPf", 8)] {
        let id = KernelId::new(3, symbol, [grid, 1, 1], [256, 1, 1], 1024);
        trace.kernels.push(TracedKernel {
            registers: grid + 16,
            ..TracedKernel::of(id)
        });
    }
    let mut graph = TracedKernel::of(KernelId::graph(0xfeed_0000_0000_0001, 2));
    let node = |kernel, duration| GraphNode { kernel, duration };
    graph.nodes = vec![node(0, 90_000), node(2, 5_000)];
    trace.kernels.push(graph);
    for (step, launches) in [(0, 4), (1, 4), (2, 7)] {
        trace.steps.push(request(step, launches));
    }
    trace
}

fn request(number: u64, launches: u32) -> Step {
    let launch = |kernel, stream, duration| Call::Launch {
        kernel,
        stream,
        duration,
    };
    let on = |thread, handed_over, host_before, call| Operation {
        thread,
        handed_over,
        host_before,
        call,
    };
    let mut step = Step {
        think: 2_000_000 + number * 70_000,
        operations: vec![on(
            0,
            false,
            30_000,
            Call::Copy {
                direction: Direction::HostToDevice,
                bytes: 602_112,
                stream: 0,
                waits: false,
                duration: 26_000 + number * 100,
            },
        )],
    };
    for at in 0..launches {
        let call = launch(at % 4, (at % 2) as u16, 40_000 + u64::from(at) * 1_000 + number * 900);
        step.operations.push(on(0, false, 6_000 + number * 100, call));
    }
    step.operations
        .push(on(0, false, 1_000, Call::Record { event: 0, stream: 1 }));
    step.operations
        .push(on(1, true, 9_000, Call::Wait { event: 0, stream: 0 }));
    step.operations.push(on(1, false, 5_000, launch(2, 0, 11_000)));
    step.operations
        .push(on(0, true, 2_000, Call::Sync(AwaitedWork::Stream(0))));
    step
}

#[test]
fn the_sample_is_sound_and_counts_itself() {
    let trace = sample();
    assert_eq!(trace.unsound(), None);
    assert_eq!(trace.operations(), 9 + 9 + 12);
    assert_eq!(trace.launches(), 5 + 5 + 8);
    assert_eq!(trace.steps[0].launches(), 5);
    assert_eq!(
        trace.steps[0].device_time(),
        26_000 + 40_000 + 41_000 + 42_000 + 43_000 + 11_000
    );
}

#[test]
fn what_does_not_fit_together_is_told() {
    let mut trace = sample();
    trace.kernels.pop();
    assert_eq!(trace.unsound(), Some("a launch of a kernel that is not listed"));
    let mut trace = sample();
    trace.kernels[3].nodes[0].kernel = 3;
    assert_eq!(trace.unsound(), Some("a graph's node is not a kernel"));
    let mut trace = sample();
    trace.steps[0].operations[0].handed_over = true;
    assert_eq!(trace.unsound(), Some("an operation that no other thread handed over"));
}

#[test]
fn a_trace_goes_to_a_file_and_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("resnet.trace");
    sample().save(&path).unwrap();
    assert_eq!(Trace::load(&path).unwrap(), sample().quantised());
    // No other file is left.
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn a_trace_that_could_not_be_read_is_not_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("long.trace");
    let mut trace = sample();
    trace.save(&path).unwrap();
    let before = std::fs::read(&path).unwrap();
    // One step without a repetition.
    let operation = trace.steps[0].operations[1];
    trace.steps = vec![Step {
        think: 0,
        operations: vec![operation; 1_000_000],
    }];
    let error = trace.save(&path).unwrap_err().to_string();
    assert!(
        error.contains("1000000 operations") && error.contains("record fewer steps") && !error.contains('\n'),
        "{error}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), before, "the old file stays");
    // Many steps of few calls are one sequence.
    trace.steps = vec![sample().steps[0].clone(); 100_000];
    trace.save(&path).unwrap();
    assert_eq!(Trace::load(&path).unwrap().operations(), 900_000);
}

#[test]
fn files_that_are_none_are_told_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("text"), "not a trace at all").unwrap();
    let huge = std::fs::File::create(at("huge")).unwrap();
    huge.set_len(MAX_FILE_BYTES + 1).unwrap();
    for (name, expected) in [
        ("text", "not a weft launch trace"),
        ("huge", "too large"),
        ("missing", "cannot read"),
        ("", "cannot read"),
    ] {
        let error = Trace::load(&at(name)).unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{name}: {error}");
    }
    // A directory has the place of the file: the old state stays.
    let error = sample().save(&at("nowhere/x.trace")).unwrap_err().to_string();
    assert!(error.contains("cannot write"), "{error}");
}
