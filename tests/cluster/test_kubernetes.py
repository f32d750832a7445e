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
import socket
import subprocess
import tomllib
import urllib.request

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


def nested(path, value):
    """Values of the chart, from a path with slashes: a user `*` or a variable may be a key."""
    for name in reversed(path.split("/")):
        value = {name: value}
    return value


def refusals(rows):
    """For each path and value of the chart, the line that refuses it, or None."""
    return ask(several=[nested(path, value) for path, value, *_ in rows])["refusals"]


# Wrong values. Kubernetes would refuse some of them, the broker and the plugin the others.
WRONG = [
    ("shares", 0),
    ("shares", "four"),
    ("share", 4),
    ("folders", {"weft": "opt"}),
    ("folders", {"weft": "/opt/../weft"}),
    ("folders", {"weft": "/opt/we ft"}),
    ("folders", {"weft": "/"}),
    ("folders", {"state": "/run/weft"}),
    ("folders", {"state": "/etc/weft"}),
    *[("folders", {"state": place}) for place in ("/run/weft/state", "/opt/weft/state", "/var/lib", "/dev/shm")],
    *[("folders", {"weft": place}) for place in ("/usr", "/usr/lib", "/opt", "/var", "/lib64", "/etc/x", "/boot")],
    ("folders", {"socket": "/run"}),
    ("folders", {"weft": "/srv/w", "kubelet": "/srv/w/kubelet"}),
    ("gpus", [f"{GPU}=nvidia0", f"{GPU[:-1]}2=nvidia0"]),
    ("gpus", [f"{GPU}=nvidia0", f"{GPU[:-1]}2=/dev/nvidia0"]),
    # The broker takes it. The kubelet would start it again, with back-off.
    ("broker/settings/idle-exit", 600),
    ("folders", {"containerLogs": "logs"}),
    ("folders", {"kubelet": "/" + "x" * 72}),
    ("folders", {"kubelet": "/" + "x" * 71}),
    ("policy/enabled", "yes"),
    ("broker/podLabels", "yes"),
    ("broker/metricsHost", "::"),
    ("broker/settings/metrics", "0.0.0.0:9"),
    ("broker/settings/trace", "/tmp/trace"),
    ("severalGpus", 2),
    ("", {"severalGpus": True, "shareMiB": 1024}),
    ("", {"severalGpus": True, "cdi": {"enabled": True}}),
    ("", {"shareMiB": 1024, "containerEnv": {"WEFT_MEMORY": "1GiB"}}),
    ("containerEnv/WEFT_PRIORITY", 3),
    ("dra/className", "a..b"),
    ("podMonitor/enabled", True),
    ("dra/parameters", {"priority": 3}),
    ("broker/priorities", {"0": "high"}),
    ("policy/highPriorityClasses", ["critical"]),
    ("podMonitor/interval", "fast"),
    ("podMonitor/labels", {"release": 1}),
    ("podAnnotations", {"a b": "c"}),
    ("podAnnotations", {"weft.dev/settings": "c"}),
    ("podMonitor/labels", {"app.kubernetes.io/name": "c"}),
    ("dashboard/labels", {"app.kubernetes.io/instance": "c"}),
    ("dashboard/enabled", "yes"),
    ("dashboard/labels", {"grafana_dashboard": 1}),
    ("", {"dra": {"enabled": True}, "severalGpus": True}),
    *[("image/repository", f"registry.example/{end}") for end in ("weft:0.2.0", "Weft", "weft@sha256:0", "")],
    ("image/repository", "https://registry.example/weft"),
    ("image/tag", "a b"),
    ("imagePullSecrets", [{"secret": "x"}]),
    ("imagePullSecrets", [{"name": "A b"}]),
    ("nodeSelector", {"gpu": True}),
    ("nodeSelector", {"a b": "yes"}),
    ("nodeSelector", {"gpu": "a b"}),
    ("tolerations", [{"key": "gpu", "operator": "Is"}]),
    ("tolerations", [{"key": "a b"}]),
    ("affinity", {"node": {}}),
    ("priorityClassName", "A B"),
    ("runtimeClassName", "Nvidia"),
    ("policy/highPriorityClasses", ["A B"]),
    ("broker/resources", {"limits": {"memory": "much"}}),
    ("plugin/resources", {"limit": {"memory": "1Gi"}}),
    ("containerEnv/WEFT_PRIORTY", "3"),
    ("containerEnv/WEFT_MODE", "of"),
    # An empty key of YAML. Helm takes it out of the values.
    *[(name, None) for name in ("image", "dra", "cdi", "folders", "broker", "plugin", "policy")],
    *[(name, None) for name in ("podMonitor", "dashboard", "shares", "shareMiB", "resource")],
    *[(path, None) for path in ("folders/kubelet", "cdi/folder", "dra/className", "image/repository")],
]


def test_wrong_values_are_refused_in_a_line_that_names_them():
    rows = [(path, value) for path, value in WRONG if path]
    wrong = [nested(*row) for row in rows] + [value for path, value in WRONG if not path]
    for values, refused in zip(wrong, ask(several=wrong)["refusals"]):
        assert refused, values
        *_, line = refused.splitlines()
        # Neither a pattern of the schema nor a fault of the templates.
        assert not re.search(r"\^|allOf|nil pointer|invalid value|false schema", refused), (values, refused)
        assert any(name in line for name in values), (values, refused)


def sections(schema, part, place=()):
    """Each table of the chart's values that has names of its own, with its place and its names."""
    if "$ref" in part:
        part = schema["definitions"][part["$ref"].rpartition("/")[2]]
    below = part.get("properties", {})
    if below and part.get("additionalProperties") is not False:
        yield "/".join(place), list(below)
    for name, value in below.items():
        yield from sections(schema, value, (*place, name))


def test_an_unknown_name_is_refused_with_the_names_that_there_are():
    schema = json.loads((paths.ROOT / "deploy/kubernetes/chart/values.schema.json").read_text())
    found = list(sections(schema, schema))
    assert len(found) == 12, found
    rows = [(f"{place}/nme".strip("/"), 1) for place, _ in found]
    for (path, _), (place, names), refused in zip(rows, found, refusals(rows)):
        line = f"{path.replace('/', '.')}: no such value: {place.replace('/', '.') or 'values.yaml'} has "
        assert refused and line in refused, (path, refused)
        assert sorted(refused.partition(line)[2].split(", ")) == sorted(names), (path, refused)


# Right values that a rule could miss.
RIGHT = [
    *[("image/repository", f"{name}/weft") for name in ("localhost", "registry.example:5000/a__b/c.d-e")],
    ("image/tag", "0.2.0-rc1"),
    ("nodeSelector", {"weft.dev/node": "yes", "empty": ""}),
    ("tolerations", [{"operator": "Exists"}]),
    ("tolerations", [{"key": "gpu", "operator": "Equal", "value": "x", "effect": "NoExecute", "tolerationSeconds": 30}]),
    ("broker/resources", {"limits": {"memory": 1073741824, "hugepages-2Mi": "4Mi"}, "requests": {"cpu": 0.5}}),
    ("plugin/resources", {"limits": {"memory": "1e9", "cpu": 2}}),
    ("dra", {"enabled": True, "parameters": {"priority": 3, "outcome": False}}),
    ("podAnnotations", {"prometheus.io/scrape": "true"}),
    ("broker/settings/slowdown", 0.00001),
]


def test_right_values_are_taken():
    assert list(zip(RIGHT, refusals(RIGHT))) == [(row, None) for row in RIGHT]


def test_empty_lists_and_tables_are_taken():
    empty = ["broker/settings", "broker/priorities", "broker/resources", "plugin/resources", "containerEnv", "gpus"]
    empty += ["dra/parameters", "nodeSelector", "affinity", "tolerations", "podAnnotations", "imagePullSecrets"]
    empty += ["policy/highPriorityClasses", "dashboard/labels", "podMonitor/labels", "image/tag", "runtimeClassName"]
    rows = [(path, None) for path in empty]
    assert list(zip(rows, refusals(rows))) == [(row, None) for row in rows]


# Keys of weft.toml as the chart has them below `broker`, and whether the broker takes the value.
FIGURES = ("delay-bound", "longest-wait", "max-swapped-out", "swapped-out-limit", "switch-cost")
SETTINGS = [
    *[("settings/policy", value, value == "fikit") for value in ("fikit", "wft", 1)],
    *[("settings/slowdown", value, True) for value in ("2%", "2.5 %", "0.02", 0.02, 0, "0", "100%")],
    *[("settings/slowdown", value, False) for value in (1, "1", 1.5, "5", "200%", "100.5%", "-1%", "a lot")],
    *[(f"settings/{name}", value, True) for name in FIGURES for value in (0, 500, 10**15)],
    *[(f"settings/{name}", value, False) for name in FIGURES for value in (-1, 1.5, "500us", True)],
    *[("settings/idle-exit", value, True) for value in ("never",)],
    *[("settings/idle-exit", value, False) for value in ("60s", "later", -1, 1.5)],
    *[("settings/checkpoint", value, value == "allow") for value in ("allow", "on", True)],
    *[("settings/trace", value, value != "trace") for value in ("/var/lib/weft/trace", "trace")],
    *[("settings/group", value, True) for value in (0, 1000, 4294967295)],
    *[("settings/group", value, False) for value in (4294967296, -1, "no-such-group")],
    *[("settings/log", value, value == "debug") for value in ("debug", "loud", 3)],
    ("settings/polcy", "weft", False),
    *[("priorities/1000", value, True) for value in ("high", "High", "IDLE", 3, "3")],
    *[("priorities/1000", value, False) for value in ("urgent", 10, -1)],
    *[(f"priorities/{user}", "high", False) for user in ("4294967296", "-1", "no-such-user", "*")],
    ("priorities/4200000000", "high", True),
    *[("weights/1000", value, value == 3) for value in (3, 0, 101, 1.5, "much")],
    *[(f"weights/{user}", 3, False) for user in ("4294967296", "no-such-user", "*")],
    *[("jobs/*", value, value <= 4096) for value in (0, 4, 4096, 4097)],
    *[("jobs/1000", value, False) for value in (-1, 1.5, "some")],
    *[(f"jobs/{user}", 4, False) for user in ("4294967296", "no-such-user")],
    *[("memory/*", value, True) for value in ("24GiB", "500MB", "1.5T", "0.5G", "512Mi", "9TiB", "90T", "908T", "0.5T", "12gb")],
    *[("memory/1000", value, False) for value in ("0GiB", "much", "12", "-1GiB", "2000TiB", 12)],
    *[(f"memory/{user}", "24GiB", False) for user in ("4294967296", "no-such-user")],
]


def test_the_chart_refuses_what_the_broker_refuses(folder):
    """Each key of the chart and of weft.toml's [broker], with right and wrong values."""
    text = (paths.ROOT / "deploy" / "weft.toml").read_text()
    sample = tomllib.loads(re.sub(r"^# (?=\S+ = )", "", text, flags=re.M))["broker"]
    tables = {name for name, value in sample.items() if isinstance(value, dict)}
    schema = json.loads((paths.ROOT / "deploy/kubernetes/chart/values.schema.json").read_text())
    known = schema["definitions"]["settings"]["properties"].keys()
    # The chart has values of its own for metrics. A shared broker starts no daemon of MPS.
    assert sample.keys() - tables - known == {"metrics", "mps"} and not known - sample.keys()
    assert tables <= schema["properties"]["broker"]["properties"].keys()
    tried = {(path.split("/")[1 if path.startswith("settings/") else 0], good) for path, _, good in SETTINGS}
    assert {(name, good) for name in known | tables for good in (True, False)} <= tried
    rows = [(f"broker/{path}", value) for path, value, _ in SETTINGS]
    for (path, value, good), refused in zip(SETTINGS, refusals(rows)):
        section, _, key = path.partition("/")
        file = folder / "weft.toml"
        head = "[broker]" if section == "settings" else f"[broker.{section}]"
        file.write_text(f"{head}\n{json.dumps(key)} = {json.dumps(value)}\n")
        variables = {"WEFT_CONFIG": str(file), "PATH": "/usr/bin:/bin"}
        words = [paths.WEFT, "config", "show", "--shared"]
        done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=BOUND)
        assert (done.returncode == 0) == good, (path, value, done.stderr)
        assert (refused is None) == good, (path, value, refused)
        # One line names the place.
        if refused:
            named = re.compile(rf"broker[./]{section}")
            places = [line for line in refused.splitlines() if named.search(line)]
            assert len(places) == 1 and "^" not in refused, refused


def test_a_folder_is_as_short_as_the_brokers_socket_needs(folder):
    wrong = folder / "weft.toml"
    wrong.write_text("not toml")
    long = lambda bytes_: f"{folder}/{'x' * (bytes_ - len(str(folder)) - 1)}"  # noqa: E731
    for bytes_, good in [(91, True), (92, False)]:
        (refused,) = refusals([("folders", {"socket": long(bytes_)})])
        assert (refused is None) == good, refused
        # A broker that ends at its settings has found the socket's place fit.
        words = [paths.WEFT, "broker", "--shared", "--socket", f"{long(bytes_)}/broker.sock"]
        environment = {**jobs.clean_environment(), "WEFT_CONFIG": str(wrong)}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=BOUND)
        assert done.returncode == (2 if good else 1), done.stderr
        assert ("at most 103 bytes" in done.stderr) != good, done.stderr


# Options of the plugin with the chart's value, and whether the plugin takes it.
ENV = {
    "WEFT_PRIORITY": (("high", "High", "3"), ("urgent", "10", "")),
    "WEFT_SLOWDOWN": (("2%", "0.02"), ("1", "150%")),
    "WEFT_AT_LEAST": (("30%", "0.3"), ("1", "101%")),
    "WEFT_SLO": (("50ms", "1.5s", "0.5s", "1us", "3600s", "0.001ms"), ("0ms", "0.5us", "3601s", "50", "1h")),
    "WEFT_MEMORY": (("12GiB", "12Gi", "8GiB:20GiB", "500MB", "9TiB", "90T:900t"), ("0GiB", "much", "12", "2000T")),
    "WEFT_EVICT_IDLE": (("10m", "90s", "2h", "5"), ("0s", "10 years", "")),
    "WEFT_LONGEST_EVICTED": (("30m", "0.5s"), ("0", "soon")),
    "WEFT_WAIT": (("60", "no"), ("soon", "1.5")),
    "WEFT_DURATION": (("short",), ("brief",)),
    "WEFT_BACKING": (("movable",), ("mobile",)),
    "WEFT_QUEUE": (("off",), ("maybe",)),
    "WEFT_OUTCOME": (("off",), ("maybe",)),
    "WEFT_DEVICE_PRIORITIES": (("off",), ("1",)),
    "WEFT_LOG": (("debug",), ("loud",)),
    "WEFT_MODE": (("off",), ("of",)),
    "WEFT_PRIORTY": ((), ("3",)),
    "WEFT_PROFILE": (("/profiles/resnet",), ("a\nb",)),
    "OTHER": (("x", "", "a b"), ()),
    "A B": ((), ("x",)),
    "1A": ((), ("x",)),
    "LD_PRELOAD": ((), ("/x.so",)),
    "WEFT_SOCKET": ((), ("/x.sock",)),
    "WEFT_AUTOSTART": ((), ("1",)),
    "NVIDIA_VISIBLE_DEVICES": ((), ("all",)),
    "CUDA_VISIBLE_DEVICES": ((), ("0",)),
}
FIELDS = ("priority", "slowdown", "slo", "profile", "backing", "outcome")


def test_the_chart_refuses_what_the_plugin_refuses():
    if not cluster_kubernetes.PLUGIN.exists():
        pytest.skip("the device plugin is not built: scripts/cluster kubernetes --check builds it")
    rows = []
    for name, values in ENV.items():
        for value, good in [(value, at == 0) for at in (0, 1) for value in values[at]]:
            words = ["--env", f"{name}={value}"]
            rows.append((f"containerEnv/{name}", value, good, words))
            field = name.removeprefix("WEFT_").lower()
            # A parameter has the rule of its variable, except that an empty one is wrong.
            if field in FIELDS and value:
                rows.append(("dra", {"enabled": True, "parameters": {field: value}}, good, words))
    uuid = GPU.removeprefix("GPU-")
    rows += [("gpus", [value], good, ["--gpus", value]) for value, good in [(f"{GPU}=nvidia0", True), (GPU, True)]]
    same = (GPU.upper(), uuid, uuid.replace("-", ""), f"{uuid.upper()}=/dev/nvidia0")
    rows += [("gpus", [value], True, ["--gpus", value]) for value in same]
    rows += [("gpus", [value], False, ["--gpus", value]) for value in ("0", f"GPU-{'-' * len(uuid)}", f"{GPU}=../sda")]
    for value, good in [("weft.dev/gpu-share", True), ("gpu", False), ("nvidia.kubernetes.io/gpu", False)]:
        rows.append(("resource", value, good, ["--resource", value]))
    rows.append(("resource", f"{'a' * 64}/x", False, ["--resource", f"{'a' * 64}/x"]))
    rows += [("shares", value, value <= 1024, ["--shares", str(value)]) for value in (1024, 1025)]
    rows += [("shareMiB", value, value <= 1 << 30, ["--share-mib", str(value)]) for value in (1 << 30, 1 + (1 << 30))]
    for (path, value, good, words), refused in zip(rows, refusals(rows)):
        # Values are checked in order, and the last one is wrong.
        words = [cluster_kubernetes.PLUGIN, "serve", *words, "--broker-period-ms", "0"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=BOUND)
        line = done.stderr.splitlines()[0]
        assert done.returncode == 2 and ("--broker-period-ms" in line) == good, (words, line)
        assert (refused is None) == good, (path, value, refused)
    words = [cluster_kubernetes.PLUGIN, "serve", "--gpus", f"{GPU}=nvidia0,{GPU[:-1]}2=/dev/nvidia0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=BOUND)
    line = "weft-device-plugin: --gpus: two GPUs have the device node nvidia0\n"
    assert (done.returncode, done.stderr) == (1, line), done


def test_what_a_cluster_is_too_old_for_is_one_line():
    for version, values, said in [
        ("1.33", {"dra": {"enabled": True}}, "dra.enabled needs Kubernetes 1.34"),
        ("1.34", {"dra": {"enabled": True}}, None),
        ("1.29", {"policy": {"enabled": True}}, "policy.enabled needs Kubernetes 1.30"),
        ("1.30", {"policy": {"enabled": True}}, None),
    ]:
        refused = ask(values=values, cluster=version)["refused"]
        assert refused is None if said is None else said in refused, (version, values, refused)


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


def test_metrics_may_be_on_ipv6(scene):
    values = {"broker": {"metricsPort": 9431, "metricsHost": "[::]"}}
    args = container(ask(values=values)["documents"], "broker")["args"]
    address = args[args.index("--metrics") + 1]
    assert address == "[::]:9431"
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as free:
        port = free.getsockname()[1]
    scene.broker.arguments += ["--metrics", address.replace("9431", str(port))]
    scene.broker.start()
    for host in ("[::1]", "127.0.0.1"):
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=BOUND) as page:
            assert b"weft_" in page.read()


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
        # It ends at the first wrong value, which is the last one.
        wrong = ["--broker-period-ms", "0"] if name == "device-plugin" else ["--no-such-option"]
        words = [*given["command"][1:], *given["args"], *wrong]
        run = {"capture_output": True, "text": True, "timeout": BOUND}
        done = subprocess.run([cluster_kubernetes.PLUGIN, *words], **run)
        assert done.returncode == 2, done
        (line, *_) = done.stderr.splitlines()
        assert f"'{wrong[0]}" in line, line


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


PRIORITIES = ["low", "7", "9", "0", "High", " IDLE ", "007", "+3", "high\n"]
PRIORITIES += ["urgent", "10", "highest", "-1", "3.5", "1 0", "+ 3", "hi"]
AMOUNTS = ["12GiB", "1.5GB", "500MB", "12Gi", "12G", "12g", "1073741824", "1048576", "12b", "0.5T", "5.GiB", ".5 gib"]
AMOUNTS += [" 12 GiB ", "+5GiB", "8GiB:20GiB", "8g:8GiB", "8GiB: 20GiB", "900T"]
AMOUNTS += ["12", "1048575", "0", "0.5", "0GiB", "0.0TB", "much", "12 GiB of it", "-1GiB", "8GiB:", ":8GiB"]
AMOUNTS += ["8GiB:4GiB", "8GB:7.9GB", "8GiB:20", "8GiB:20GiB:30GiB", "2000TiB", "12XB", "1e3GiB", "GiB", ".GiB", "0.5b"]


def test_the_policy_refuses_what_weft_refuses():
    def pod(annotations=None, priority_class=None):
        spec = {"priorityClassName": priority_class} if priority_class else {}
        return {"metadata": {"annotations": annotations} if annotations else {}, "spec": spec}

    def priority(text, priority_class=None):
        return pod({"weft.dev/priority": text}, priority_class)

    def memory(text):
        return pod({"weft.dev/memory": text})

    fine = [pod(), pod({"other": "x"}), pod(None, "batch"), priority("high", "serving"), priority("0", "serving")]
    wrong = []
    for variable, made, texts in [
        ("WEFT_PRIORITY", lambda text: priority(text, "serving"), PRIORITIES),
        ("WEFT_MEMORY", memory, AMOUNTS),
    ]:
        for text in texts:
            told = subprocess.run(
                [paths.WEFT, "run", "--check", f"--{variable.removeprefix('WEFT_').lower()}={text}", "true"],
                env=jobs.clean_environment(), capture_output=True, timeout=BOUND,
            )
            (wrong if told.returncode else fine).append(made(text))
    assert len(wrong) >= 20 and len(fine) >= 20
    above = [priority(text) for text in ("high", "4", " HIGH", "+03")] + [priority("0", "batch")]
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


def test_the_pages_command_makes_a_rule_of_the_alerts():
    (block,) = [text for text in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL) if "PrometheusRule" in text]
    command = block.removeprefix("$ ").replace("kubectl apply -n weft-system -f -", "cat")
    made = subprocess.run(["sh", "-c", command], cwd=paths.ROOT, capture_output=True, text=True, check=True, timeout=BOUND)
    (rule,) = ask(texts=[made.stdout])["documents"]
    (group,) = rule["spec"]["groups"]
    assert rule["kind"] == "PrometheusRule" and "WeftBrokerGone" in {each["alert"] for each in group["rules"]}


def test_examples_are_by_the_schemas():
    told = ask(files=[str(file) for file in sorted((DEPLOY / "examples").glob("*.yaml"))])
    assert told["documents"] and told["faults"] == [], told["faults"]
    # And so are the page's examples.
    texts = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    whole = [text for text in texts if "apiVersion" in text]
    told = ask(texts=whole)
    assert whole and told["faults"] == [], told["faults"]
