// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files of profilers, made by hand.
#![allow(dead_code, reason = "each test program uses a part")]

use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};
use serde_json::{Value, json};
use weft_trace_import::{Cut, ImportError, ImportOptions, ImportReport, Imported, import};

/// A folder for files.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

pub fn options(cut: &str) -> ImportOptions {
    ImportOptions {
        name: "t".to_owned(),
        cut: cut.parse::<Cut>().unwrap(),
        role: None,
        device: None,
        host_time: 1.0,
    }
}

pub fn foreign(path: &Path, options: &ImportOptions) -> Result<(weft_trace_format::Trace, ImportReport), ImportError> {
    match import(&[path], options, &mut |_| ())? {
        Imported::Foreign(trace, report) => Ok((*trace, *report)),
        Imported::Ours(_) => panic!("a profiler's file"),
    }
}

/// Events of PyTorch's profiler; times in us.
#[derive(Default)]
pub struct Kineto {
    pub events: Vec<Value>,
    calls: u64,
}

impl Kineto {
    /// A call on a thread; returns its number.
    pub fn call(&mut self, name: &str, thread: u32, ts: f64, dur: f64) -> u64 {
        self.calls += 1;
        self.events.push(json!({
            "ph": "X", "cat": "cuda_runtime", "name": name, "pid": 9, "tid": thread, "ts": ts, "dur": dur,
            "args": {"correlation": self.calls}
        }));
        self.calls
    }

    /// A kernel on a stream of device 0, of this call.
    pub fn kernel(&mut self, call: u64, name: &str, stream: u32, ts: f64, dur: f64) {
        self.events.push(json!({
            "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur,
            "args": {"correlation": call, "stream": stream, "device": 0, "grid": [8, 1, 1], "block": [256, 1, 1],
                     "shared memory": 1024, "registers per thread": 32}
        }));
    }

    /// A launch of 5 us at `ts`, and its kernel.
    pub fn launch(&mut self, name: &str, stream: u32, ts: f64, start: f64, dur: f64) {
        let call = self.call("cudaLaunchKernel", 1, ts, 5.0);
        self.kernel(call, name, stream, start, dur);
    }

    pub fn note(&mut self, name: &str, ts: f64, dur: f64) {
        self.events.push(json!({
            "ph": "X", "cat": "user_annotation", "name": name, "pid": 9, "tid": 1, "ts": ts, "dur": dur
        }));
    }

    pub fn bytes(&self) -> Vec<u8> {
        let gpu = json!([{"id": 0, "name": "NVIDIA Test", "totalGlobalMem": 1u64 << 34}]);
        serde_json::to_vec(&json!({"deviceProperties": gpu, "traceEvents": self.events})).unwrap()
    }
}

/// An export of Nsight Systems: a server whose thread 2 waits for the work of thread 1.
pub fn nsight(path: &Path, steps: i64) {
    let database = Connection::open(path).unwrap();
    let tables = "
        create table StringIds (id integer, value text);
        create table TARGET_INFO_GPU (id, name, totalMemory);
        create table CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId);
        create table CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, gridX, gridY, gridZ,
            blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory, registersPerThread, demangledName);
        create table CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, streamId, correlationId, copyKind, bytes);
        create table CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start, end, deviceId, streamId, correlationId, syncType,
            eventId, eventSyncId);
        create table CUPTI_ACTIVITY_KIND_CUDA_EVENT (deviceId, streamId, correlationId, eventId, eventSyncId);
        insert into StringIds values (1, 'cudaLaunchKernel_v7000'), (2, 'cudaEventRecord_v3020'),
            (3, 'cudaEventSynchronize_v3020'), (4, 'cudaMalloc'), (5, 'gemm');
        insert into TARGET_INFO_GPU values (0, 'NVIDIA Test', 80000000000);
    ";
    database.execute_batch(tables).unwrap();
    let call = |start: i64, end: i64, thread: i64, number: i64, name: i64| {
        let text = "insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?, ?, ?, ?, ?)";
        database
            .execute(text, params![start, end, thread, number, name])
            .unwrap();
    };
    for step in 0..steps {
        // The kernel of a step runs while the next step's is launched; the wait is for its own.
        let (at, number) = (step * 1_000_000, step * 10);
        call(at, at + 5_000, 1, number, 1);
        call(at + 6_000, at + 8_000, 1, number + 1, 2);
        call(at + 20_000, at + 1_405_000, 2, number + 2, 3);
        let kernel = "insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, 0, 7, ?, 9, 1, 1, 64, 1, 1, 16, 32, 40, 5)";
        let start = at + 450_000;
        database
            .execute(kernel, params![start, start + 950_000, number])
            .unwrap();
        let event = "insert into CUPTI_ACTIVITY_KIND_CUDA_EVENT values (0, 7, ?, 1, ?)";
        database.execute(event, params![number + 1, step]).unwrap();
        let wait = "insert into CUPTI_ACTIVITY_KIND_SYNCHRONIZATION values (?, ?, 0, null, ?, 1, 1, ?)";
        database
            .execute(wait, params![at + 20_000, at + 1_405_000, number + 2, step])
            .unwrap();
    }
}
