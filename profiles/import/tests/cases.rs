// SPDX-License-Identifier: MIT OR Apache-2.0
//! One hand-made file for each thing that is hard in a profiler's file.

mod files;

use std::io::Write;

use files::{Folder, Kineto, foreign, nsight, options};
use weft_trace_format::{AwaitedWork, Call, Operation, Step};
use weft_trace_import::{ProgramRole, import};

fn close(ratio: f64) -> bool {
    (ratio - 1.0).abs() < 0.03
}

fn launches(step: &Step) -> Vec<&Operation> {
    let launch = |operation: &&Operation| matches!(operation.call, Call::Launch { .. });
    step.operations.iter().filter(launch).collect()
}

#[test]
fn a_slow_host_keeps_its_gaps_and_its_waits() {
    let mut file = Kineto::default();
    for at in 0..10 {
        let ts = f64::from(at) * 200.0;
        file.launch("gemm", 7, ts, ts + 8.0, 50.0);
    }
    file.call("cudaDeviceSynchronize", 1, 1_820.0, 42.0);
    file.events
        .push(serde_json::json!({"ph": "X", "cat": "from the future", "name": "x", "ts": 1, "dur": 1}));
    let folder = Folder::new();
    let (trace, report) = foreign(&folder.write("a.json", &file.bytes()), &options("auto")).unwrap();
    assert_eq!(trace.steps.len(), 1);
    assert_eq!(trace.launch_cost, 5_000);
    assert_eq!(launches(&trace.steps[0])[4].host_before, 195_000);
    assert_eq!(
        trace.steps[0].operations.last().unwrap().call,
        Call::Sync(AwaitedWork::All)
    );
    assert_eq!(report.role, ProgramRole::Service);
    assert_eq!(report.unused["from the future"], 1);
    assert!(
        close(report.comparison.step_ratio) && close(report.comparison.gap_ratio),
        "{}",
        report.text()
    );
    assert_eq!((trace.kernels[0].id.shared, trace.kernels[0].registers), (1024, 32));
}

#[test]
fn a_call_that_blocked_on_a_full_queue_is_no_host_time() {
    let mut file = Kineto::default();
    // 700 kernels of 1 ms: from the 600th call on, each call waits for a place in the queue.
    for at in 0..700 {
        let (ts, took) = match at {
            0..600 => (f64::from(at) * 6.0, 5.0),
            _ => (3_600.0 + f64::from(at - 600) * 1_000.0, 995.0),
        };
        let call = file.call("cudaLaunchKernel", 1, ts, took);
        file.kernel(call, "gemm", 7, 10.0 + f64::from(at) * 1_000.0, 1_000.0);
    }
    let folder = Folder::new();
    let (trace, report) = foreign(&folder.write("a.json", &file.bytes()), &options("auto")).unwrap();
    assert_eq!(report.blocked, 100);
    assert_eq!(report.blocked_ns, 100 * 990_000);
    let host: u64 = trace.steps[0]
        .operations
        .iter()
        .map(|operation| operation.host_before)
        .sum();
    assert!(host < 2_000_000, "{host}");
    assert!(close(report.comparison.step_ratio), "{}", report.text());
}

#[test]
fn a_graph_has_its_kernels_and_no_stream_of_theirs() {
    let mut file = Kineto::default();
    for step in 0..3 {
        let ts = f64::from(step) * 1_000.0;
        let call = file.call("cudaGraphLaunch", 1, ts, 20.0);
        file.kernel(call, "gemm", 7, ts + 20.0, 100.0);
        file.kernel(call, "softmax", 13, ts + 121.0, 50.0);
        file.kernel(call, "gemm", 7, ts + 300.0, 100.0);
    }
    let folder = Folder::new();
    let (trace, report) = foreign(&folder.write("a.json", &file.bytes()), &options("whole")).unwrap();
    assert_eq!((report.graphs, report.graphs_unknown), (3, 0));
    let Call::Launch {
        kernel,
        stream,
        duration,
    } = launches(&trace.steps[0])[1].call
    else {
        panic!()
    };
    assert_eq!(trace.kernels[kernel as usize].nodes.len(), 3);
    // The long pause before the last node is not the graph's own.
    assert_eq!((stream, duration), (0, 250_000 + 1_000 + 2_000));
}

#[test]
fn work_beside_work_is_counted_once_and_waits_of_streams_are_found() {
    let mut file = Kineto::default();
    file.launch("gemm", 7, 0.0, 10.0, 1_000.0);
    file.launch("nccl", 20, 20.0, 510.0, 1_000.0);
    // It was launched long before, and began when the other stream's work ended.
    file.launch("adam", 7, 40.0, 1_512.0, 100.0);
    let folder = Folder::new();
    let (trace, report) = foreign(&folder.write("a.json", &file.bytes()), &options("auto")).unwrap();
    let durations: Vec<u64> = launches(&trace.steps[0])
        .iter()
        .map(|one| one.call.duration().unwrap())
        .collect();
    assert_eq!(durations, [750_000, 750_000, 100_000]);
    assert_eq!(report.role, ProgramRole::Training);
    assert_eq!(report.dependencies, 1);
    let calls: Vec<Call> = trace.steps[0]
        .operations
        .iter()
        .map(|operation| operation.call)
        .collect();
    assert!(matches!(calls[2], Call::Record { event: 1, stream: 1 }), "{calls:?}");
    assert!(matches!(calls[3], Call::Wait { event: 1, stream: 0 }), "{calls:?}");
    assert!(close(report.comparison.step_ratio), "{}", report.text());
}

#[test]
fn work_that_was_queued_before_the_file_is_left_out_and_played_for_comparison() {
    let mut file = Kineto::default();
    for at in 0..20 {
        file.kernel(900_000 + at, "before", 7, f64::from(at as u32) * 100.0, 100.0);
    }
    for at in 0..20 {
        let ts = 1.0 + f64::from(at) * 6.0;
        file.launch("gemm", 7, ts, 2_000.0 + f64::from(at) * 100.0, 100.0);
    }
    let folder = Folder::new();
    let (trace, report) = foreign(&folder.write("a.json", &file.bytes()), &options("auto")).unwrap();
    assert_eq!(report.queued_before, 20);
    assert!(
        (1_990_000..=2_000_000).contains(&report.queued_before_ns),
        "{}",
        report.queued_before_ns
    );
    assert_eq!(trace.launches(), 20);
    assert!(close(report.comparison.step_ratio), "{}", report.text());
}

#[test]
fn a_thread_that_only_waits_ends_steps_and_each_wait_has_its_own_event() {
    let folder = Folder::new();
    let path = folder.write("a.sqlite", b"");
    nsight(&path, 8);
    let (trace, report) = foreign(&path, &options("auto")).unwrap();
    assert!(report.cut.contains("thread 2"), "{}", report.cut);
    assert_eq!((report.waits_exact, report.waits_inferred), (8, 0));
    assert_eq!((trace.kernels[0].id.shared, trace.kernels[0].registers), (48, 40));
    let events = |call: &Call| matches!(call, Call::Sync(AwaitedWork::Event(_)));
    let calls: Vec<Call> = trace
        .steps
        .iter()
        .flat_map(|step| &step.operations)
        .map(|one| one.call)
        .collect();
    assert_eq!(calls.iter().filter(|call| events(call)).count(), trace.steps.len());
    assert!(close(report.comparison.step_ratio), "{}", report.text());
    // The same without the thread's name, from a packed file of any name.
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&std::fs::read(&path).unwrap()).unwrap();
    let packed = folder.write("b.bin", &packed.finish().unwrap());
    let (again, _) = foreign(&packed, &options("wait-by:2")).unwrap();
    assert_eq!(again.steps, trace.steps);
}

#[test]
fn marks_cut_and_files_of_one_program_follow_each_other() {
    let folder = Folder::new();
    let mut paths = Vec::new();
    for name in ["a.json", "b.json"] {
        let mut file = Kineto::default();
        for step in 0..5 {
            let ts = f64::from(step) * 1_000.0;
            file.note(&format!("ProfilerStep#{step}"), ts, 999.0);
            file.launch(name, 7, ts + 10.0, ts + 20.0, 100.0);
            file.launch("gemm", 7, ts + 30.0, ts + 120.0, 100.0);
        }
        paths.push(folder.write(name, &file.bytes()));
    }
    let (trace, _) = foreign(&paths[0], &options("auto")).unwrap();
    assert_eq!(trace.steps.len(), 5);
    assert_eq!(trace.steps[2].think, trace.steps[3].think);
    let (named, _) = foreign(&paths[0], &options("name:^ProfilerStep#[0-3]$")).unwrap();
    assert_eq!(named.steps.len(), 4);
    let both: Vec<_> = paths.iter().map(|path| path.as_path()).collect();
    let weft_trace_import::Imported::Foreign(trace, report) = import(&both, &options("auto"), &mut |_| ()).unwrap()
    else {
        panic!()
    };
    assert_eq!((trace.steps.len(), trace.kernels.len(), report.sequences), (10, 3, 2));
    assert!(trace.unsound().is_none());
    let mut fast = options("auto");
    fast.host_time = 0.5;
    let (fast, _) = foreign(&paths[0], &fast).unwrap();
    assert_eq!(fast.launch_cost, 2_500);
}

#[test]
fn the_busiest_device_is_taken_and_another_on_demand() {
    let mut file = Kineto::default();
    file.launch("gemm", 7, 0.0, 10.0, 100.0);
    let call = file.call("cudaLaunchKernel", 2, 20.0, 5.0);
    file.kernel(call, "other", 7, 30.0, 900.0);
    file.events.last_mut().unwrap()["args"]["device"] = 3.into();
    let folder = Folder::new();
    let path = folder.write("a.json", &file.bytes());
    let (trace, report) = foreign(&path, &options("auto")).unwrap();
    assert_eq!((report.device, report.other_devices), (3, 1));
    assert_eq!(trace.kernels[0].id.symbol, "other");
    let mut first = options("auto");
    first.device = Some(0);
    assert_eq!(foreign(&path, &first).unwrap().0.kernels[0].id.symbol, "gemm");
}

#[test]
fn a_wrong_file_is_one_line_with_the_file_and_the_remedy() {
    let folder = Folder::new();
    let mut file = Kineto::default();
    file.launch("gemm", 7, 0.0, 10.0, 100.0);
    let good = file.bytes();
    let marks = r#"{"ph":"X","cat":"cuda","ts":1,"dur":1},"#.repeat(7);
    let marks = format!(r#"[{marks}{{"ph":"M"}}]"#);
    let xla = br#"[{"ph":"M","pid":1,"name":"process_name","args":{"name":"/device:GPU:0"}}]"#;
    let mut lost = Kineto::default();
    lost.kernel(5, "gemm", 7, 0.0, 10.0);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&good).unwrap();
    let packed = packed.finish().unwrap();
    let cases: [(&str, &[u8], &str); 12] = [
        ("cut.json", &good[..good.len() - 9], "is truncated"),
        ("cut.json.gz", &packed[..packed.len() - 30], "damaged): copy or export"),
        ("cut.trace", b"weftTRAC\x01", "is truncated"),
        ("other.json", b"{\"a\": 1}", "is not a trace"),
        ("wrong.json", b"{\"traceEvents\": 7}", "column"),
        ("broken.json", b"{\"traceEvents\": [{]}", "column"),
        ("zip.json", b"PK\x03\x04", "neither JSON nor SQLite"),
        ("empty.json", b"", "is empty: copy"),
        ("no.json", b"{\"traceEvents\": []}", "has no device work: record"),
        (
            "marks.json",
            marks.as_bytes(),
            "has no device work (not used: 7 cuda): record",
        ),
        ("xla.json", xla, "of XLA's profiler (JAX, TensorFlow)"),
        ("lost.json", &lost.bytes(), "no launch call"),
    ];
    for (name, bytes, expected) in cases {
        let error = foreign(&folder.write(name, bytes), &options("auto"))
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected) && error.contains(name), "{name}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let path = folder.write("good.json", &good);
    let error = foreign(&path, &options("name:nothing")).unwrap_err().to_string();
    assert!(
        error.contains("good.json has no step by --cut name:nothing: give --cut whole"),
        "{error}"
    );
    let folder_itself = foreign(path.parent().unwrap(), &options("auto"))
        .unwrap_err()
        .to_string();
    assert!(folder_itself.ends_with("name a file in it"), "{folder_itself}");
    let empty = folder.write("empty.sqlite", b"");
    rusqlite::Connection::open(&empty)
        .unwrap()
        .execute_batch("create table t (a)")
        .unwrap();
    let error = foreign(&empty, &options("auto")).unwrap_err().to_string();
    assert!(error.contains("nsys profile --trace cuda"), "{error}");
    // As nvprof exports it.
    rusqlite::Connection::open(&empty)
        .unwrap()
        .execute_batch(
            "create table CUPTI_ACTIVITY_KIND_KERNEL (start, end, name); create table StringTable (_id_, value)",
        )
        .unwrap();
    let error = foreign(&empty, &options("auto")).unwrap_err().to_string();
    assert!(error.contains("has no table StringIds"), "{error}");
}

#[test]
fn bytes_behind_a_packed_file_are_left_out() {
    let mut file = Kineto::default();
    file.launch("gemm", 7, 0.0, 8.0, 50.0);
    let bytes = file.bytes();
    let packed = |bytes: &[u8]| {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    };
    let (begin, end) = bytes.split_at(bytes.len() / 2);
    let folder = Folder::new();
    for rest in [&[0; 512][..], b"a broken copy's rest"] {
        let whole = [packed(begin), packed(end), rest.to_vec()].concat();
        let (trace, _) = foreign(&folder.write("a.json.gz", &whole), &options("auto")).unwrap();
        assert_eq!(trace.launches(), 1);
    }
}

#[test]
fn files_that_were_merged_are_told_apart_by_their_processes() {
    // Two ranks with the same numbers: the second has a device of its own, or only another lane.
    for (device, lane) in [(1, 1), (0, 200_000)] {
        let mut file = Kineto::default();
        for (rank, steps, name) in [(0, 4, "small"), (1, 6, "large")] {
            let mut own = Kineto::default();
            for step in 0..steps {
                let ts = f64::from(rank) * 700.0 + f64::from(step) * 2_000.0;
                own.note(&format!("ProfilerStep#{step}"), ts, 1_900.0);
                own.launch(name, 7, ts + 10.0, ts + 20.0, 500.0);
                own.launch(name, 7, ts + 30.0, ts + 521.0, 500.0);
                own.call("cudaDeviceSynchronize", 1, ts + 40.0, 985.0);
            }
            for event in &mut own.events {
                if event["cat"] == "kernel" && rank == 1 {
                    event["pid"] = lane.into();
                    event["args"]["device"] = device.into();
                } else if event["cat"] != "kernel" {
                    event["pid"] = (100 + rank).into();
                }
            }
            file.events.append(&mut own.events);
        }
        let folder = Folder::new();
        let (trace, report) = foreign(&folder.write("a.json", &file.bytes()), &options("auto")).unwrap();
        assert_eq!((trace.steps.len(), report.other_devices), (6, 1), "{}", report.text());
        assert_eq!(trace.kernels[0].id.symbol, "large");
        assert_eq!((trace.launches(), report.work_without_call), (12, 0));
        assert!(close(report.comparison.step_ratio), "{}", report.text());
    }
}

#[test]
fn exports_of_old_versions_have_their_gpu_and_their_calls() {
    let folder = Folder::new();
    let path = folder.write("a.sqlite", b"");
    nsight(&path, 8);
    let (trace, _) = foreign(&path, &options("auto")).unwrap();
    let old = "
        drop table TARGET_INFO_GPU;
        create table TARGET_INFO_CUDA_GPU (deviceId, name, globalMemorySize);
        insert into TARGET_INFO_CUDA_GPU values (0, 'NVIDIA Test', 80000000000);
        update CUPTI_ACTIVITY_KIND_RUNTIME set globalTid = globalTid + 281474976710656 + 16777216 * 77;
    ";
    rusqlite::Connection::open(&path).unwrap().execute_batch(old).unwrap();
    let (old, report) = foreign(&path, &options("auto")).unwrap();
    assert_eq!((old.gpu, &old.steps), (trace.gpu, &trace.steps), "{}", report.text());
}

#[test]
fn waits_of_two_threads_that_overlap_make_steps_in_order() {
    let mut file = Kineto::default();
    for (thread, ts, wait, end) in [(1, 0.0, 1_000.0, 10_000.0), (2, 2_000.0, 3_000.0, 9_000.0)] {
        let call = file.call("cudaLaunchKernel", thread, ts, 5.0);
        file.kernel(call, "gemm", 7 + thread, ts + 10.0, end - ts - 11.0);
        file.call("cudaStreamSynchronize", thread, wait, end - wait);
    }
    let call = file.call("cudaLaunchKernel", 2, 9_500.0, 5.0);
    file.kernel(call, "gemm", 9, 10_000.0, 1_990.0);
    file.call("cudaStreamSynchronize", 2, 9_600.0, 2_400.0);
    let folder = Folder::new();
    let path = folder.write("a.json", &file.bytes());
    for cut in ["sync", "wait-by:2", "auto", "whole"] {
        let (trace, _) = foreign(&path, &options(cut)).unwrap();
        assert!(trace.launches() <= 3, "{cut}: {} launches of 3", trace.launches());
    }
}

#[test]
fn files_with_other_launch_costs_keep_their_host_times() {
    let folder = Folder::new();
    let part = |name: &str, cost: f64| {
        let mut file = Kineto::default();
        for at in 0..10 {
            let ts = f64::from(at) * 200.0;
            let call = file.call("cudaLaunchKernel", 1, ts, cost);
            file.kernel(call, "gemm", 7, ts + 8.0, 50.0);
        }
        file.call("cudaDeviceSynchronize", 1, 1_850.0, 10.0);
        folder.write(name, &file.bytes())
    };
    let (fast, slow) = (part("fast.json", 5.0), part("slow.json", 10.0));
    for files in [[&fast, &slow], [&slow, &fast]] {
        let files = files.map(|path| path.as_path());
        let Ok(weft_trace_import::Imported::Foreign(trace, report)) = import(&files, &options("whole"), &mut |_| ())
        else {
            panic!()
        };
        let host = 200_000 - trace.launch_cost;
        assert_eq!(trace.steps.len(), 2);
        for step in &trace.steps {
            assert_eq!(launches(step)[4].host_before, host);
        }
        assert!(report.others.is_empty());
    }
    let mut training = Kineto::default();
    training.launch("fused_adam", 7, 0.0, 8.0, 50.0);
    let training = folder.write("training.json", &training.bytes());
    let Ok(weft_trace_import::Imported::Foreign(_, report)) =
        import(&[&fast, &training], &options("whole"), &mut |_| ())
    else {
        panic!()
    };
    assert!(
        report
            .text()
            .contains("training.json: device 0 (NVIDIA Test), a training"),
        "{}",
        report.text()
    );
}

#[test]
fn an_odd_event_is_counted_and_the_file_is_read() {
    let mut file = Kineto::default();
    for at in 0..3 {
        let ts = f64::from(at) * 200.0;
        file.launch("gemm", 7, ts, ts + 8.0, 50.0);
    }
    let good = String::from_utf8(file.bytes()).unwrap();
    let odd = |fields: &str| format!(r#"{{"ph":"X","cat":"kernel","ts":1,"dur":1,{fields}}}"#);
    let odd = [
        odd(r#""name":"a","args":null"#),
        odd(r#""name":5"#),
        odd(r#""name":"a","name":"b""#),
        odd(r#""name":"a","args":{"grid":null}"#),
        odd(r#""name":"a","args":{"bytes":1e400}"#),
        r#"{"ph":"X","cat":"kernel","name":"a","ts":nan,"dur":1}"#.to_owned(),
        r#"{"ph":"X","cat":"kernel","name":"a","ts":-nan,"dur":1}"#.to_owned(),
        r#"{"ph":"X","cat":"kernel","name":"a","ts":1,"dur":"long"}"#.to_owned(),
        // Two days.
        r#"{"ph":"X","cat":"kernel","name":"a","ts":1,"dur":172800000000}"#.to_owned(),
        "7".to_owned(),
    ];
    let text = good.replacen("\"traceEvents\":[", &format!("\"traceEvents\":[{},", odd.join(",")), 1);
    let folder = Folder::new();
    let (trace, report) = foreign(&folder.write("a.json", text.as_bytes()), &options("auto")).unwrap();
    assert_eq!(
        (trace.launches(), report.malformed),
        (3, odd.len() as u64),
        "{}",
        report.text()
    );
}

#[test]
fn work_without_a_number_is_of_no_call() {
    let mut file = Kineto::default();
    file.launch("gemm", 7, 0.0, 8.0, 50.0);
    file.launch("lost", 7, 100.0, 108.0, 50.0);
    file.launch("lost", 7, 200.0, 208.0, 50.0);
    for event in &mut file.events[2..] {
        event["args"].as_object_mut().unwrap().remove("correlation");
    }
    file.events[2]["tid"] = "a\nb".into();
    file.events[3]["args"]["device"] = (1u64 << 32).into();
    let folder = Folder::new();
    let path = folder.write("a.json", &file.bytes());
    let (trace, report) = foreign(&path, &options("auto")).unwrap();
    assert_eq!((trace.launches(), report.work_without_call, report.device), (1, 1, 0));
    let error = foreign(&path, &options("name:nothing")).unwrap_err().to_string();
    assert!(error.contains("a b") && error.lines().count() == 1, "{error}");
    let mut other = options("auto");
    other.device = Some(5);
    let error = foreign(&path, &other).unwrap_err().to_string();
    assert!(error.contains("--device 0 or 4294967295"), "{error}");
}

#[test]
fn nothing_is_written_beside_a_database_or_left_in_the_temporary_folder() {
    let folder = Folder::new();
    let path = folder.write("a b?#%41.sqlite", b"");
    nsight(&path, 8);
    let database = rusqlite::Connection::open(&path).unwrap();
    let _: String = database
        .query_row("pragma journal_mode = wal", [], |row| row.get(0))
        .unwrap();
    drop(database);
    let (trace, _) = foreign(&path, &options("auto")).unwrap();
    let files = std::fs::read_dir(path.parent().unwrap()).unwrap().count();
    assert_eq!(files, 1);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&std::fs::read(&path).unwrap()).unwrap();
    let packed = folder.write("b.gz", &packed.finish().unwrap());
    let mut watched = 0;
    let mut watch = |_| {
        watched += 1;
        // A temporary file without a name goes away with the process.
        for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
            let Ok(target) = std::fs::read_link(entry.path()) else {
                continue;
            };
            let named = target.parent() == Some(&std::env::temp_dir()) && target.is_file();
            assert!(!named, "{} stays if the process is killed", target.display());
        }
    };
    let Ok(weft_trace_import::Imported::Foreign(again, _)) = import(&[&packed], &options("auto"), &mut watch) else {
        panic!()
    };
    assert_eq!((again.steps, watched > 0), (trace.steps, true));
    let view = folder.write("view.sqlite", b"");
    let text = "create view CUPTI_ACTIVITY_KIND_KERNEL as select 1 as start";
    rusqlite::Connection::open(&view).unwrap().execute_batch(text).unwrap();
    let error = foreign(&view, &options("auto")).unwrap_err().to_string();
    assert!(error.contains("has no table"), "{error}");
}

/// Imports what comes through a pipe.
fn through_pipe(bytes: Vec<u8>) -> Result<(weft_trace_format::Trace, weft_trace_import::ImportReport), String> {
    let (source, mut target) = std::io::pipe().unwrap();
    let writer = std::thread::spawn(move || target.write_all(&bytes));
    let path = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&source));
    let result = foreign(path.as_ref(), &options("auto")).map_err(|error| error.to_string());
    drop(source);
    let _ = writer.join();
    result
}

#[test]
fn a_pipe_is_read_like_a_file() {
    let mut file = Kineto::default();
    file.launch("gemm", 7, 0.0, 8.0, 50.0);
    let (trace, _) = through_pipe(file.bytes()).unwrap();
    assert_eq!(trace.launches(), 1);
    let folder = Folder::new();
    let path = folder.write("a.sqlite", b"");
    nsight(&path, 8);
    assert!(through_pipe(std::fs::read(&path).unwrap()).is_ok());
    let ours = serde_json::to_vec(&trace).unwrap();
    let error = through_pipe(ours).unwrap_err();
    assert!(error.contains("pipe") && error.lines().count() == 1, "{error}");
}

#[test]
fn copies_are_device_work_and_all_figures_are_of_one_time() {
    let mut file = Kineto::default();
    let copy = file.call("cudaMemcpyAsync", 1, 0.0, 5.0);
    file.kernel(copy, "Memcpy HtoD (Pinned -> Device)", 7, 10.0, 300.0);
    file.events.last_mut().unwrap()["cat"] = "gpu_memcpy".into();
    file.launch("gemm", 7, 500.0, 508.0, 100.0);
    file.call("cudaDeviceSynchronize", 1, 510.0, 490.0);
    let folder = Folder::new();
    let (_, report) = foreign(&folder.write("a.json", &file.bytes()), &options("whole")).unwrap();
    let near = &report.comparison;
    assert_eq!(near.file_ns, 1_000_000);
    assert!((near.file_busy - 0.4).abs() < 0.001, "{near:?}");
    assert_eq!(near.file_gaps_ns, 600_000);
    assert!(report.text().contains("file 1.000 ms"), "{}", report.text());
}

#[test]
fn a_file_without_a_kernel_that_takes_time_is_refused() {
    let folder = Folder::new();
    let refused = |file: &Kineto, cut: &str| {
        let error = foreign(&folder.write("a.json", &file.bytes()), &options(cut)).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("a.json has no kernel") && error.lines().count() == 1,
            "{error}"
        );
        error
    };
    for wrong in [
        serde_json::json!(-5),
        0.into(),
        "NaN".into(),
        "long".into(),
        1e30.into(),
        serde_json::Value::Null,
    ] {
        // With and without a copy.
        for copies in [false, true] {
            let mut file = Kineto::default();
            for at in 0..3 {
                let ts = f64::from(at) * 100.0;
                file.launch("gemm", 7, ts, ts + 10.0, 50.0);
                file.events.last_mut().unwrap()["dur"] = wrong.clone();
                if copies {
                    let copy = file.call("cudaMemcpyAsync", 1, ts + 70.0, 5.0);
                    file.kernel(copy, "Memcpy HtoD", 7, ts + 80.0, 10.0);
                    file.events.last_mut().unwrap()["cat"] = "gpu_memcpy".into();
                }
            }
            let error = refused(&file, "whole");
            assert!(
                error.contains("3 have none or a wrong one, as gemm with ts 10 and dur"),
                "{error}"
            );
            assert!(error.ends_with("export it again"), "{error}");
        }
    }
    let mut file = Kineto::default();
    file.note("copying", 0.0, 50.0);
    let copy = file.call("cudaMemcpyAsync", 1, 0.0, 5.0);
    file.kernel(copy, "Memcpy HtoD", 7, 10.0, 10.0);
    file.events.last_mut().unwrap()["cat"] = "gpu_memcpy".into();
    assert!(refused(&file, "whole").contains("only copies"));
    file.launch("gemm", 7, 100.0, 108.0, 50.0);
    assert!(refused(&file, "name:copying").ends_with("give another --cut"));
    let path = folder.write("a.sqlite", b"");
    nsight(&path, 8);
    let wrong = "update CUPTI_ACTIVITY_KIND_KERNEL set end = start - 1";
    rusqlite::Connection::open(&path).unwrap().execute_batch(wrong).unwrap();
    let error = foreign(&path, &options("auto")).unwrap_err().to_string();
    assert!(
        error.contains("8 have none or a wrong one, as gemm with start 450000"),
        "{error}"
    );
}

#[test]
fn the_parts_of_a_report_are_of_one_whole() {
    let mut file = Kineto::default();
    for step in 0..5 {
        let ts = f64::from(step) * 1_000.0;
        if step < 4 {
            file.note(&format!("ProfilerStep#{step}"), ts, 999.0);
        }
        file.launch("gemm", 7, ts + 10.0, ts + 20.0, 100.0);
        file.call("cudaDeviceSynchronize", 1, ts + 30.0, 95.0);
    }
    let folder = Folder::new();
    let path = folder.write("a.json", &file.bytes());
    let (_, report) = foreign(&path, &options("auto")).unwrap();
    assert_eq!((report.waits, report.waits_exact, report.waits_inferred), (4, 5, 0));
    let text = report.text();
    assert!(
        text.contains("waits     5: target in the file 5, inferred 0, added 0; in the trace 4"),
        "{text}"
    );
    assert!(
        text.contains("steps     4 of a service, all with the same calls: each"),
        "{text}"
    );
    let (_, report) = foreign(&path, &options("whole")).unwrap();
    assert!(
        report.text().contains("steps     1 of a service: the whole"),
        "{}",
        report.text()
    );
}
