// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file of 500 MB: `cargo test --release -p weft-trace-import --test large -- --ignored`.

mod files;

use std::io::{BufWriter, Write};
use std::time::Instant;

use files::{Folder, foreign, options};

/// Size of the file, bytes.
const FILE_BYTES: u64 = 500 << 20;

/// Largest resident memory of an import, KiB.
const MOST_KIB: u64 = 1 << 20;

/// One operator with its launch, kernel and flow, at a time in us.
fn operator(number: u64, ts: u64) -> String {
    let shapes = r#""Input Dims":[[1024],[64,1024],[1024,1024],[],[]],"Input type":["float","float","float","",""]"#;
    let size = number % 40;
    format!(
        r#"{{"ph":"X","cat":"cpu_op","name":"aten::addmm","pid":7,"tid":7,"ts":{ts},"dur":15.5,"args":{{"External id":{number},{shapes}}}}},
{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":7,"tid":7,"ts":{ts}.25,"dur":4.5,"args":{{"cbid":211,"correlation":{number}}}}},
{{"ph":"X","cat":"kernel","name":"gemm_{size}","pid":0,"tid":7,"ts":{ts}.875,"dur":6.5,"args":{{"device":0,"stream":7,"correlation":{number},"registers per thread":96,"shared memory":49152,"grid":[{size},2,1],"block":[128,1,1]}}}},
{{"ph":"s","id":{number},"pid":7,"tid":7,"ts":{ts},"cat":"ac2g","name":"ac2g"}},
"#
    )
}

#[test]
#[ignore = "writes 500 MB"]
fn a_file_of_500_mb_needs_less_than_1_gib() {
    let folder = Folder::new();
    let path = folder.write("large.json", b"");
    let mut file = BufWriter::new(std::fs::File::create(&path).unwrap());
    file.write_all(b"{\"traceEvents\": [\n").unwrap();
    let (mut bytes, mut number) = (0, 0);
    while bytes < FILE_BYTES {
        let events = operator(number, 1_700_000_000_000_000 + number * 20);
        bytes += events.len() as u64;
        number += 1;
        file.write_all(events.as_bytes()).unwrap();
    }
    file.write_all(b"{\"ph\":\"M\"}]}").unwrap();
    drop(file);
    let begin = Instant::now();
    let (trace, _) = foreign(&path, &options("auto")).unwrap();
    assert_eq!(trace.launches() as u64, number);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    println!(
        "{bytes} bytes, {number} kernels: {:.1} s, {}",
        begin.elapsed().as_secs_f64(),
        peak.trim()
    );
    let peak: u64 = peak.split_whitespace().next().unwrap().parse().unwrap();
    assert!(peak < MOST_KIB, "{peak} KiB");
}
