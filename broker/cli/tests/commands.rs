// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the `weft` command as a user sees it: exit codes, one-line errors, untouched stdout,
//! profiles.

mod common;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::atomic::Ordering;

use common::{Client, Home, hello, text, until};
use weft_api::admin::{self, AdminQuestion, Answer};
use weft_api::paths::Places;
use weft_kernel_id::KernelId;
use weft_profiles::Store;
use weft_protocol::control::{Hello, ToBroker, ToClient};
use weft_protocol::lane::{Kind, NO_GAP};

#[test]
fn a_job_keeps_its_exit_code_signals_and_stdout() {
    let home = Home::new();
    let output = home.done(&[
        "run",
        "--priority",
        "3",
        "--",
        "sh",
        "-c",
        "echo out; echo err >&2; exit 7",
    ]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(text(&output.stdout), "out\n");
    assert!(text(&output.stderr).ends_with("err\n"));
    let killed = home.done(&["run", "--", "sh", "-c", "kill -KILL $$"]);
    assert_eq!(killed.status.signal(), Some(9));
}

#[test]
fn a_job_sees_the_variables_of_weft_and_its_own() {
    let home = Home::new();
    let mut command = home.weft();
    command
        .args([
            "run",
            "--priority",
            "3",
            "--profile",
            "p",
            "--slowdown",
            "0.02",
            "--slo",
            "1.5s",
            "--",
            "env",
        ])
        .env("LD_LIBRARY_PATH", "/mine");
    let output = command.output().expect("ran");
    let environment = text(&output.stdout);
    let value = |name: &str| {
        environment
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name}=")))
            .unwrap_or_default()
            .to_string()
    };
    assert_eq!(value("WEFT_PRIORITY"), "3");
    assert_eq!(value("WEFT_SLOWDOWN"), "2%");
    assert_eq!(value("WEFT_SLO"), "1500000000ns");
    assert_eq!(value("WEFT_PROFILE"), home.profiles().join("p").to_str().expect("text"));
    assert!(value("LD_LIBRARY_PATH").ends_with(":/mine"));
    let links = value("LD_LIBRARY_PATH");
    let links = std::path::Path::new(links.split(':').next().expect("one"));
    assert!(links.join("libcuda.so.1").exists() && links.join("libcuda.so").exists());
    assert!(value("LD_PRELOAD").starts_with(home.path().to_str().expect("text")));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn the_device_is_told_of_jobs_that_matter_less() {
    let home = Home::new();
    let job = ["--", "sh", "-c", "env | grep ^CUDA_MPS_ | sort"];
    let told = |options: &[&str], environment: &[(&str, &str)]| {
        let mut command = home.weft();
        let command = command.arg("run").args(options).args(job);
        let output = command.envs(environment.iter().copied()).output().expect("ran");
        text(&output.stdout).replace("CUDA_MPS_", "")
    };
    assert_eq!(told(&["-p", "0"], &[]), "");
    assert_eq!(told(&["-p", "5"], &[]), "CLIENT_PRIORITY=1\n");
    assert_eq!(told(&[], &[("WEFT_PRIORITY", "0")]), "");
    assert_eq!(told(&["-p", "9"], &[("WEFT_DEVICE_PRIORITIES", "off")]), "");
    let users = [("CUDA_MPS_CLIENT_PRIORITY", "0")];
    assert_eq!(told(&["-p", "9"], &users), "CLIENT_PRIORITY=0\n");
    assert_eq!(
        told(&["-p", "9", "--sm-share", "25%"], &[]),
        "ACTIVE_THREAD_PERCENTAGE=25\nCLIENT_PRIORITY=1\n"
    );
    let mut wrong = home.weft();
    let output = wrong.args(["run", "--", "true"]).env("WEFT_DEVICE_PRIORITIES", "0");
    let output = output.output().expect("ran");
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert_eq!(said, "weft: WEFT_DEVICE_PRIORITIES=0 is neither on nor off\n");
}

#[test]
fn a_job_runs_without_a_library_that_is_none() {
    let home = Home::new();
    let _broker = home.broker(&[]);
    let script = home.path().join("job.py");
    std::fs::write(&script, "import torch").expect("written");
    for wrong in [home.path(), script.as_path(), std::path::Path::new("/nonexistent.so")] {
        let mut command = home.weft();
        let output = command.env("WEFT_LIBRARY", wrong).args(["run", "--", "echo", "began"]);
        let output = output.output().expect("ran");
        let said = text(&output.stderr);
        assert_eq!(
            (output.status.code(), text(&output.stdout).as_ref()),
            (Some(0), "began\n"),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(
            said.contains(&format!(
                "WEFT_LIBRARY={} is no shared library; the job runs without weft",
                wrong.display()
            )),
            "{said}"
        );
    }
}

#[test]
fn mistakes_are_one_line() {
    let home = Home::new();
    for (arguments, code) in [
        (&["run", "--priority", "12", "--", "true"][..], 2),
        (&["run"][..], 2),
        (&["run", "--profile", "../x/.y", "--", "true"][..], 2),
        (&["run", "--sm-share", "25", "--", "true"][..], 2),
        (&["run", "--slowdown", "2", "--", "true"][..], 2),
        (&["run", "--slowdown=-1%", "--", "true"][..], 2),
        (&["run", "--slo", "50", "--", "true"][..], 2),
        (&["set", "--client", "1", "--slo", "0ms"][..], 2),
        (&["set", "--user", "ann", "--slowdown", "2%"][..], 2),
        (&["broker", "--slowdown", "two"][..], 2),
        (&["set", "--priority", "1"][..], 2),
        (&["broker", "--policy", "fair"][..], 2),
        (&["status"][..], 1),
        (&["stop"][..], 1),
        (&["profile", "show", "nothing"][..], 1),
    ] {
        let output = home.done(arguments);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {}",
            text(&output.stderr)
        );
        assert_eq!(
            text(&output.stderr).lines().count(),
            1,
            "{arguments:?}: {}",
            text(&output.stderr)
        );
        assert!(output.stdout.is_empty());
    }
    let missing = home.done(&["run", "--", "no-such-command-at-all"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(text(&missing.stderr).contains("command not found"));
    let not_executable = home.path().join("data");
    fs::write(&not_executable, "x").expect("written");
    let refused = home.done(&["run", "--", not_executable.to_str().expect("text")]);
    assert_eq!(refused.status.code(), Some(126));
}

#[test]
fn many_jobs_at_once_start_one_broker() {
    let home = Home::new();
    let jobs: Vec<_> = (0..40)
        .map(|_| {
            let mut command = home.weft();
            command.args(["run", "--", "true"]).stderr(Stdio::null());
            command.spawn().expect("started")
        })
        .collect();
    for mut job in jobs {
        assert!(job.wait().expect("waited").success());
    }
    // On a busy machine the jobs may end before their broker has begun.
    let log = || fs::read_to_string(home.places().log()).unwrap_or_default();
    until("the broker begins", || log().contains("policy weft"));
    assert!(home.done(&["stop"]).status.success());
    assert_eq!(log().matches("policy weft").count(), 1, "{}", log());
}

#[test]
fn the_broker_is_no_child_of_the_job() {
    let home = Home::new();
    let output = home.done(&["run", "--", "sh", "-c", "cat /proc/$$/task/$$/children"]);
    // Only `cat` itself may be loaded.
    assert!(
        text(&output.stdout).split_whitespace().count() <= 1,
        "{}",
        text(&output.stdout)
    );
}

fn sampler(name: &str) -> Hello {
    Hello {
        profile: Some(name.to_string()),
        profiling: true,
        ..hello(0)
    }
}

fn sample(client: &Client, count: u64) {
    client.say(ToBroker::Kernel {
        hash: 0x77,
        id: KernelId::new(1, "axpy", [4, 1, 1], [128, 1, 1], 0),
    });
    client.say(ToBroker::Device {
        name: "A GPU".to_string(),
        uuid: "00".repeat(16),
        memory: 1 << 34,
        driver: 13020,
        mps: Some(false),
    });
    for number in 0..count {
        client.lane().counters.launches.fetch_add(1, Ordering::Relaxed);
        let gap = if number + 1 == count { NO_GAP } else { 5_000 };
        client.record(Kind::Sample, 0x77, 20_000, gap);
    }
}

#[test]
fn samples_become_a_profile_even_if_the_job_is_killed() {
    let home = Home::new();
    let _broker = home.broker(&[]);
    let client = Client::attach(&home.socket(), sampler("resnet"));
    sample(&client, 50);
    until("they arrived", || {
        home.status().clients.first().is_some_and(|known| known.samples == 50)
    });
    // Detaches without a message.
    drop(client);
    let store = Store::at(home.profiles());
    until("it is written", || store.load("resnet").is_ok());
    let profile = store.load("resnet").expect("there");
    assert_eq!(profile.samples(), 50);
    assert_eq!(profile.gpu.name, "A GPU");
    let kernel = profile.kernel(0x77).expect("named");
    assert_eq!(kernel.id.symbol, "axpy");
    assert_eq!(kernel.gap.count(), 49);
    let page = home.done(&["profile", "show", "resnet"]);
    assert!(text(&page.stdout).contains("axpy"), "{}", text(&page.stdout));
    let json = home.done(&["profile", "show", "resnet", "--json"]);
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert!(value.is_object());
    assert!(text(&home.done(&["profile", "list"]).stdout).contains("resnet"));
    assert!(home.done(&["profile", "delete", "resnet"]).status.success());
    assert_eq!(store.names().expect("listed").len(), 0);
}

#[test]
fn a_job_that_runs_on_is_written_every_few_seconds() {
    let home = Home::new();
    let _broker = home.broker(&[]);
    let client = Client::attach(&home.socket(), sampler("long"));
    sample(&client, 10);
    let store = Store::at(home.profiles());
    until("it is written while the job lives", || store.load("long").is_ok());
    assert_eq!(store.load("long").expect("there").samples(), 10);
}

#[test]
fn a_profile_that_cannot_be_written_is_told_and_hurts_nobody() {
    let home = Home::new();
    // A file in place of the folder.
    fs::write(home.profiles(), "not a folder").expect("written");
    let mut broker = home.broker(&[]);
    let client = Client::attach(&home.socket(), sampler("resnet"));
    sample(&client, 5);
    drop(client);
    until("it is told", || home.status().broker.profile_failures > 0);
    let status = home.status();
    assert!(status.broker.last_trouble.expect("told").contains("resnet.profile") || broker.alive());
    assert!(broker.alive());
    let _next = Client::attach(&home.socket(), hello(1));
}

#[test]
fn a_full_disk_keeps_the_old_profile_and_the_broker() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let home = Home::new();
    let mut broker = home.broker(&[]);
    let first = Client::attach(&home.socket(), sampler("resnet"));
    sample(&first, 5);
    drop(first);
    let store = Store::at(home.profiles());
    until("the first is written", || store.load("resnet").is_ok());
    until("it is gone", || home.status().clients.is_empty());
    let again = Client::attach(&home.socket(), sampler("resnet"));
    home.only_client();
    // The broker's files may not grow beyond this: writes fail in the middle, as on a full disk.
    let limit = Rlimit {
        current: Some(64),
        maximum: Some(64),
    };
    let pid = Pid::from_raw(broker.pid() as i32);
    prlimit(pid, Resource::Fsize, limit).expect("limited");
    sample(&again, 50);
    drop(again);
    until("it is told", || home.status().broker.profile_failures > 0);
    assert!(home.status().broker.last_trouble.expect("told").contains("resnet"));
    assert_eq!(store.load("resnet").expect("the old one").samples(), 5);
    assert_eq!(
        fs::read_dir(home.profiles()).expect("listed").count(),
        1,
        "nothing half-written is left"
    );
    assert!(broker.alive());
}

#[test]
fn a_profile_that_cannot_be_used_is_told_and_the_job_comes_in_without() {
    let home = Home::new();
    let _broker = home.broker(&[]);
    fs::create_dir_all(home.profiles()).expect("made");
    fs::write(home.profiles().join("torn.profile"), b"weft is not in here").expect("written");
    for name in ["torn", "missing"] {
        let named = Hello {
            profile: Some(name.to_string()),
            ..hello(4)
        };
        let client = Client::attach(&home.socket(), named);
        assert!(client.attached.costs.is_empty());
        let known = home.only_client();
        assert!(
            known.profile_trouble.as_deref().is_some_and(|why| why.contains(name)),
            "{known:?}"
        );
        assert!(text(&home.done(&["status"]).stdout).contains("(!)"));
        assert!(warning(&client).contains(name), "the job's side is told");
        drop(client);
        until("it is gone", || home.status().clients.is_empty());
    }
}

/// The broker's warning to a client.
fn warning(client: &Client) -> String {
    let mut said = None;
    until("it is warned", || {
        if let Ok(Some(ToClient::Warning(line))) = client.attached.channel.receive() {
            said = Some(line);
        }
        said.is_some()
    });
    said.unwrap_or_default()
}

#[test]
fn a_profile_of_another_gpu_is_told() {
    let home = Home::new();
    let _broker = home.broker(&[]);
    let client = Client::attach(&home.socket(), sampler("resnet"));
    sample(&client, 5);
    drop(client);
    let store = Store::at(home.profiles());
    until("it is written", || {
        store.load("resnet").is_ok_and(|profile| !profile.gpu.name.is_empty())
    });
    until("it is gone", || home.status().clients.is_empty());
    let served = Hello {
        profile: Some("resnet".to_string()),
        ..hello(0)
    };
    let client = Client::attach(&home.socket(), served);
    assert_eq!(
        client.attached.costs,
        [(0x77, 20_000)],
        "what is known goes to the client"
    );
    // As if the profile's kernels had another typical cost.
    client.lane().orders.unknown_cost.store(77, Ordering::Relaxed);
    client.say(ToBroker::Device {
        name: "Another GPU".to_string(),
        uuid: "11".repeat(16),
        memory: 1 << 35,
        driver: 13020,
        mps: Some(false),
    });
    until("it is told", || home.only_client().profile_trouble.is_some());
    // The costs it began with are withdrawn, also the profile's typical cost for unknown kernels.
    let mut first = None;
    until("it is to forget", || {
        first = client.attached.channel.receive().ok().flatten();
        first.is_some()
    });
    assert_eq!(first, Some(ToClient::ForgetCosts));
    let unknown = client.lane().orders.unknown_cost.load(Ordering::Relaxed);
    assert_eq!(unknown, 20_000, "what a broker charges that knows nothing");
    let why = warning(&client);
    assert!(why.contains("Another GPU"), "{why}");
}

#[test]
fn profiling_a_job_that_uses_no_gpu_says_so_and_returns_its_code() {
    let home = Home::new();
    let output = home.done(&["profile", "--name", "nothing", "--", "sh", "-c", "echo out; exit 5"]);
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(text(&output.stdout), "out\n");
    assert!(
        text(&output.stderr).contains("nothing was learnt"),
        "{}",
        text(&output.stderr)
    );
    assert!(!home.profiles().join("nothing.profile").exists());
    let killed = home.done(&["profile", "--name", "nothing", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(killed.status.signal(), Some(15));
}

#[test]
fn a_job_is_set_by_its_name_or_else_by_its_number() {
    let home = Home::new();
    let _broker = home.broker(&[]);
    let _one = Client::attach(&home.socket(), hello(5));
    let number = home.only_client().client;
    let named = Hello {
        name: Some(format!("client:{number}")),
        ..hello(5)
    };
    let other = Client::attach(&home.socket(), named);
    until("both are listed", || home.status().clients.len() == 2);
    let set = |priority: &str| {
        let done = home.done(&["set", "--job", &format!("client:{number}"), "--priority", priority]);
        assert!(done.status.success(), "{}", text(&done.stderr));
        let clients = home.status().clients;
        clients
            .iter()
            .map(|client| (client.client == number, client.priority))
            .collect::<Vec<_>>()
    };
    assert_eq!(set("6"), [(true, 5), (false, 6)]);
    drop(other);
    until("the named one ended", || home.status().clients.len() == 1);
    assert_eq!(set("7"), [(true, 7)]);
}

#[test]
fn a_path_without_a_brokers_socket_is_one_line_of_each_command() {
    let home = Home::new();
    let file = home.path().join("file");
    fs::write(&file, "").expect("written");
    let other = std::os::unix::net::UnixListener::bind(home.path().join("other")).expect("bound");
    for (socket, part) in [
        (file.clone(), "file: is not a socket; set WEFT_SOCKET to "),
        (file.join("broker.sock"), "file: is not a folder; set WEFT_SOCKET to "),
        (
            home.path().join("other"),
            "other: is another program's socket; set WEFT_SOCKET to ",
        ),
    ] {
        for words in [
            &["status"][..],
            &["queue"],
            &["metrics"],
            &["stop"],
            &["check"],
            &["wait", "1"],
            &["set", "--client", "1", "--priority", "1"],
            &["profile", "keep", "--name", "x"],
        ] {
            let done = home
                .weft()
                .args(words)
                .env("WEFT_SOCKET", &socket)
                .output()
                .expect("ran");
            let said = [text(&done.stdout), text(&done.stderr)].concat();
            assert!(!done.status.success() && said.contains(part), "{words:?}: {said}");
            assert_eq!(said.lines().count(), 1, "{words:?}: {said}");
        }
    }
    drop(other);
    assert!(file.is_file());
}

#[test]
fn a_broker_that_dies_while_a_profile_is_taken_leaves_the_job_its_exit_code() {
    let home = Home::new();
    let mut broker = home.broker(&[]);
    let mut command = home.weft();
    let ready = home.path().join("ready");
    let script = format!(
        "touch {}; while [ -e {0} ]; do sleep 0.01; done; exit 6",
        ready.display()
    );
    command
        .args(["profile", "--name", "x", "--", "sh", "-c", &script])
        .stderr(Stdio::piped());
    let job = command.spawn().expect("started");
    until("the job runs", || ready.exists());
    broker.kill();
    fs::remove_file(&ready).expect("removed");
    let output = job.wait_with_output().expect("waited");
    assert_eq!(output.status.code(), Some(6));
    assert!(
        text(&output.stderr).contains("no broker answers"),
        "{}",
        text(&output.stderr)
    );
}

/// Not a test: a job that samples.
#[test]
#[ignore = "a helper process of another test"]
fn helper_sampler() {
    let Some(socket) = std::env::var_os("WEFT_SOCKET") else {
        return;
    };
    assert_eq!(std::env::var("WEFT_MODE").as_deref(), Ok("profile"));
    let client = Client::attach(
        std::path::Path::new(&socket),
        sampler(&std::env::var("WEFT_PROFILE").expect("named")),
    );
    sample(&client, 30);
    let places = Places::at(socket);
    until("all was heard", || match admin::ask(&places, &AdminQuestion::Status) {
        Ok(Answer::Status(status)) => status
            .clients
            .iter()
            .any(|own| own.samples == 30 && own.kernels == 1 && own.device.is_some()),
        _ => false,
    });
}

#[test]
fn profiling_a_job_tells_what_was_learnt() {
    let home = Home::new();
    let program = std::env::current_exe().expect("this test");
    let out = home.path().join("copy.profile");
    let output = home.done(&[
        "profile",
        "--name",
        "job",
        "--out",
        out.to_str().expect("text"),
        "--",
        program.to_str().expect("text"),
        "--exact",
        "helper_sampler",
        "--ignored",
    ]);
    let said = text(&output.stderr);
    assert!(
        said.contains("profile job: 1 kernel, 30 samples of 30 launches in 1 process"),
        "{said}"
    );
    assert!(output.status.success());
    assert!(out.exists());
    assert_eq!(Store::at(home.profiles()).load("job").expect("there").samples(), 30);
}

#[test]
fn doctor_without_a_driver_says_so_and_fails() {
    let home = Home::new();
    let mut command = home.weft();
    command
        .args(["doctor", "--json"])
        .env("WEFT_CUDA_LIBRARY", "/nonexistent/libcuda.so.1");
    let output = command.output().expect("ran");
    assert_eq!(output.status.code(), Some(1));
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(value["healthy"], false);
    let rows = value["rows"].as_array().expect("rows");
    let row = |what: &str| rows.iter().find(|row| row["what"] == what).cloned().unwrap_or_default();
    assert_eq!(row("driver")["verdict"], "fail");
    assert_eq!(row("libweft")["verdict"], "ok");
    assert_eq!(row("broker")["verdict"], "ok");
}

#[test]
fn a_profile_of_many_kernels_reaches_its_client_whole() {
    const KERNELS: u64 = 20_000;
    let home = Home::new();
    let mut aggregator = weft_profiles::Aggregator::new();
    for hash in 0..KERNELS {
        aggregator.named(hash, KernelId::new(hash, "k", [1; 3], [1; 3], 0));
        aggregator.sampled(hash, 1_000 + hash, Some(5));
    }
    let store = Store::at(home.profiles());
    store.save(&aggregator.finish("large", 0)).expect("saved");
    let _broker = home.broker(&[]);
    let named = Hello {
        profile: Some("large".to_string()),
        ..hello(0)
    };
    let client = Client::attach(&home.socket(), named);
    assert_eq!(client.attached.costs.len() as u64, KERNELS);
    assert!(client.attached.costs.contains(&(7, 1_007)));
}

#[test]
fn what_kernels_may_take_reaches_the_client_where_the_device_switches() {
    let home = Home::new();
    let mut aggregator = weft_profiles::Aggregator::new();
    for turn in 0..100 {
        // One in ten takes ten times as long.
        aggregator.sampled(7, if turn % 10 == 0 { 1_000_000 } else { 100_000 }, None);
        aggregator.sampled(8, 100_000, None);
    }
    let store = Store::at(home.profiles());
    store.save(&aggregator.finish("spread", 0)).expect("saved");
    let _broker = home.broker(&["--switch-cost", "100"]);
    let named = Hello {
        profile: Some("spread".to_string()),
        ..hello(0)
    };
    let client = Client::attach(&home.socket(), named);
    let mut told = None;
    until("it is told", || {
        told = client.attached.channel.receive().ok().flatten();
        told.is_some()
    });
    let Some(ToClient::MayTake(times)) = told else {
        panic!("{told:?}")
    };
    let [(7, time)] = times[..] else { panic!("{times:?}") };
    assert!(time.abs_diff(1_000_000) < 30_000, "{time}");
}

#[test]
fn top_shows_pages_and_ends() {
    let home = Home::new();
    let _broker = home.broker(&[]);
    let _client = Client::attach(&home.socket(), hello(3));
    home.only_client();
    let output = home.done(&["top", "--interval", "0.1", "--count", "2"]);
    assert!(output.status.success());
    assert_eq!(text(&output.stdout).matches("policy weft, 1 job,").count(), 2);
}

#[test]
fn the_policy_is_weft_where_none_is_named_and_status_shows_it() {
    let home = Home::new();
    let shown = |arguments: &[&str]| {
        let _broker = home.broker(arguments);
        assert_eq!(home.status().broker.policy, *arguments.last().unwrap_or(&"weft"));
        text(&home.done(&["status"]).stdout)
    };
    let default = shown(&[]);
    assert!(default.contains(", policy weft, "), "{default}");
    let named = shown(&["--policy", "fikit"]);
    assert!(named.contains(", policy fikit, "), "{named}");
    // A broker that a job starts.
    assert!(home.done(&["run", "--", "true"]).status.success());
    assert_eq!(home.status().broker.policy, "weft");
    assert!(home.done(&["stop"]).status.success());
}
