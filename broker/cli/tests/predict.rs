// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of `weft predict`: its figures on generated traces, its JSON, its mistakes, and the
//! examples of its page.

mod common;

use std::path::Path;

use common::{text, weft};
use serde_json::Value;
use weft_kernel_id::KernelId;
use weft_trace_format::{AwaitedWork, Call, Operation, Source, Step, Trace, TracedKernel};

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;

/// A trace of equal steps: launches of one kernel, then a wait if it is a service.
fn trace(folder: &Path, name: &str, launches: usize, duration: u64, think: Option<u64>) -> String {
    let call = |call| Operation {
        thread: 0,
        handed_over: false,
        host_before: US,
        call,
    };
    let launch = Call::Launch {
        kernel: 0,
        stream: 0,
        duration,
    };
    let mut operations = vec![call(launch); launches];
    if think.is_some() {
        operations.push(call(Call::Sync(AwaitedWork::All)));
    }
    let trace = Trace {
        name: name.to_string(),
        launch_cost: 5 * US,
        kernels: vec![TracedKernel::of(KernelId::new(1, name, [400, 1, 1], [256, 1, 1], 0))],
        steps: vec![Step {
            think: think.unwrap_or(0),
            operations,
        }],
        ..Trace::default()
    };
    let file = folder.join(format!("{name}.trace"));
    trace.save(&file).expect("written");
    file.to_str().expect("text").to_string()
}

fn predicted(arguments: &[&str]) -> Value {
    let output = weft()
        .args(["predict", "--json"])
        .args(arguments)
        .output()
        .expect("ran");
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Point, low and high of a range, in this order of size.
fn range(of: &Value) -> (f64, f64, f64) {
    let figure = |name: &str| of[name].as_f64().unwrap_or_else(|| panic!("no {name} in {of}"));
    let (point, low, high) = (figure("point"), figure("low"), figure("high"));
    assert!(low <= point && point <= high, "{of}");
    (point, low, high)
}

fn near(value: f64, wanted: f64, part: f64) {
    assert!((value / wanted - 1.0).abs() <= part, "{value} is not {wanted}");
}

#[test]
fn weft_costs_a_service_with_gaps_less_than_plain_sharing() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = trace(folder.path(), "service", 4, 500 * US, Some(5 * MS));
    let batch = trace(folder.path(), "batch", 4, MS, None);
    let answer = predicted(&[&service, &batch, &batch]);
    let ways = answer["ways"].as_array().expect("ways");
    let mean = |name: &str| {
        let way = ways.iter().find(|way| way["way"] == name).expect(name);
        range(&way["latency"]["mean"]).0
    };
    assert_eq!(ways.len(), 7);
    assert!(mean("weft") <= mean("time slices"), "{answer}");
    assert!(mean("MPS, weft") <= mean("MPS"), "{answer}");
    assert!(mean("MPS, priorities") <= mean("MPS"), "{answer}");
    // Both batch jobs fill the device, so the service gets its slices in turn with them.
    assert!(mean("time slices") > 1.5, "{answer}");
    assert!(mean("weft") < 1.1 && mean("MPS, weft") < 1.1, "{answer}");
    for way in ways {
        for figure in ["mean", "p50", "p99"] {
            assert!(range(&way["latency"][figure]).1 > 0.9, "{way}");
        }
        let parts: Vec<f64> = way["batch"]
            .as_array()
            .expect("two")
            .iter()
            .map(|of| range(of).0)
            .collect();
        assert_eq!(parts.len(), 2);
        let sum: f64 = parts.iter().sum();
        assert!((0.0..1.3).contains(&sum), "{way}");
        assert!(way["requests"].as_u64() > Some(10), "{way}");
    }
    let speed = |name: &str| {
        let way = ways.iter().find(|way| way["way"] == name).expect(name);
        range(&way["batch"][0]).0
    };
    assert!(speed("weft") > 0.1, "{answer}");
    // One kernel is learnt at once, as on the simulated GPU (`scripts/bench readme`).
    for (without, with) in [
        ("weft, batch unprofiled", "weft"),
        ("MPS, weft, batch unprofiled", "MPS, weft"),
    ] {
        assert!(speed(without) > 0.7 * speed(with), "{answer}");
    }
    assert_eq!(
        answer,
        predicted(&[&service, &batch, &batch]),
        "equal input, equal answer"
    );
}

#[test]
fn a_service_that_starves_has_no_figure() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = trace(folder.path(), "service", 4, 50 * US, Some(0));
    let batch = trace(folder.path(), "batch", 4, 1_000 * MS, None);
    let answer = predicted(&[&service, &batch]);
    let ways = answer["ways"].as_array().expect("ways");
    let mps = ways.iter().find(|way| way["way"] == "MPS").expect("MPS");
    assert_eq!(
        (&mps["latency"], &mps["requests"]),
        (&Value::Null, &Value::from(0)),
        "{mps}"
    );
    let output = weft().args(["predict", &service, &batch]).output().expect("ran");
    let page = text(&output.stdout);
    assert!(
        page.contains("\n-: in a setting the service answered no request"),
        "{page}"
    );
}

#[test]
fn a_service_without_others_has_its_gaps() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = trace(folder.path(), "service", 4, 500 * US, Some(5 * MS));
    let answer = predicted(&[&service]);
    assert_eq!(answer["ways"], Value::Array(Vec::new()));
    // Its kernel times are estimates: right within a factor of two or so.
    let (point, low, high) = range(&answer["solo_ns"]["mean"]);
    near(point, 2e6, 0.02);
    near(low, 1e6, 0.05);
    near(high, 4e6, 0.05);
    let gaps = &answer["gaps"];
    near(range(&gaps["busy"]).0, 2.0 / 7.0, 0.03);
    near(range(&gaps["room_ns"]).0, 5e6, 0.03);
    near(range(&gaps["longest_ns"]).0, 5e6, 0.25);
    // A host twice as fast thinks half as long.
    near(range(&gaps["room_ns"]).1, 2.5e6, 0.05);
    near(range(&gaps["beyond_1ms"]).0, 1.0, 0.01);
    let slower = predicted(&["--think", "10", &service]);
    near(range(&slower["gaps"]["room_ns"]).0, 10e6, 0.03);
    // Four seconds between requests, far more than the request takes.
    let rare = predicted(&["--rate", "0.25", &service]);
    near(range(&rare["solo_ns"]["mean"]).0, 2e6, 0.02);
    let random = predicted(&["--rate", "50", &service]);
    near(range(&random["gaps"]["busy"]).0, 0.1, 0.2);
}

/// Elements that a page opens as often as it closes them.
const ELEMENTS: [&str; 11] = ["table", "tr", "th", "td", "div", "span", "p", "ul", "li", "b", "i"];

#[test]
fn times_that_were_measured_on_the_services_gpu_are_not_changed() {
    let folder = tempfile::tempdir().expect("a folder");
    let on = |name: &str, gpu: &str| {
        let file = trace(folder.path(), name, 4, 500 * US, Some(5 * MS));
        let mut measured = Trace::load(Path::new(&file)).expect("a trace");
        measured.source = Source::Measured;
        measured.gpu.name = gpu.into();
        measured.save(Path::new(&file)).expect("written");
        file
    };
    let (service, same, other) = (on("service", "A"), on("same", "A"), on("other", "B"));
    let spread = |batch: &str| {
        let answer = predicted(&[&service, batch]);
        let (_, low, high) = range(&answer["solo_ns"]["mean"]);
        assert!(high / low < 1.1, "{answer}");
        let told = answer["unknown"]
            .to_string()
            .contains("of another GPU than the service's");
        let mps = answer["ways"]
            .as_array()
            .expect("ways")
            .iter()
            .find(|way| way["way"] == "MPS");
        let (_, low, high) = range(&mps.expect("MPS")["latency"]["p99"]);
        (told, high - low)
    };
    let (same, other) = (spread(&same), spread(&other));
    assert_eq!((same.0, other.0), (false, true));
    assert!(other.1 > same.1, "{same:?} {other:?}");
}

#[test]
fn the_page_for_a_browser_has_the_figures_and_needs_no_other_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = trace(folder.path(), "ser<script>vice", 4, 500 * US, Some(5 * MS));
    let batch = trace(folder.path(), "batch", 4, MS, None);
    let file = folder.path().join("page.html");
    let html = file.to_str().expect("text");
    let answer = predicted(&["--html", html, &service, &batch]);
    let page = std::fs::read_to_string(&file).expect("written");
    let alone = || page.split("<h2>").find(|part| part.starts_with("The service alone"));
    for way in answer["ways"].as_array().expect("ways") {
        let (_, row) = page
            .split_once(&format!("<tr><td>{}</td>", way["way"].as_str().expect("a name")))
            .expect("a row");
        let (row, _) = row.split_once("</tr>").expect("an end");
        let latency = &way["latency"];
        for of in [&latency["mean"], &latency["p50"], &latency["p99"], &way["batch"][0]] {
            let (point, low, high) = range(of);
            let figures = format!("<b>{point:.2}</b> <i>{low:.2} to {high:.2}</i>");
            assert!(row.contains(&figures), "{figures} is not in {row}");
        }
        assert_eq!(row.matches("class=\"at c0\"").count(), 3, "{row}");
    }
    for line in answer["unknown"].as_array().expect("a list") {
        let line = line
            .as_str()
            .expect("text")
            .replace('<', "&lt;")
            .replace('>', "&gt;")
            .replace('\'', "&#39;");
        assert!(page.contains(&format!("<li>{line}</li>")), "{line} is not in\n{page}");
    }
    assert!(
        alone().is_some_and(|part| part.contains("up to 10 ms: ") && part.contains("<th>fits</th>")),
        "{page}"
    );
    for bad in ["<script", "http:", "https:", "url(", "@import", "<link", "<img", "NaN"] {
        assert!(!page.contains(bad), "{bad} is in\n{page}");
    }
    for element in ELEMENTS {
        let begins = page.matches(&format!("<{element} ")).count() + page.matches(&format!("<{element}>")).count();
        assert_eq!(begins, page.matches(&format!("</{element}>")).count(), "{element}");
    }
    // Without batch jobs: the gaps only.
    predicted(&["--html", html, &service]);
    let page = std::fs::read_to_string(&file).expect("written");
    assert!(
        page.contains("The service alone") && !page.contains("by way to share"),
        "{page}"
    );
}

#[test]
fn mistakes_are_one_line_each() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = trace(folder.path(), "service", 4, 500 * US, Some(5 * MS));
    let training = trace(folder.path(), "training", 4, MS, None);
    let uncut = trace(folder.path(), "uncut", 400_000, US, Some(0));
    let empty = trace(folder.path(), "empty", 0, MS, Some(0));
    let bad = folder.path().join("bad.json");
    std::fs::write(&bad, "{\"traceEvents\": [").expect("written");
    let bad = bad.to_str().expect("text");
    for (arguments, code, wanted) in [
        (&["/nonexistent.json"][..], 1, "cannot read /nonexistent.json"),
        (&[bad], 1, "is truncated"),
        (&[&service, bad], 1, "is truncated"),
        (&[&training], 1, "never waits for the GPU"),
        (&[&empty], 1, "has no work"),
        (&[&service, &empty], 1, "has no work"),
        (&[&uncut, &uncut], 1, "too many calls within a request"),
        (
            &["--html", "/nonexistent/page.html", &service],
            1,
            "cannot write /nonexistent/page.html",
        ),
        (&["--html", &training, &service], 1, "is no page for a browser"),
        (&["--rate", "1000", &service], 1, "cannot answer 1000 a second"),
        (&["--rate", "0", &service], 2, "give a number"),
        (&["--rate", "5", "--think", "3", &service], 2, "cannot be used with"),
        (&[], 2, "SERVICE"),
    ] {
        let output = weft().arg("predict").args(arguments).output().expect("ran");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(
            said.starts_with("weft: ") && said.contains(wanted),
            "{arguments:?}: {said}"
        );
        assert_eq!((said.lines().count(), output.stdout.len()), (1, 0), "{said}");
    }
}

fn page(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    std::fs::read_to_string(file).expect("the page")
}

#[test]
fn the_answer_has_every_documented_field() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = trace(folder.path(), "service", 4, 500 * US, Some(5 * MS));
    let batch = trace(folder.path(), "batch", 4, MS, None);
    let answer = predicted(&[&service, &batch]);
    assert_eq!(answer["schema"], 1);
    let json = page("json.md");
    let (_, section) = json.split_once("## `weft predict --json`").expect("the section");
    for (object, table) in [
        (&answer, "| field of the prediction |"),
        (&answer["batch"][0], "| field of `service` and of `batch` |"),
        (&answer["gaps"], "| field of `gaps` |"),
        (&answer["ways"][0], "| field of `ways` |"),
    ] {
        let (_, rows) = section.split_once(table).expect(table);
        let rows = rows.lines().skip(2).take_while(|line| line.starts_with('|'));
        let fields: Vec<&str> = rows
            .flat_map(|row| row.split('|').nth(1).expect("a column").split('`').skip(1).step_by(2))
            .collect();
        let mut known: Vec<&str> = object
            .as_object()
            .expect("an object")
            .keys()
            .map(String::as_str)
            .collect();
        known.sort_unstable();
        let mut listed = fields.clone();
        listed.sort_unstable();
        assert_eq!(listed, known, "{table}");
    }
}

/// The words of a page. Figures change with the scheduler, and folds with figures.
fn shape(page: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in page.split_whitespace() {
        let figure = word
            .trim_start_matches('(')
            .starts_with(|first: char| first.is_ascii_digit());
        words.push(if figure { "N".to_string() } else { word.to_string() });
    }
    words.join(" ")
}

#[test]
fn the_examples_of_the_page_are_as_they_print() {
    let page = page("predict.md");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut played = 0;
    for example in page.split("```console\n").skip(1) {
        let (block, _) = example.split_once("```").expect("an end");
        let (command, shown) = block.split_once('\n').expect("an answer");
        let Some(arguments) = command.strip_prefix("$ weft predict ") else {
            continue;
        };
        // The files of the others are the reader's.
        if !arguments.contains("profiles/recorded/") {
            continue;
        }
        let output = weft()
            .current_dir(&root)
            .arg("predict")
            .args(arguments.split(' '))
            .output();
        let printed = text(&output.expect("ran").stdout);
        assert_eq!(shape(shown), shape(&printed), "{command}:\n{printed}");
        played += 1;
    }
    assert_eq!(played, 2);
}

/// A file of torch.profiler with equal requests on a GPU.
fn profiled(folder: &Path, name: &str, kernel: &str, gpu: &str, length_us: u64) -> String {
    let mut events = Vec::new();
    for at in 0..6 {
        let begin = at * (length_us + 1_000);
        let call = |name: &str, ts: u64, dur: u64| {
            serde_json::json!({"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 9, "tid": 1, "ts": ts, "dur": dur,
                "args": {"correlation": 2 * at + u64::from(name != "cudaLaunchKernel")}})
        };
        events.push(call("cudaLaunchKernel", begin, 5));
        events.push(
            serde_json::json!({"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 7, "ts": begin + 10,
            "dur": length_us, "args": {"correlation": 2 * at, "stream": 7, "device": 0, "grid": [8, 1, 1],
            "block": [256, 1, 1]}}),
        );
        events.push(call("cudaDeviceSynchronize", begin + 6, length_us + 6));
        events.push(
            serde_json::json!({"ph": "X", "cat": "user_annotation", "name": format!("ProfilerStep#{at}"), "pid": 9,
            "tid": 1, "ts": begin, "dur": length_us + 900}),
        );
    }
    let all = serde_json::json!({"deviceProperties": [{"id": 0, "name": gpu, "totalGlobalMem": 1u64 << 34}],
        "traceEvents": events});
    let file = folder.join(name);
    std::fs::write(&file, all.to_string()).expect("written");
    file.to_str().expect("text").to_string()
}

#[test]
fn the_page_names_guesses_and_what_a_request_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = profiled(folder.path(), "service.json", "gemm", "NVIDIA A", 300);
    let training = profiled(folder.path(), "training.json", "fused_adam", "NVIDIA B", 300);
    let other = trace(folder.path(), "other", 4, MS, None);
    let output = weft()
        .args(["predict", &service, &training, &other])
        .output()
        .expect("ran");
    let page = text(&output.stdout);
    for wanted in [
        "by its names a service (if it trains: weft trace import --training)",
        "by its names a training (if it answers requests: weft trace import --service)",
        "requests steps of the file (each ProfilerStep of PyTorch is one); ",
        "times of training: they are measured, of another GPU than the service's (NVIDIA B and NVIDIA A)",
        "times of other: they are estimated, of another GPU than the service's (an unknown one and NVIDIA A)",
    ] {
        assert!(page.contains(wanted), "{wanted} is not in\n{page}");
    }
    let one = trace(folder.path(), "one", 4, 500 * US, Some(5 * MS));
    let page = text(&weft().args(["predict", &one]).output().expect("ran").stdout);
    assert!(page.starts_with("service  one: 1 request on "), "{page}");
    assert!(
        page.contains("requests steps of the file (as its recording marks them); "),
        "{page}"
    );
}

#[test]
fn a_batch_job_that_gets_little_has_its_reasons() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = profiled(folder.path(), "service.json", "gemm", "NVIDIA A", 2_000);
    let batch = profiled(folder.path(), "batch.json", "fused_adam", "NVIDIA A", 20_000);
    let answer = predicted(&[&service, &batch]);
    let reasons = answer["reasons"].to_string();
    for wanted in [
        "batch gets next to nothing from ",
        "its kernels take up to 20.0 ms, the longest gap of a usual request has 1.0",
        "batch gets more from MPS, weft without its profile: weft charges a kernel 20.0 us until",
    ] {
        assert!(reasons.contains(wanted), "{wanted}: {answer}");
    }
}

#[test]
fn a_kernel_of_an_hour_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = profiled(folder.path(), "hour.json", "gemm", "NVIDIA A", 3_600_000_000);
    let out = folder.path().join("hour.trace");
    let output = weft().args(["trace", "import", &file]).arg(&out).output().expect("ran");
    let said = text(&output.stderr);
    assert!(
        output.status.success() && said.contains("kernel gemm takes 60 min") && said.contains("nothing stops a kernel"),
        "{said}"
    );
}

#[test]
fn a_trace_goes_only_where_a_file_can_be() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = profiled(folder.path(), "a.json", "gemm", "NVIDIA A", 300);
    let at = |name: &str| folder.path().join(name).to_str().expect("text").to_string();
    for (out, wanted) in [
        ("/dev/full".to_string(), "no regular file: name one"),
        (at(""), "no regular file: name one"),
        (
            at("missing/a.trace"),
            "No such file or directory: make its folder first",
        ),
    ] {
        let output = weft().args(["trace", "import", &file, &out]).output().expect("ran");
        let said = text(&output.stderr);
        assert!(
            said.contains(&format!("cannot write {out}")) && said.contains(wanted),
            "{out}: {said}"
        );
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    }
}
