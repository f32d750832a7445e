// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the plugin's program with a stand-in for the kubelet, over real sockets.
//!
//! The broker is `weft broker` if `WEFT_TEST_PROGRAM` names a `weft` (scripts/cluster sets it).
//! Otherwise it is a script that succeeds while a file exists.

mod kubelet;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kubelet::{FakeKubelet, Plugin, within};
use weft_device_plugin::api::ContainerAllocateResponse;
use weft_device_plugin::service::{HEALTHY, UNHEALTHY};

const A: &str = "GPU-aaaaaaaa-0000-0000-0000-000000000000";
const B: &str = "GPU-bbbbbbbb-0000-0000-0000-000000000000";

/// A node: its folders, its broker, its plugin.
struct Node {
    root: tempfile::TempDir,
    weft: PathBuf,
    real: bool,
    broker: Option<Child>,
    plugin: Option<Child>,
    /// Variables that locate the simulated GPU, if there is one.
    device: BTreeMap<String, String>,
}

impl Node {
    fn new() -> Self {
        let root = tempfile::Builder::new().prefix("weft-").tempdir_in("/tmp").unwrap();
        for folder in ["kubelet", "dev", "run", "proc", "sys", "profiles"] {
            fs::create_dir(root.path().join(folder)).unwrap();
        }
        let named = std::env::var_os("WEFT_TEST_PROGRAM").map(PathBuf::from);
        let weft = named.clone().unwrap_or_else(|| {
            let script = root.path().join("weft");
            let text = "#!/bin/sh\n[ \"$1\" = doctor ] && echo '{\"rows\": []}'\n[ -e \"$WEFT_SOCKET\" ]\n";
            fs::write(&script, text).unwrap();
            fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
            script
        });
        Self {
            weft,
            real: named.is_some(),
            root,
            broker: None,
            plugin: None,
            device: BTreeMap::new(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn socket(&self) -> PathBuf {
        self.path("run/broker.sock")
    }

    fn start_broker(&mut self) {
        if !self.real {
            return fs::write(self.socket(), "").unwrap();
        }
        let child = Command::new(&self.weft)
            .args(["broker", "--socket"])
            .arg(self.socket())
            .envs(&self.device)
            .env("WEFT_CONFIG", "/dev/null")
            .env("WEFT_PROFILE_DIR", self.path("profiles"))
            .env("WEFT_STATE_DIR", self.path("profiles"))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.broker = Some(child);
    }

    /// Kills the broker as the kernel's out-of-memory killer would, so its socket stays.
    fn kill_broker(&mut self) {
        match self.broker.take() {
            Some(child) => end(child),
            None => fs::remove_file(self.socket()).unwrap(),
        }
    }

    /// Starts the plugin with these GPUs, or with those that it finds (`None`).
    fn start_plugin(&mut self, gpus: Option<&str>, more: &[&str]) {
        let mut words = rights();
        words.push(env!("CARGO_BIN_EXE_weft-device-plugin").to_string());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg("serve");
        for (option, folder) in [
            ("--kubelet-dir", "kubelet"),
            ("--dev", "dev"),
            ("--proc", "proc"),
            ("--sys", "sys"),
        ] {
            command.arg(option).arg(self.path(folder));
        }
        command.arg("--weft").arg(&self.weft).arg("--socket").arg(self.socket());
        command.args(["--broker-period-ms", "100", "--kubelet-period-ms", "50"]);
        if !more.contains(&"--broker-bound-ms") {
            // Tests may run on two busy cores.
            command.args(["--broker-bound-ms", "20000"]);
        }
        command.args(gpus.iter().flat_map(|list| ["--gpus", list]));
        command
            .args(more)
            .stdin(Stdio::null())
            .env_remove("WEFT_LOG")
            .envs(&self.device);
        self.plugin = Some(command.spawn().unwrap());
    }

    fn kubelet(&self) -> FakeKubelet {
        FakeKubelet::start(&self.path("kubelet"), false)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.broker.take().into_iter().chain(self.plugin.take()).for_each(end);
    }
}

fn end(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn shares(uuid: &str, numbers: std::ops::Range<u32>) -> Vec<String> {
    numbers.map(|number| format!("{uuid}::{number}")).collect()
}

/// Two GPUs. Only the first has a known device node.
fn both() -> String {
    format!("{A}=nvidia0,{B}")
}

fn touch(path: &Path) {
    fs::write(path, "").unwrap();
}

#[tokio::test]
async fn shares_are_offered_and_allocated() {
    let mut node = Node::new();
    touch(&node.path("dev/nvidia0"));
    touch(&node.path("dev/nvidiactl"));
    node.start_broker();
    node.start_plugin(
        Some(&both()),
        &["--shares", "3", "--env", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"],
    );
    let mut kubelet = node.kubelet();
    let told = kubelet.registration().await;
    assert_eq!(
        (told.version.as_str(), told.resource_name.as_str()),
        ("v1beta1", "weft.dev/gpu-share")
    );
    assert!(told.options.unwrap().get_preferred_allocation_available);
    let mut plugin = kubelet.plugin(&told).await;
    let mut lists = plugin.lists().await;
    let ids = Plugin::wait(&mut lists, "GPU", HEALTHY).await;
    assert_eq!(ids, [shares(A, 0..3), shares(B, 0..3)].concat());

    let first = plugin.allocate(&shares(A, 1..2)).await.unwrap();
    assert_eq!(first.envs["LD_PRELOAD"], "/opt/weft/libweft.so");
    assert_eq!(first.envs["WEFT_SOCKET"], node.socket().to_str().unwrap());
    assert_eq!(first.envs["CUDA_VISIBLE_DEVICES"], A);
    assert_eq!(first.envs["NVIDIA_DRIVER_CAPABILITIES"], "compute,utility");
    let nodes: Vec<&str> = first.devices.iter().map(|spec| spec.container_path.as_str()).collect();
    assert_eq!(nodes, ["/dev/nvidia0", "/dev/nvidiactl"]);
    assert_eq!(first.mounts.len(), 2);
    // The same request gets the same answer: only the kubelet counts.
    assert_eq!(plugin.allocate(&shares(A, 1..2)).await.unwrap(), first);
    // The other GPU's container gets no device node of the first GPU.
    let other = plugin.allocate(&shares(B, 0..2)).await.unwrap();
    assert_eq!(other.envs["NVIDIA_VISIBLE_DEVICES"], B);
    assert!(other.devices.iter().all(|spec| spec.host_path != "/dev/nvidia0"));
}

#[tokio::test]
async fn strange_ids_are_refused() {
    let mut node = Node::new();
    touch(&node.path("dev/nvidia0"));
    node.start_broker();
    node.start_plugin(Some(&both()), &["--shares", "2"]);
    let mut kubelet = node.kubelet();
    let told = kubelet.registration().await;
    let mut plugin = kubelet.plugin(&told).await;
    Plugin::wait(&mut plugin.lists().await, "GPU", HEALTHY).await;
    let strange = [format!("{A}::2"), "GPU-c::0".to_string(), A.to_string(), String::new()];
    for id in strange {
        let said = plugin.allocate(std::slice::from_ref(&id)).await.unwrap_err();
        assert_eq!(said.code(), tonic::Code::InvalidArgument, "{id}: {said}");
        assert!(!said.message().contains('\n'), "{said}");
    }
    assert!(plugin.allocate(&[]).await.is_err());
    let both = [shares(A, 0..1), shares(B, 0..1)].concat();
    assert!(plugin.allocate(&both).await.unwrap_err().message().contains("one GPU"));
    assert!(plugin.preferred(&shares(A, 0..2), -1).await.is_err());
    assert!(plugin.preferred(&shares(A, 0..2), 3).await.is_err());
    // The plugin still works.
    plugin.allocate(&shares(A, 0..1)).await.unwrap();
}

#[tokio::test]
async fn preferred_shares_pack() {
    let mut node = Node::new();
    node.start_broker();
    node.start_plugin(Some(&both()), &["--shares", "4"]);
    let mut kubelet = node.kubelet();
    let told = kubelet.registration().await;
    let mut plugin = kubelet.plugin(&told).await;
    // One share of B is taken: the rest of B is handed out before any of A.
    let mut left = [shares(A, 0..4), shares(B, 1..4)].concat();
    let mut order = Vec::new();
    while !left.is_empty() {
        let got = plugin.preferred(&left, 1).await.unwrap();
        left.retain(|id| !got.contains(id));
        order.extend(got);
    }
    assert_eq!(order, [shares(B, 1..4), shares(A, 0..4)].concat());
    let fits = plugin
        .preferred(&[shares(A, 0..4), shares(B, 0..2)].concat(), 3)
        .await
        .unwrap();
    assert_eq!(fits, shares(A, 0..3));
}

#[tokio::test]
async fn with_several_gpus_each_share_is_of_another_one() {
    let mut node = Node::new();
    touch(&node.path("dev/nvidia0"));
    node.start_broker();
    node.start_plugin(Some(&both()), &["--shares", "4", "--several-gpus"]);
    let mut kubelet = node.kubelet();
    let told = kubelet.registration().await;
    let mut plugin = kubelet.plugin(&told).await;
    let mut lists = plugin.lists().await;
    let all = Plugin::wait(&mut lists, "GPU", HEALTHY).await;
    let two = plugin.preferred(&all, 2).await.unwrap();
    let answer = plugin.allocate(&two).await.unwrap();
    assert_eq!(answer.envs["CUDA_VISIBLE_DEVICES"], format!("{A},{B}"));
    let refused = plugin.allocate(&shares(A, 0..2)).await.unwrap_err();
    assert!(refused.message().contains("another GPU"), "{refused}");
    // One of the two is gone: the container gets neither.
    fs::remove_file(node.path("dev/nvidia0")).unwrap();
    Plugin::wait(&mut lists, A, UNHEALTHY).await;
    assert_eq!(
        plugin.allocate(&two).await.unwrap_err().code(),
        tonic::Code::Unavailable
    );
}

#[tokio::test]
async fn a_kubelet_that_starts_anew_is_registered_with_again() {
    let mut node = Node::new();
    node.start_broker();
    // The plugin waits for a kubelet that does not exist yet.
    node.start_plugin(Some(&both()), &[]);
    let mut kubelet = node.kubelet();
    for _ in 0..3 {
        let told = kubelet.registration().await;
        let mut plugin = kubelet.plugin(&told).await;
        let mut lists = plugin.lists().await;
        Plugin::wait(&mut lists, "GPU-b", HEALTHY).await;
        assert!(kubelet.heard_nothing(), "once is enough");
        drop(kubelet);
        kubelet = node.kubelet();
        // The old list ends, so no kubelet relies on it.
        while let Ok(Some(_)) = within("the list's end", lists.message()).await {}
    }
    // The plugin tries again with a kubelet that refuses.
    kubelet.registration().await;
    drop(kubelet);
    let mut refusing = FakeKubelet::start(&node.path("kubelet"), true);
    for _ in 0..2 {
        refusing.registration().await;
    }
    drop(refusing);
    let mut kubelet = node.kubelet();
    kubelet.registration().await;
}

#[tokio::test]
async fn a_socket_that_was_taken_away_is_made_again() {
    let mut node = Node::new();
    node.start_broker();
    node.start_plugin(Some(&both()), &[]);
    let mut kubelet = node.kubelet();
    let told = kubelet.registration().await;
    fs::remove_file(node.path("kubelet").join(&told.endpoint)).unwrap();
    let again = kubelet.registration().await;
    assert_eq!(told, again);
    let mut plugin = kubelet.plugin(&again).await;
    Plugin::wait(&mut plugin.lists().await, "GPU-b", HEALTHY).await;
}

#[tokio::test]
async fn without_its_broker_a_node_has_no_healthy_share() {
    let mut node = Node::new();
    node.start_plugin(Some(A), &[]);
    let mut kubelet = node.kubelet();
    let told = kubelet.registration().await;
    let mut plugin = kubelet.plugin(&told).await;
    let mut lists = plugin.lists().await;
    // Before the first broker, between the two, and after the second.
    Plugin::wait(&mut lists, A, UNHEALTHY).await;
    for _ in 0..2 {
        node.start_broker();
        Plugin::wait(&mut lists, A, HEALTHY).await;
        plugin.allocate(&shares(A, 0..1)).await.unwrap();
        node.kill_broker();
        let ids = Plugin::wait(&mut lists, A, UNHEALTHY).await;
        assert_eq!(ids.len(), 4, "they are still there");
        let said = plugin.allocate(&shares(A, 0..1)).await.unwrap_err();
        assert_eq!(said.code(), tonic::Code::Unavailable);
    }
    assert!(kubelet.heard_nothing(), "a broker's end is no reason to register");
}

#[tokio::test]
async fn a_broker_that_is_stopped_does_not_answer() {
    let mut node = Node::new();
    if !node.real {
        // The stand-in hangs.
        fs::write(&node.weft, "#!/bin/sh\nexec sleep 1000\n").unwrap();
        node.start_plugin(Some(A), &["--broker-bound-ms", "200"]);
    } else {
        node.start_broker();
        node.start_plugin(Some(A), &["--broker-bound-ms", "5000"]);
    }
    let mut kubelet = node.kubelet();
    let told = kubelet.registration().await;
    let mut lists = kubelet.plugin(&told).await.lists().await;
    if let Some(broker) = &node.broker {
        Plugin::wait(&mut lists, A, HEALTHY).await;
        let stopped = Command::new("kill")
            .args(["-STOP", &broker.id().to_string()])
            .status()
            .unwrap();
        assert!(stopped.success());
    }
    Plugin::wait(&mut lists, A, UNHEALTHY).await;
}

#[tokio::test]
async fn a_gpu_that_fell_off_its_bus_is_unhealthy_alone() {
    let mut node = Node::new();
    touch(&node.path("dev/nvidia0"));
    node.start_broker();
    node.start_plugin(Some(&both()), &[]);
    let mut kubelet = node.kubelet();
    let told = kubelet.registration().await;
    let mut plugin = kubelet.plugin(&told).await;
    let mut lists = plugin.lists().await;
    Plugin::wait(&mut lists, "GPU", HEALTHY).await;
    fs::remove_file(node.path("dev/nvidia0")).unwrap();
    Plugin::wait(&mut lists, A, UNHEALTHY).await;
    assert!(plugin.allocate(&shares(A, 0..1)).await.is_err());
    plugin.allocate(&shares(B, 0..1)).await.unwrap();
    touch(&node.path("dev/nvidia0"));
    Plugin::wait(&mut lists, A, HEALTHY).await;
}

#[tokio::test]
async fn gpus_are_found_by_the_module_and_named_by_cdi() {
    let mut node = Node::new();
    let folder = node.path("proc/driver/nvidia/gpus/0000:01:00.0");
    fs::create_dir_all(&folder).unwrap();
    fs::write(
        folder.join("information"),
        format!("GPU UUID: \t {B}\nDevice Minor: \t 7\n"),
    )
    .unwrap();
    let bus = node.path("sys/bus/pci/devices/0000:01:00.0");
    fs::create_dir_all(&bus).unwrap();
    fs::write(bus.join("numa_node"), "1\n").unwrap();
    touch(&node.path("dev/nvidia7"));
    node.start_broker();
    let cdi = node.path("cdi");
    node.start_plugin(
        None,
        &[
            "--shares",
            "1",
            "--share-mib",
            "2048",
            "--cdi-dir",
            cdi.to_str().unwrap(),
        ],
    );
    let mut kubelet = node.kubelet();
    let told = kubelet.registration().await;
    let mut plugin = kubelet.plugin(&told).await;
    Plugin::wait(&mut plugin.lists().await, B, HEALTHY).await;
    let answer = plugin.allocate(&shares(B, 0..1)).await.unwrap();
    assert_eq!(answer.cdi_devices[0].name, format!("weft.dev/gpu={B}"));
    assert_eq!(answer.envs.len(), 2);
    assert_eq!(answer.envs["WEFT_OUTCOME"], "on");
    assert_eq!(answer.envs["WEFT_MEMORY"], "2048MiB");
    let file: serde_json::Value = serde_json::from_slice(&fs::read(cdi.join("weft.dev-gpu.json")).unwrap()).unwrap();
    assert_eq!(file["devices"][0]["name"], B);
    assert_eq!(
        file["devices"][0]["containerEdits"]["deviceNodes"][0]["path"],
        "/dev/nvidia7"
    );
}

#[tokio::test]
async fn it_ends_by_sigterm_and_takes_its_socket_away() {
    let mut node = Node::new();
    node.start_plugin(Some(&both()), &[]);
    let mut kubelet = node.kubelet();
    let told = kubelet.registration().await;
    let mut lists = kubelet.plugin(&told).await.lists().await;
    within("a list", lists.message()).await.unwrap();
    let mut child = node.plugin.take().unwrap();
    Command::new("kill").arg(child.id().to_string()).status().unwrap();
    let code = tokio::task::spawn_blocking(move || {
        for _ in 0..kubelet::BOUND.as_millis() / 20 {
            if let Some(code) = child.try_wait().unwrap() {
                return Some(code);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        end(child);
        None
    });
    assert!(code.await.unwrap().expect("it did not end").success());
    assert!(!node.path("kubelet").join(&told.endpoint).exists());
}

/// A command that drops the plugin's privileges before it starts, as its container does. Empty by
/// default, since dropping them needs root.
fn rights() -> Vec<String> {
    let named = std::env::var("WEFT_TEST_RIGHTS").ok();
    named.map_or(Vec::new(), |text| serde_json::from_str(&text).unwrap())
}

/// A value from the environment, as JSON.
fn given<T>(name: &str, read: impl Fn(serde_json::Value) -> Option<T>) -> T {
    let text = std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: see scripts/cluster"));
    read(serde_json::from_str(&text).unwrap()).unwrap()
}

/// Runs a command in its own mount namespace, as a container runtime would for this answer: with
/// its mounts and variables, and the variables of the pod.
fn contain(answer: &ContainerAllocateResponse, pod: &[(&str, &str)], command: &[String]) -> serde_json::Value {
    let mut script = "set -e\n".to_string();
    for one in &answer.mounts {
        assert!(one.read_only);
        script += &format!("mount --bind {} {}\n", one.host_path, one.container_path);
        script += &format!("mount -o remount,bind,ro {}\n", one.container_path);
    }
    script += "exec \"$@\"\n";
    let done = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script, "sh"])
        .args(command)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .envs(&answer.envs)
        .envs(pod.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    // The pod's log gets the outcome, and nothing else of weft.
    match pod.contains(&("WEFT_OUTCOME", "off")) {
        true => assert_eq!(said, ""),
        false => {
            let outcome = |line: &str| line.starts_with("weft[") && line.contains("]: ran ");
            assert!(said.lines().next().is_some_and(outcome), "{said}");
            assert!(said.lines().all(|line| line.starts_with("weft[")), "{said}");
        }
    }
    serde_json::from_slice(&done.stdout).unwrap()
}

#[tokio::test]
#[ignore = "needs what scripts/layout builds, and root: scripts/cluster kubernetes --check"]
async fn pods_are_jobs_of_the_nodes_broker() {
    let mut node = Node::new();
    let words = |found: serde_json::Value| -> Option<Vec<String>> { serde_json::from_value(found).ok() };
    let mut job = given("WEFT_TEST_JOB", words);
    job.push(node.weft.to_str().unwrap().to_string());
    node.device = given("WEFT_TEST_DEVICE", |found| serde_json::from_value(found).ok());
    node.device.insert(
        "SIMGPU_SOCKET".into(),
        node.path("device.sock").to_str().unwrap().into(),
    );
    // Like the DaemonSet, this copies weft's files to the node, and containers mount them.
    let installed = Command::new(env!("CARGO_BIN_EXE_weft-device-plugin"))
        .args([
            "install",
            "--from",
            node.weft.parent().unwrap().to_str().unwrap(),
            "--to",
        ])
        .arg(node.path("opt"))
        .status();
    assert!(installed.unwrap().success());
    node.start_broker();
    let mut more = vec!["--shares".to_string(), "2".into(), "--share-mib".into(), "512".into()];
    more.extend(["--weft-folder".into(), node.path("opt").to_str().unwrap().into()]);
    more.extend(
        node.device
            .iter()
            .flat_map(|(name, value)| ["--env".into(), format!("{name}={value}")]),
    );
    // No GPU is listed and there is no module, so the plugin runs `weft doctor`.
    node.start_plugin(None, &more.iter().map(String::as_str).collect::<Vec<_>>());
    let mut kubelet = node.kubelet();
    let told = kubelet.registration().await;
    let mut plugin = kubelet.plugin(&told).await;
    let ids = Plugin::wait(&mut plugin.lists().await, "GPU", HEALTHY).await;
    let first = plugin.preferred(&ids, 1).await.unwrap();
    let uuid = first[0].split("::").next().unwrap().to_string();

    let answer = plugin.allocate(&first).await.unwrap();
    // The downward API sets these from annotations. A missing annotation becomes an empty value.
    let service = contain(&answer, &[("WEFT_PRIORITY", "high"), ("WEFT_NAME", "service")], &job);
    let quiet = [
        ("WEFT_PRIORITY", ""),
        ("WEFT_NAME", "training"),
        ("WEFT_OUTCOME", "off"),
    ];
    let training = contain(&answer, &quiet, &job);
    for (told, name, priority) in [(&service, "service", 0), (&training, "training", 5)] {
        assert_eq!(told["answer"], 49, "{told}");
        let clients = told["clients"].as_array().unwrap();
        assert_eq!(clients.len(), 1, "{told}");
        assert_eq!(clients[0]["name"], name);
        assert_eq!(clients[0]["priority"], priority);
        assert_eq!(clients[0]["launches"], 50);
        assert_eq!(
            clients[0]["device_uuid"].as_str().unwrap(),
            uuid.replace("GPU-", "").replace('-', "")
        );
        assert_eq!(told["writable"], serde_json::json!([false, false]));
        assert_eq!(told["visible"].as_str().unwrap(), uuid);
    }
}
