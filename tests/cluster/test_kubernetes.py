# SPDX-License-Identifier: MIT OR Apache-2.0
"""The files that a cluster's admin applies: the chart as Helm renders it, the plain manifest, the
examples.

No API server is at hand. The cases use Helm's own code, the schemas that Kubernetes publishes, and
the programs that the manifests name. The plugin itself is tested by its crate
(deploy/kubernetes/device-plugin/tests), which scripts/cluster plays.
"""

import copy
import json
import re
import shutil
import subprocess
import tomllib

import pytest
from fixtures import cluster_kubernetes
from harness import jobs, paths
from harness import package as packages
from users import python

DEPLOY = paths.ROOT / "deploy" / "kubernetes"
HELPER = paths.ROOT / "tests" / "cluster" / "manifests.py"
PAGE = paths.ROOT / "docs" / "kubernetes.md"
# The oldest that the policy's kind is in, and the newest that has schemas.
VERSIONS = ["1.30", "1.33", "1.37"]
# Seconds for one command, on two busy cores.
BOUND = 120

DASHBOARD = paths.ROOT / "deploy" / "grafana" / "weft.json"

GPU = "GPU-5e1f6d75-6753-49e7-9a62-73696d670001"
ALL = {
    "runtimeClassName": "nvidia",
    "cdi": {"enabled": True},
    "gpus": [f"{GPU}=nvidia0"],
    "shareMiB": 1024,
    "containerEnv": {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility", "ODD": 'a "b" c'},
    "imagePullSecrets": [{"name": "registry"}],
    "podMonitor": {"enabled": True, "interval": "1m", "labels": {"release": "prometheus"}},
    "dashboard": {"enabled": True, "annotations": {"grafana_folder": "GPUs"}},
    "broker": {
        "metricsPort": 9431,
        "settings": {"slowdown": "2%", "idle-exit": "never", "max-swapped-out": 9000},
        "priorities": {"1000": "high", "1001": 3},
    },
    "policy": {"enabled": True, "highPriorityClasses": ["serving"]},
    "nodeSelector": {"gpu": "yes"},
    "podAnnotations": {"a": "b"},
}


@pytest.fixture(autouse=True)
def environment():
    if not paths.python("kubernetes").exists():
        pytest.skip("no Helm and no schemas: scripts/setup kubernetes")


def ask(**question):
    done = subprocess.run(
        [paths.python("kubernetes"), HELPER],
        input=json.dumps({"versions": VERSIONS, **question}),
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def one(documents, kind):
    (found,) = [document for document in documents if document["kind"] == kind]
    return found


def settings(documents):
    """The broker's weft.toml."""
    maps = [document["data"] for document in documents if document["kind"] == "ConfigMap"]
    (found,) = [data["weft.toml"] for data in maps if "weft.toml" in data]
    return found


def container(documents, name):
    spec = one(documents, "DaemonSet")["spec"]["template"]["spec"]
    (found,) = [each for each in [*spec["initContainers"], *spec["containers"]] if each["name"] == name]
    return found


@pytest.mark.parametrize("values", [{}, ALL], ids=["default", "everything"])
def test_what_the_chart_makes_is_by_the_schemas(values):
    told = ask(values=values, lint=True)
    assert told["refused"] is None and told["faults"] == [], told
    assert told["lint"]["errors"] == [], told["lint"]
    kinds = {document["kind"] for document in told["documents"]}
    more = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "PodMonitor"}
    assert kinds == {"DaemonSet", "ConfigMap", "ServiceAccount"} | (more if values else set())


def test_a_fault_would_be_found():
    told = ask(values={})
    broken = copy.deepcopy(told["documents"])
    spec = one(broken, "DaemonSet")["spec"]["template"]["spec"]
    spec["hostPid"] = spec.pop("hostPID")
    told = ask(texts=[json.dumps(one(broken, "DaemonSet"))])
    assert len(told["faults"]) == len(VERSIONS) and "hostPid" in told["faults"][0], told["faults"]
    monitor = one(ask(values=ALL)["documents"], "PodMonitor")
    monitor["spec"]["podMetricsEndpoints"][0] |= {"honorLabel": True, "interval": "fast"}
    told = ask(texts=[json.dumps(monitor)])
    assert len(told["faults"]) == 2, told["faults"]


@pytest.mark.parametrize(
    "values",
    [
        {"shares": 0},
        {"shares": "four"},
        {"share": 4},
        {"resource": "gpu"},
        {"gpus": ["0"]},
        {"folders": {"weft": "opt"}},
        {"broker": {"priorities": {"ann": "high"}}},
        {"broker": {"priorities": {"1000": "urgent"}}},
        {"policy": {"enabled": "yes"}},
        {"broker": {"podLabels": "yes"}},
        {"folders": {"containerLogs": "logs"}},
        {"severalGpus": 2},
        {"severalGpus": True, "shareMiB": 1024},
        {"severalGpus": True, "cdi": {"enabled": True}},
        {"podMonitor": {"enabled": True}},
        {"podMonitor": {"interval": "fast"}},
        {"podMonitor": {"labels": {"release": 1}}},
        {"dashboard": {"enabled": "yes"}},
        {"dashboard": {"labels": {"grafana_dashboard": 1}}},
        {"broker": {"settings": {"polcy": "weft"}}},
        {"broker": {"settings": {"policy": "wft"}}},
        {"broker": {"settings": {"slowdown": "a lot"}}},
        {"broker": {"settings": {"slowdown": 2}}},
        {"broker": {"settings": {"max-swapped-out": -1}}},
        {"broker": {"settings": {"metrics": "0.0.0.0:9"}}},
    ],
    ids=json.dumps,
)
def test_wrong_values_are_refused(values):
    assert ask(values=values)["refused"], values


def test_settings_of_the_chart_are_those_of_the_broker(folder):
    """Each key of weft.toml, with the sample's value: no more and no fewer."""
    text = (paths.ROOT / "deploy" / "weft.toml").read_text()
    section = text.split("[broker]")[1].split("[broker.weights]")[0]
    sample = tomllib.loads(re.sub(r"^# (?=[a-z-]+ = )", "", section.partition("\n")[2], flags=re.M))
    schema = json.loads((paths.ROOT / "deploy/kubernetes/chart/values.schema.json").read_text())
    known = schema["definitions"]["settings"]["properties"]
    # The chart has a value of its own for metrics. A shared broker starts no daemon of MPS.
    others = {"metrics", "mps"}
    assert sample.keys() - known.keys() == others and not known.keys() - sample.keys()
    sample = {key: value for key, value in sample.items() if key not in others}
    for given in (sample, {"slowdown": 0.02}, {"slowdown": "2.5%"}, {"idle-exit": "never"}):
        told = ask(values={"broker": {"settings": given}})
        assert told["refused"] is None, told["refused"]
        file = folder / "weft.toml"
        file.write_text(settings(told["documents"]))
        variables = {"WEFT_CONFIG": str(file), "PATH": "/usr/bin:/bin"}
        words = [paths.WEFT, "config", "show", "--shared"]
        done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=BOUND)
        assert done.returncode == 0, done.stderr


def test_what_is_mounted_is_there_and_what_is_there_is_mounted():
    for values in ({}, ALL):
        documents = ask(values=values)["documents"]
        spec = one(documents, "DaemonSet")["spec"]["template"]["spec"]
        containers = [*spec["initContainers"], *spec["containers"]]
        mounted = {mount["name"] for each in containers for mount in each["volumeMounts"]}
        assert mounted == {volume["name"] for volume in spec["volumes"]}
        assert spec["serviceAccountName"] == one(documents, "ServiceAccount")["metadata"]["name"]
        for each in containers:
            guard = each["securityContext"]
            assert guard["readOnlyRootFilesystem"] and not guard["allowPrivilegeEscalation"], each
            assert guard["capabilities"]["drop"] == ["ALL"] and not guard.get("privileged"), each
            assert each["resources"]["limits"]["memory"] and each["resources"]["requests"], each


@pytest.mark.parametrize("values", [{}, ALL], ids=["default", "everything"])
def test_the_broker_takes_what_the_chart_gives_it(values, folder):
    documents = ask(values=values)["documents"]
    file = folder / "weft.toml"
    file.write_text(settings(documents))
    command = [paths.WEFT, "config", "show", "--shared", "--json"]
    variables = {"WEFT_CONFIG": str(file), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=BOUND)
    assert done.returncode == 0, done.stderr
    if values:
        shown = done.stdout
        assert "2%" in shown and "9000" in shown and "1000" in shown, shown
    # Each option is one that the command has.
    broker = container(documents, "broker")
    helped = subprocess.run([paths.WEFT, "broker", "--help"], capture_output=True, text=True)
    for word in [*broker["command"], *broker["args"]]:
        assert not word.startswith("--") or word in helped.stdout, word


def test_the_broker_learns_its_nodes_name_and_its_pods_names():
    for values, are_known in [({}, True), ({"broker": {"podLabels": False}}, False)]:
        documents = ask(values=values)["documents"]
        broker = container(documents, "broker")
        variables = {variable["name"]: variable for variable in broker["env"]}
        node = variables["WEFT_NODE"]["valueFrom"]["fieldRef"]["fieldPath"]
        assert node == "spec.nodeName", node
        assert ("WEFT_CONTAINER_LOGS" in variables) == are_known, variables
        mounts = {mount["mountPath"]: mount for mount in broker["volumeMounts"]}
        assert ("/var/log/containers" in mounts) == are_known, mounts
        if are_known:
            assert variables["WEFT_CONTAINER_LOGS"]["value"] == "/var/log/containers"
            assert mounts["/var/log/containers"]["readOnly"]


def test_the_monitor_finds_the_brokers_and_the_dashboard_is_whole():
    documents = ask(values=ALL)["documents"]
    monitor = one(documents, "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    pod = one(documents, "DaemonSet")["spec"]["template"]
    labels = pod["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    # The alert rules select job="weft".
    assert labels[monitor["spec"]["jobLabel"]] == "weft"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (port,) = container(documents, "broker")["ports"]
    assert (endpoint["port"], port["containerPort"]) == (port["name"], 9431)
    assert endpoint["honorLabels"] and endpoint["interval"] == "1m"
    maps = {each["metadata"]["name"]: each for each in documents if each["kind"] == "ConfigMap"}
    board = maps["weft-dashboard"]
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(board["data"]["weft.json"]) == json.loads(DASHBOARD.read_text())


SEVERAL = {"severalGpus": True}


@pytest.mark.parametrize("values", [{}, ALL, SEVERAL], ids=["default", "everything", "several"])
def test_the_plugin_takes_what_the_chart_gives_it(values):
    if not cluster_kubernetes.PLUGIN.exists():
        pytest.skip("the device plugin is not built: scripts/cluster kubernetes --check builds it")
    documents = ask(values=values)["documents"]
    for name in ("device-plugin", "install"):
        given = container(documents, name)
        # It ends at the first wrong word; with `--help` last it prints the plan instead.
        words = [*given["command"][1:], *given["args"]]
        wrong = [*words, "--no-such-option"]
        run = {"capture_output": True, "text": True, "timeout": BOUND}
        done = subprocess.run([cluster_kubernetes.PLUGIN, *wrong], **run)
        assert done.returncode == 2, done
        (line, *_) = done.stderr.splitlines()
        assert "'--no-such-option'" in line, line


# A container of the machine's own files, over which it writes elsewhere. Its mounts of CDI files
# have fixed places, so the folder is made if it is missing, and is this one's own.
PODMAN = """set -e
made=; [ -d /run/cdi ] || { mkdir /run/cdi; made=yes; }
trap '[ -z "$made" ] || { umount /run/cdi; rmdir /run/cdi; }' EXIT
mount -t tmpfs tmpfs /run/cdi
[ -z "$FILE" ] || cp "$FILE" /run/cdi/
podman --root "$HERE/store" --runroot "$HERE/run" --cgroup-manager cgroupfs --runtime runc \\
    run --rm --network none \\
    --ulimit nofile=$(ulimit -Hn):$(ulimit -Hn) --ulimit nproc=1000:1000 "$@" &
# podman hands the signal on, and ends when the container has ended.
trap 'kill -TERM $!' TERM
code=0
while kill -0 $! 2>/dev/null; do code=0; wait $! || code=$?; done
exit $code
"""


def podman(folder, *words, file=""):
    """A container as a job, which ends with its folder's scene. `file`: a CDI file for it."""
    podman.number += 1
    own = {"HERE": str(folder / "podman"), "FILE": str(file)}
    environment = {**jobs.clean_environment(), **own}
    command = ["unshare", "--mount", "sh", "-c", PODMAN, "sh", *map(str, words)]
    name = f"podman{podman.number}"
    return jobs.Job(command, environment=environment, folder=folder, name=name)


podman.number = 0
# The files of this machine, over which a container writes elsewhere.
ROOTFS = ["--rootfs", "/:O"]


@pytest.fixture
def node(scene):
    """A node's folders, and a CDI file, as the DaemonSet leaves them there."""
    if not cluster_kubernetes.PLUGIN.exists():
        pytest.skip("the device plugin is not built: scripts/cluster kubernetes --check builds it")
    if shutil.which("podman") is None or shutil.which("runc") is None:
        pytest.skip("no podman or no runc (Debian: podman, runc)")
    plain = podman(scene.folder, *ROOTFS, "/bin/true")
    if plain.wait(BOUND):
        pytest.skip(f"podman starts no container here: {plain.explain(1)}")
    made = Node(scene)
    yield made
    made.close()


class Node:
    """Folders of a node, containers on it, and the plugin's files there."""

    def __init__(self, scene):
        self.scene = scene
        # Containers of other users look through it.
        scene.folder.chmod(0o755)
        names = ("weft", "socket", "state", "kubelet", "device", "cdi", "logs")
        self.folders = {name: scene.folder / f"node-{name}" for name in names}
        for folder in self.folders.values():
            folder.mkdir(mode=0o755)
        self.folders["device"].chmod(0o777)
        self.socket = self.folders["socket"] / "broker.sock"
        # The simulated GPU's folder, and the module that the job imports.
        self.variables = {**scene.device.environment(), **scene.device.weft_environment()}
        self.variables |= {"SIMGPU_SOCKET": str(self.folders["device"] / "device.sock")}
        self.variables |= {"SIMGPU_USERS": "all", "PYTHONPATH": str(paths.CLIENTS / "guest")}
        run = {"env": {**jobs.clean_environment(), **self.variables}}
        run |= {"check": True, "timeout": BOUND}
        plugin, weft = cluster_kubernetes.PLUGIN, self.folders["weft"]
        subprocess.run([plugin, "install", "--from", paths.TARGET / "weft", "--to", weft], **run)
        words = [plugin, "cdi", "--dir", self.folders["cdi"], "--weft", paths.WEFT]
        words += ["--weft-folder", weft, "--socket", self.socket, *self.options()]
        subprocess.run(words, **run)
        self.file = self.folders["cdi"] / "weft.dev-gpu.json"
        self.uuid = json.loads(self.file.read_text())["devices"][0]["name"]
        self.running = []
        # Each container has a simulated GPU of its own, by the same name: the one of the plugin
        # was root's.
        for file in self.folders["device"].iterdir():
            file.unlink()

    def options(self):
        pairs = self.variables.items()
        return [word for name, value in pairs for word in ("--env", f"{name}={value}")]

    def start(self, *words):
        job = podman(self.scene.folder, *words, file=self.file)
        self.running.append(job)
        return job

    def pod(self, *options, uid=0, name=None):
        """The row of a job in a container with a share. `name`: the container's part of the
        kubelet's link to its log.
        """
        job = [python(), cluster_kubernetes.JOB, self.folders["weft"] / "weft"]
        given = ["--device", f"weft.dev/gpu={self.uuid}", "--user", f"{uid}:{uid}"]
        file, logs = self.scene.folder / "container-id", self.folders["logs"]
        if name:
            given += ["--cidfile", file, "--env", f"WAIT_FOR={logs / 'linked'}"]
            given += ["--volume", f"{logs}:{logs}:ro"]
        done = self.start(*given, *options, *ROOTFS, *job)
        if name:
            there = lambda: file.exists() and len(file.read_text()) == 64  # noqa: E731
            assert jobs.wait_until(lambda: there() or not done.running(), BOUND), done.explain()
            (logs / f"{name}-{file.read_text()}.log").symlink_to("/var/log/pods/gone")
            (logs / "linked").touch()
        assert done.wait(BOUND) == 0, done.explain()
        told = json.loads(done.stdout())
        assert told["answer"] == 49 and told["visible"] == self.uuid, told
        assert told["writable"] == [False, False], told
        (client,) = told["clients"]
        assert client["launches"] == 50, told
        return client

    def close(self):
        for job in self.running:
            job.terminate(BOUND)


def test_a_container_is_given_a_gpu_by_the_cdi_file(scene, node):
    """The same file that the plugin names to the kubelet, taken by a container engine."""
    scene.broker.socket = node.socket
    scene.broker.start()
    client = node.pod("--env", "WEFT_PRIORITY=high", "--env", "WEFT_NAME=service")
    assert (client["name"], client["priority"]) == ("service", 0), client
    # An annotation that is not there.
    assert node.pod("--env", "WEFT_PRIORITY=")["priority"] == 5
    # Without the device it is a container like any other.
    plain = node.start(*ROOTFS, "/bin/sh", "-c", "echo $LD_PRELOAD")
    assert (plain.wait(BOUND), plain.stdout()) == (0, b"\n"), plain.explain()


def test_the_first_pod_finds_weft(scene, node):
    """Its command, in a container with a share: every way to the driver leads to weft."""
    scene.broker.socket = node.socket
    scene.broker.start()
    (first,) = ask(files=[str(DEPLOY / "examples" / "first.yaml")])["documents"]
    (given,) = first["spec"]["containers"]
    # The plugin's folder is this scene's, and not /opt/weft.
    command = [word.replace("/opt/weft", str(node.folders["weft"])) for word in given["command"]]
    done = node.start("--device", f"weft.dev/gpu={node.uuid}", *ROOTFS, *command)
    assert done.wait(BOUND) == 0, f"{done.explain()}{done.stdout().decode()}"
    rows = done.stdout().decode().splitlines()
    ways = [row for row in rows if " interception: " in row]
    assert len(ways) >= 5 and all(row.startswith("ok ") for row in ways), rows
    assert any(row.startswith("ok ") and str(node.socket) in row for row in rows), rows


def test_the_broker_needs_no_more_rights_than_the_chart_gives(node):
    """Its container as the chart has it: rights, mounts, options, settings, and read-only files."""
    folders = {name: str(node.folders[name]) for name in ("weft", "socket", "state", "kubelet")}
    folders["containerLogs"] = str(node.folders["logs"])
    broker = {"priorities": {"61000": "high"}, "settings": {"slowdown": "2%"}}
    documents = ask(values={"folders": folders, "broker": broker})["documents"]
    place = node.scene.folder / "settings"
    place.mkdir()
    (place / "weft.toml").write_text(settings(documents))
    spec = one(documents, "DaemonSet")["spec"]["template"]["spec"]
    given = container(documents, "broker")
    guard = given["securityContext"]
    assert spec["hostPID"] and guard["seccompProfile"] == {"type": "RuntimeDefault"}
    words = ["--pid", "host", "--read-only", "--read-only-tmpfs=false"]
    words += ["--user", guard["runAsUser"], "--security-opt", "no-new-privileges"]
    words += [word for name in guard["capabilities"]["drop"] for word in ("--cap-drop", name)]
    words += [word for name in guard["capabilities"]["add"] for word in ("--cap-add", name)]
    places = {each["name"]: each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each}
    places["settings"] = place
    for mount in given["volumeMounts"]:
        mode = ":ro" if mount.get("readOnly") else ""
        words += ["--volume", f"{places[mount['name']]}:{mount['mountPath']}{mode}"]
    # Its files are read-only, and the simulated GPU writes next to its socket.
    (node.scene.folder / "own-device").mkdir()
    words += ["--volume", f"{node.scene.folder / 'own-device'}:{node.folders['device']}"]
    for variable in given["env"]:
        # `valueFrom`: the node's name, which the kubelet fills in.
        words += ["--env", f"{variable['name']}={variable.get('value', 'node-7')}"]
    # The image has it in /usr/bin.
    command = [node.folders["weft"] / "weft", *given["command"][1:], *given["args"]]
    words += ["--volume", f"{node.folders['weft']}:{node.folders['weft']}:ro"]
    broker = node.start(*words, *node.options(), *ROOTFS, *command)
    ready = jobs.wait_until(lambda: jobs.socket_answers(str(node.socket)), BOUND)
    assert ready and broker.running(), broker.explain()
    # Users in the settings may have more, others 5. Root of a container is one of the others.
    high = ["--env", "WEFT_PRIORITY=high"]
    assert node.pod(*high)["priority"] == 5
    assert node.pod(*high, uid=61000)["priority"] == 0
    assert node.pod(*high, uid=61001)["priority"] == 5
    # The runtime's control group has the container's id, and the kubelet's link its names.
    named = {"namespace": "team-a", "pod": "train-0", "container": "main"}
    assert node.pod(name="train-0_team-a_main")["pod"] == named
    assert broker.terminate(BOUND) == 0, broker.explain()
    assert list(node.folders["state"].iterdir()), "the history is on the node"


def test_the_images_commands_name_what_they_make():
    """The folders that the file copies are those that its commands make. The page has the same
    commands."""
    package, plugin, build = cluster_kubernetes.image_commands()
    for command in (package, plugin, build):
        assert f"\n$ {command}\n" in PAGE.read_text(), command
    text = cluster_kubernetes.CONTAINERFILE.read_text()
    found = dict(re.findall(r"^ARG (\w+)=(\S+)$", text, re.M))
    assert package == "scripts/package" and (paths.ROOT / package).exists()
    assert found["TARBALL"] == str(packages.folder().relative_to(paths.ROOT))
    crate = plugin.partition("--manifest-path ")[2].removesuffix("Cargo.toml")
    assert found["PLUGIN"] == f"{crate}target/release/weft-device-plugin"
    assert (paths.ROOT / crate / "src" / "main.rs").exists()
    assert f"-t weft:{packages.version()} -f deploy/kubernetes/Containerfile ." in build


def test_the_images_containers_serve_a_job(node):
    """`install` and `broker` of the DaemonSet from the image, with the chart's own commands."""
    image = cluster_kubernetes.IMAGE
    if not image.exists():
        pytest.skip("no image: scripts/cluster kubernetes --check builds it")
    folders = {name: str(node.folders[name]) for name in ("weft", "socket", "state", "kubelet")}
    documents = ask(values={"folders": folders, "broker": {"podLabels": False}})["documents"]
    install, given = container(documents, "install"), container(documents, "broker")
    for file in node.folders["weft"].iterdir():
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    mount = ["--volume", f"{node.folders['weft']}:/host/weft", "--read-only", "--cap-drop", "ALL"]
    done = node.start(*mount, f"docker-archive:{image}", *install["command"], *install["args"])
    assert done.wait(BOUND) == 0, done.explain()
    assert (node.folders["weft"] / "libweft.so").exists()
    helped = node.start(f"docker-archive:{image}", "/usr/bin/weft-device-plugin", "--version")
    assert helped.wait(BOUND) == 0, helped.explain()
    assert helped.stdout().decode().split()[-1] == packages.version()
    words = ["--pid", "host", "--read-only"]
    for name in ("socket", "state"):
        words += ["--volume", f"{node.folders[name]}:{node.folders[name]}"]
    for variable in given["env"]:
        words += ["--env", f"{variable['name']}={variable.get('value', 'node-7')}"]
    broker = node.start(*words, f"docker-archive:{image}", *given["command"], *given["args"])
    ready = jobs.wait_until(lambda: jobs.socket_answers(str(node.socket)), BOUND)
    assert ready and broker.running(), broker.explain()
    assert node.pod("--env", "WEFT_NAME=service")["name"] == "service"
    assert broker.terminate(BOUND) == 0, broker.explain()


def test_the_policy_refuses_what_weft_would_not_understand():
    def pod(annotations=None, priority_class=None):
        spec = {"priorityClassName": priority_class} if priority_class else {}
        return {"metadata": {"annotations": annotations} if annotations else {}, "spec": spec}

    def priority(text, priority_class=None):
        return pod({"weft.dev/priority": text}, priority_class)

    fine = [pod(), pod({"other": "x"}), priority("low"), priority("7"), pod(None, "batch")]
    fine += [priority("high", "serving"), priority("0", "serving")]
    fine += [pod({"weft.dev/memory": text}) for text in ("12GiB", "1.5GB", "500MB")]
    wrong = [priority("urgent"), priority("10"), priority("highest"), priority("high\n")]
    wrong += [pod({"weft.dev/memory": text}) for text in ("12", "much", "12 GiB of it", "-1GiB")]
    above = [priority("high"), priority("4"), priority("0", "batch")]
    told = ask(values=ALL, pods=[*fine, *wrong, *above])["verdicts"]
    assert told[: len(fine)] == [None] * len(fine), told
    for said in told[len(fine) : len(fine) + len(wrong)]:
        assert said and ("a name: high" in said or "12GiB" in said), told
    for said in told[-len(above) :]:
        assert said == "weft.dev/priority: 0 to 4 is for pods of priority class serving", told
    # A pod that is older than the policy can be updated, and so end.
    kept = [(pod, {**pod, "metadata": {**pod["metadata"], "finalizers": []}}) for pod in (*wrong, *above)]
    changed = [(pod(), priority("high")), (priority("low"), priority("urgent"))]
    told = ask(values=ALL, updates=[*kept, *changed])["verdicts"]
    assert told[: len(kept)] == [None] * len(kept), told
    assert all(told[len(kept) :]), told
    # Without classes all pods may have any priority.
    anybody = {"policy": {"enabled": True}}
    assert ask(values=anybody, pods=above)["verdicts"] == [None] * len(above)


def test_the_plain_manifest_is_the_chart_with_its_defaults():
    (made, plain) = (ask(values={}), ask(files=[str(DEPLOY / "weft.yaml")]))
    assert plain["faults"] == [], plain["faults"]
    namespace, *rest = plain["documents"]
    assert namespace["kind"] == "Namespace"
    key = lambda document: document["kind"]  # noqa: E731
    assert sorted(rest, key=key) == sorted(made["documents"], key=key)


def test_examples_are_by_the_schemas():
    told = ask(files=[str(file) for file in sorted((DEPLOY / "examples").glob("*.yaml"))])
    assert told["documents"] and told["faults"] == [], told["faults"]
    # And so are the page's examples.
    texts = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    whole = [text for text in texts if "apiVersion" in text]
    told = ask(texts=whole)
    assert whole and told["faults"] == [], told["faults"]
