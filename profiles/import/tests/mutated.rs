// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thousand mutilated files: each is imported or refused in one line, in bounded memory.

mod files;

use files::{Folder, Kineto, foreign, nsight, options};
use rustix::process::{Resource, Rlimit, setrlimit};

/// Address space of the test, bytes: a file of some kilobytes needs none of it.
const MOST_BYTES: u64 = 2 << 30;

/// Files of each kind.
const FILES: u64 = 500;

/// Numbers of Knuth's generator: the same files in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit.max(1)
    }
}

/// Values of wrong types and sizes.
const VALUES: [&str; 12] = [
    "-1",
    "99999999999999999999999",
    "1e308",
    "-1e400",
    "4294967296",
    "\"x\"",
    "[]",
    "{}",
    "[[[[[[[[1]]]]]]]]",
    "null",
    "true",
    "NaN",
];

/// Replaces some numbers of a text.
fn with_values(text: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    let mut out = text.to_vec();
    for _ in 0..1 + numbers.below(4) {
        let from = numbers.below(out.len());
        let Some(begin) = out[from..]
            .iter()
            .position(|byte| byte.is_ascii_digit())
            .map(|at| from + at)
        else {
            continue;
        };
        let length = out[begin..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        out.splice(begin..begin + length, VALUES[numbers.below(VALUES.len())].bytes());
    }
    out
}

fn mutilated(bytes: &[u8], numbers: &mut Numbers, text: bool) -> Vec<u8> {
    let mut out = bytes.to_vec();
    match numbers.below(4) {
        0 => out.truncate(numbers.below(bytes.len())),
        1 if text => out = with_values(bytes, numbers),
        2 => {
            let (from, to) = (numbers.below(bytes.len()), numbers.below(bytes.len()));
            out.drain(from.min(to)..from.max(to));
        }
        _ => {
            for _ in 0..1 + numbers.below(20) {
                let at = numbers.below(out.len());
                out[at] = numbers.below(256) as u8;
            }
        }
    }
    out
}

#[test]
fn a_thousand_mutilated_files_are_imported_or_refused_in_one_line() {
    let limit = Rlimit {
        current: Some(MOST_BYTES),
        maximum: Some(MOST_BYTES),
    };
    setrlimit(Resource::As, limit).unwrap();
    let folder = Folder::new();
    let mut kineto = Kineto::default();
    for step in 0..6 {
        let ts = f64::from(step) * 1_000.0;
        kineto.note(&format!("ProfilerStep#{step}"), ts, 999.0);
        kineto.launch("gemm", 7, ts + 10.0, ts + 20.0, 100.0);
        kineto.launch("nccl", 20, ts + 30.0, ts + 60.0, 100.0);
        let copy = kineto.call("cudaMemcpyAsync", 1, ts + 50.0, 150.0);
        kineto.kernel(copy, "Memcpy DtoH (Device -> Pageable)", 7, ts + 180.0, 10.0);
        kineto.events.last_mut().unwrap()["cat"] = "gpu_memcpy".into();
        kineto.call("cudaStreamSynchronize", 1, ts + 210.0, 10.0);
        // Thread 2's wait begins and ends within one of thread 1.
        let call = kineto.call("cudaLaunchKernel", 2, ts + 215.0, 5.0);
        kineto.kernel(call, "gemm", 9, ts + 230.0, 40.0);
        kineto.call("cudaDeviceSynchronize", 1, ts + 240.0, 200.0);
        kineto.call("cudaStreamSynchronize", 2, ts + 241.0, 60.0);
        let call = kineto.call("cudaLaunchKernel", 2, ts + 310.0, 5.0);
        kineto.kernel(call, "gemm", 9, ts + 320.0, 40.0);
        kineto.call("cudaStreamSynchronize", 2, ts + 321.0, 60.0);
    }
    let path = folder.write("whole.sqlite", b"");
    nsight(&path, 8);
    let database = std::fs::read(&path).unwrap();
    let mut numbers = Numbers(37);
    let (mut imported, mut refused) = (0, 0);
    for number in 0..2 * FILES {
        let text = number % 2 == 0;
        let bytes = match text {
            true => mutilated(&kineto.bytes(), &mut numbers, true),
            false => mutilated(&database, &mut numbers, false),
        };
        let path = folder.write("mutilated", &bytes);
        let cut = ["auto", "whole", "sync", "name:Step", "wait-by:1", "wait-by:2"][numbers.below(6)];
        match foreign(&path, &options(cut)) {
            Ok((trace, report)) => {
                imported += 1;
                assert!(trace.unsound().is_none());
                assert!(!report.text().is_empty());
            }
            Err(error) => {
                refused += 1;
                let line = error.to_string();
                assert_eq!(line.lines().count(), 1, "file {number}: {line}");
            }
        }
    }
    assert!(
        imported > 100 && refused > 100,
        "{imported} imported, {refused} refused"
    );
}
