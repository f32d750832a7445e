# SPDX-License-Identifier: MIT OR Apache-2.0
"""The driver of Dynamic Resource Allocation: its program, between a stand-in for the API server
(HTTPS), one for the kubelet (gRPC over its sockets), and the scheduler's rules.

Its objects are held against the schemas that Kubernetes publishes. The API server's stand-in
allows what the chart's role allows, and no more.
"""

import json
import re
import shutil
import subprocess

import pytest
from apiserver import ApiServer, allocate
from fixtures import cluster_kubernetes
from harness import jobs, paths
from test_kubernetes import BOUND, DEPLOY, PAGE, ROOTFS, Node, ask, container, one, podman
from users import python

A = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
B = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
KUBELET = cluster_kubernetes.BUILT / "debug" / "examples" / "dra-kubelet"
# Those with resource.k8s.io/v1: its first, the first with the gate on, and the newest.
VERSIONS = ["1.34", "1.36", "1.37"]
VALUES = {"dra": {"enabled": True, "parameters": {"priority": 6, "slo": "1s"}}}
SLICE = "/apis/resource.k8s.io/v1/resourceslices/node-1-weft.dev"

DOCTOR = """{"rows": [
  {"what": "device 0", "found": "NVIDIA A100, 40.0 GiB, compute 8.0, uuid aaaaaaaa000000000000000000000000"},
  {"what": "device 1", "found": "NVIDIA A100, 39.5 GiB, compute 8.0, uuid bbbbbbbb000000000000000000000000"}]}
"""
# A broker that answers while its socket's path is there.
WEFT = """#!/bin/sh
[ "$1" = doctor ] && exec cat "$(dirname "$0")/doctor.json"
[ -e "$WEFT_SOCKET" ]
"""


@pytest.fixture(scope="module")
def chart():
    """The chart's objects with the driver, as the schemas have them."""
    if not paths.python("kubernetes").exists():
        pytest.skip("no Helm and no schemas: scripts/setup kubernetes")
    told = ask(values=VALUES, versions=VERSIONS)
    assert told["refused"] is None and told["faults"] == [], told
    return told["documents"]


@pytest.fixture
def cluster(folder, chart):
    if not KUBELET.exists():
        pytest.skip("the driver is not built: scripts/cluster kubernetes --check builds it")
    made = Cluster(folder, chart)
    yield made
    made.close()


class Cluster:
    """A cluster of one node: its API server, its folders, and the driver."""

    def __init__(self, folder, chart):
        self.folder = folder
        self.server = ApiServer(folder / "account", one(chart, "ClusterRole")["rules"])
        self.klass = one(chart, "DeviceClass")
        self.claims, self.driver, self.number, self.environment = [], None, 0, {}
        self.places = {name: folder / name for name in ("kubelet", "dev", "cdi", "run", "bin")}
        for place in self.places.values():
            place.mkdir()
        self.registry = self.places["kubelet"] / "plugins_registry"
        self.registry.mkdir()
        self.broker = self.places["run"] / "broker.sock"
        self.broker.touch()
        for node in ("nvidia0", "nvidia1", "nvidiactl"):
            (self.places["dev"] / node).touch()
        self.weft = self.places["bin"] / "weft"
        self.weft.write_text(WEFT)
        self.weft.chmod(0o755)
        (self.places["bin"] / "doctor.json").write_text(DOCTOR)
        self.server.put("/api/v1/nodes/node-1", {"kind": "Node", "metadata": {"name": "node-1"}})
        self.more = ["--gpus", f"{A}=nvidia0,{B}=nvidia1", "--socket", self.broker]

    def start(self):
        """Starts the driver, and registers it as the kubelet does when it finds the socket."""
        words = [cluster_kubernetes.PLUGIN, "dra", "--node", "node-1", *self.more, "--weft", self.weft]
        words += ["--api-server", self.server.address, "--account", self.server.folder]
        words += ["--kubelet-dir", self.places["kubelet"], "--cdi-dir", self.places["cdi"]]
        words += ["--broker-period-ms", "100", "--broker-bound-ms", "20000", "--kubelet-period-ms", "50"]
        if "--dev" not in self.more:
            words += ["--dev", self.places["dev"]]
        self.number += 1
        name = f"driver{self.number}"
        environment = {**jobs.clean_environment(), **self.environment}
        self.driver = jobs.Job(words, environment=environment, folder=self.folder, name=name)
        return self.register()

    def register(self):
        """The driver's answer at its registration socket, which may be there a moment later."""
        socket, answers = self.registry / "weft.dev-reg.sock", []

        def answered():
            run = {"capture_output": True, "text": True, "timeout": BOUND, "check": False}
            done = subprocess.run([KUBELET, "register", socket], **run)
            answers.extend([json.loads(done.stdout)] if done.returncode == 0 else [])
            return bool(answers)

        self.wait(answered)
        return answers[0]

    def wait(self, reached):
        ended = jobs.wait_until(lambda: reached() or not self.driver.running(), BOUND)
        assert ended and self.driver.running(), self.driver.explain()

    def call(self, word, socket, *claims):
        """The driver's answer to the kubelet."""
        words = [part for claim in claims for part in claim]
        run = {"capture_output": True, "text": True, "timeout": BOUND, "check": False}
        done = subprocess.run([KUBELET, word, socket, *words], **run)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def kubelet(self, word, *claims):
        socket = self.places["kubelet"] / "plugins" / "weft.dev" / "dra.sock"
        keys = ("namespace", "name", "uid")
        names = [[each["metadata"][key] for key in keys] for each in claims]
        return self.call(word, socket, *names)

    def spec(self):
        return (self.server.get(SLICE) or {}).get("spec", {})

    def devices(self):
        return [device["name"] for device in self.spec().get("devices", [])]

    def has(self, *uuids):
        self.wait(lambda: self.devices() == [uuid.lower() for uuid in uuids])

    def claim(self, spec, name=None):
        """A claim that the scheduler allocated, or None if no GPU has room for it."""
        name = name or f"claim-{len(self.claims)}"
        claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": spec}
        claim["metadata"] = {"namespace": "team-a", "name": name}
        made = allocate(claim, self.server.get(SLICE), self.klass, self.claims)
        if made:
            path = f"/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims/{name}"
            made = self.server.put(path, made)
            self.claims.append(made)
        return made

    def prepared(self, claim):
        """The devices of a claim, and the variables of each CDI device in its file."""
        (answer,) = self.kubelet("prepare", claim).values()
        assert answer["error"] == "", answer
        file = json.loads(self.file(claim).read_text())
        common = file["containerEdits"]["env"]
        pairs = {
            device["name"]: dict(pair.split("=", 1) for pair in common + device["containerEdits"]["env"])
            for device in file["devices"]
        }
        assert file["kind"] == "weft.dev/claim"
        return answer["devices"], pairs

    def file(self, claim):
        return self.places["cdi"] / f"weft.dev-claim_{claim['metadata']['uid']}.json"

    def files(self):
        return sorted(file.name for file in self.places["cdi"].iterdir())

    def close(self):
        if self.driver:
            self.driver.terminate(BOUND)
        self.server.close()
        texts = [json.dumps(each) for each in self.server.written + self.claims]
        assert ask(texts=texts, versions=VERSIONS)["faults"] == []
        refused = [request for request in self.server.requests if not self.server.allowed(*request)]
        assert refused == [], "the chart's role allows less"


def parameters(**fields):
    """The part of a claim that has parameters."""
    typed = {"apiVersion": "weft.dev/v1alpha1", "kind": "JobParameters", **fields}
    return [{"opaque": {"driver": "weft.dev", "parameters": typed}}]


def request(name="gpu", count=None, **capacity):
    exactly = {"deviceClassName": "weft", **({"count": count} if count else {})}
    if capacity:
        exactly["capacity"] = {"requests": capacity}
    return {"name": name, "exactly": exactly}


def spec(*requests, config=()):
    return {"devices": {"requests": list(requests or [request()]), "config": list(config)}}


def test_each_gpu_is_a_device_with_shares_and_memory(cluster):
    told = cluster.start()
    assert (told["type"], told["name"], told["versions"]) == ("DRAPlugin", "weft.dev", ["v1.DRAPlugin"])
    assert told["endpoint"] == str(cluster.places["kubelet"] / "plugins" / "weft.dev" / "dra.sock")
    cluster.has(A, B)
    slice_ = cluster.server.get(SLICE)
    (owner,) = slice_["metadata"]["ownerReferences"]
    assert owner["uid"] == cluster.server.get("/api/v1/nodes/node-1")["metadata"]["uid"]
    pool = slice_["spec"]["pool"]
    assert (pool["name"], pool["resourceSliceCount"]) == ("node-1", 1) and pool["generation"] >= 1
    first, second = slice_["spec"]["devices"]
    assert first["attributes"]["uuid"] == {"string": A}
    assert first["attributes"]["model"] == {"string": "NVIDIA A100"}
    assert (first["capacity"]["memory"]["value"], second["capacity"]["memory"]["value"]) == ("40Gi", "40448Mi")
    assert first["capacity"]["shares"]["value"] == "4" and first["allowMultipleAllocations"]
    # A look at an unchanged slice writes nothing.
    writes, looks = len(cluster.server.written), len(cluster.server.requests)
    cluster.register()
    cluster.wait(lambda: len(cluster.server.requests) > looks)
    cluster.has(A, B)
    assert len(cluster.server.written) == writes


def test_claims_share_a_gpu_until_it_is_full(cluster):
    cluster.start()
    cluster.has(A, B)
    service = cluster.claim(spec(request(memory="12Gi"), config=parameters(priority="high", slowdown="2%")))
    training = cluster.claim(spec(request(memory="20Gi")))
    # 12 + 20 + 16 GiB are more than GPU A has.
    other = cluster.claim(spec(request(memory="16Gi")))
    found = [cluster.prepared(claim) for claim in (service, training, other)]
    used = [[device["device"] for device in devices] for devices, _ in found]
    assert used == [[A.lower()], [A.lower()], [B.lower()]]
    for (devices, pairs), claim in zip(found, (service, training, other), strict=True):
        ((name, variables),) = pairs.items()
        assert name == f"{claim['metadata']['uid']}-gpu"
        assert devices[0]["cdi"] == [f"weft.dev/claim={name}"]
        assert (devices[0]["requests"], devices[0]["pool"]) == (["gpu"], "node-1")
        assert variables["LD_PRELOAD"] == "/opt/weft/libweft.so"
        assert variables["WEFT_SOCKET"] == str(cluster.broker)
    (first,), (second,), (third,) = (pairs.values() for _, pairs in found)
    assert (first["WEFT_PRIORITY"], first["WEFT_SLOWDOWN"]) == ("high", "2%")
    assert (first["WEFT_MEMORY"], second["WEFT_MEMORY"]) == ("12288MiB", "20480MiB")
    # The class's parameters, since the claim has none.
    assert (second["WEFT_PRIORITY"], second["WEFT_SLO"], second["WEFT_OUTCOME"]) == ("6", "1s", "on")
    assert third["CUDA_VISIBLE_DEVICES"] == B
    file = json.loads(cluster.file(other).read_text())
    nodes = [node["path"] for node in file["devices"][0]["containerEdits"]["deviceNodes"]]
    assert nodes == ["/dev/nvidia1"]
    # Places: A has two more, B three.
    claims = [cluster.claim(spec()) for _ in range(5)]
    assert all(claims) and cluster.claim(spec()) is None
    _, pairs = cluster.prepared(claims[0])
    ((_, variables),) = pairs.items()
    assert "WEFT_MEMORY" not in variables


def test_a_claim_of_two_gpus_and_one_of_two_requests(cluster):
    cluster.start()
    cluster.has(A, B)
    devices, pairs = cluster.prepared(cluster.claim(spec(request(count=2, memory="1Gi"))))
    ((name, variables),) = pairs.items()
    assert variables["CUDA_VISIBLE_DEVICES"] == f"{A},{B}"
    assert variables["WEFT_MEMORY"] == "2048MiB", "of all devices together"
    assert [device["cdi"] for device in devices] == [[f"weft.dev/claim={name}"], []]
    two = spec(request("serve"), request("train"))
    two["devices"]["constraints"] = [{"matchAttribute": "weft.dev/uuid"}]
    config = parameters(priority=0)
    two["devices"]["config"] = [{**config[0], "requests": ["serve"]}]
    devices, pairs = cluster.prepared(cluster.claim(two))
    assert [device["requests"] for device in devices] == [["serve"], ["train"]]
    priorities = [variables["WEFT_PRIORITY"] for variables in pairs.values()]
    assert priorities == ["0", "6"]
    gpus = {variables["CUDA_VISIBLE_DEVICES"] for variables in pairs.values()}
    assert gpus == {A}


def test_variables_of_the_chart_are_those_of_claims_that_set_none(cluster):
    cluster.more += ["--env", "WEFT_OUTCOME=off", "--env", "WEFT_PRIORITY=7"]
    cluster.start()
    cluster.has(A, B)
    _, pairs = cluster.prepared(cluster.claim(spec(config=parameters(priority=0))))
    (variables,) = pairs.values()
    assert (variables["WEFT_OUTCOME"], variables["WEFT_PRIORITY"]) == ("off", "0")


def test_calls_may_come_again_and_to_a_new_driver(cluster):
    cluster.start()
    cluster.has(A, B)
    claims = [cluster.claim(spec(config=parameters(priority=one))) for one in range(3)]
    before = cluster.kubelet("prepare", *claims)
    assert len(before) == 3 and not any(answer["error"] for answer in before.values()), before
    content = cluster.file(claims[0]).read_text()
    assert cluster.kubelet("prepare", *claims) == before
    # The driver is killed between two steps, and its sockets stay.
    cluster.driver.kill()
    assert len(cluster.files()) == 3
    cluster.start()
    assert cluster.kubelet("prepare", *claims) == before
    assert cluster.file(claims[0]).read_text() == content
    gone = {claim["metadata"]["uid"]: {"error": ""} for claim in claims}
    assert cluster.kubelet("unprepare", *claims) == gone
    assert cluster.files() == []
    # The claims are gone at the API server, too.
    cluster.driver.kill()
    cluster.start()
    assert cluster.kubelet("unprepare", *claims) == gone
    assert cluster.kubelet("prepare") == {}
    # A socket that was taken away is made again.
    (cluster.registry / "weft.dev-reg.sock").unlink()
    assert cluster.register()["name"] == "weft.dev"
    cluster.prepared(claims[0])


def test_a_claim_that_cannot_be_prepared_is_one_line(cluster):
    cluster.start()
    cluster.has(A, B)
    good = cluster.claim(spec())
    bad = cluster.claim(spec(config=parameters(priority="urgent")))
    typo = cluster.claim(spec(config=parameters(slowdwn="2%")))
    version = cluster.claim(spec(config=[{"opaque": {"driver": "weft.dev", "parameters": {"kind": "x"}}}]))

    def variant(name, change):
        made = json.loads(json.dumps(good))
        made["metadata"] = {"namespace": "team-a", "name": name}
        change(made)
        path = f"/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims/{name}"
        return cluster.server.put(path, made)

    result = lambda claim: claim["status"]["allocation"]["devices"]["results"][0]  # noqa: E731
    waiting = variant("waiting", lambda claim: claim.pop("status"))
    elsewhere = variant("elsewhere", lambda claim: result(claim).update(pool="node-2"))
    strange = variant("strange", lambda claim: result(claim).update(device="gpu-7"))
    unknown = {"metadata": {"namespace": "team-a", "name": "unknown", "uid": "0-0"}}
    replaced = {"metadata": {**good["metadata"], "uid": "0-1"}}
    escape = {"metadata": {**good["metadata"], "uid": "../../escape"}}
    expected = [
        (bad, 'parameters of request gpu (FromClaim): priority: urgent is no priority: a whole'),
        (typo, '"slowdwn" is not a parameter: there are priority, slowdown'),
        (version, 'apiVersion is "": write weft.dev/v1alpha1'),
        (waiting, "it has no allocation"),
        (elsewhere, "is of pool node-2, not of node-1"),
        (strange, "gpu-7 is not a GPU of this node"),
        (unknown, "there is no such claim"),
        (replaced, f"it has the uid {good['metadata']['uid']}, not 0-1"),
        (escape, '"../../escape" is not a uid'),
    ]
    # One call for all: the good one is prepared.
    answers = cluster.kubelet("prepare", good, *(claim for claim, _ in expected))
    for claim, text in expected:
        answer = answers[claim["metadata"]["uid"]]
        name = f"claim team-a/{claim['metadata']['name']}: "
        assert answer["error"].startswith(name) and text in answer["error"], answer
        assert "\n" not in answer["error"] and answer["devices"] == [], answer
    assert answers[good["metadata"]["uid"]]["error"] == ""
    assert cluster.files() == [cluster.file(good).name]
    answers = cluster.kubelet("unprepare", *(claim for claim, _ in expected))
    wrong = {uid for uid, answer in answers.items() if answer["error"]}
    assert wrong == {"../../escape"} and cluster.files() == [cluster.file(good).name]


def test_what_cannot_be_used_leaves_the_slice(cluster):
    cluster.broker.unlink()
    cluster.start()
    cluster.wait(lambda: cluster.spec().get("devices") == [])
    cluster.broker.touch()
    cluster.has(A, B)
    early, late = cluster.claim(spec()), cluster.claim(spec())
    generation = cluster.spec()["pool"]["generation"]
    cluster.prepared(early)
    cluster.broker.unlink()
    cluster.has()
    assert cluster.spec()["pool"]["generation"] > generation
    # A prepared claim stays so, and a new one has no broker.
    cluster.prepared(early)
    (answer,) = cluster.kubelet("prepare", late).values()
    assert answer["error"].endswith("weft's broker does not answer on this node"), answer
    cluster.broker.touch()
    cluster.has(A, B)
    (cluster.places["dev"] / "nvidia0").unlink()
    cluster.has(B)
    (answer,) = cluster.kubelet("prepare", late).values()
    assert answer["error"].endswith(f"{A} is gone"), answer
    (cluster.places["dev"] / "nvidia0").touch()
    cluster.has(A, B)
    cluster.prepared(late)


def test_the_api_server_may_fail_and_renew_the_token(cluster):
    cluster.server.fail = 503
    cluster.start()
    cluster.wait(lambda: b"503 Service Unavailable: the stand-in fails" in log(cluster))
    cluster.server.fail = None
    cluster.has(A, B)
    claim = cluster.claim(spec())
    cluster.server.renew("second")
    cluster.prepared(claim)
    (cluster.server.folder / "token").write_text("stolen")
    (answer,) = cluster.kubelet("prepare", claim).values()
    assert "401 Unauthorized" in answer["error"], answer
    cluster.server.renew("third")
    # The kubelet removes the slice of a driver that it lost, then registers it again.
    cluster.server.remove(SLICE)
    cluster.register()
    cluster.has(A, B)
    # Somebody else writes the slice.
    taken = cluster.server.get(SLICE)
    taken["spec"]["devices"] = []
    cluster.server.put(SLICE, taken)
    cluster.register()
    cluster.has(A, B)
    # A server of another authority is not trusted.
    (cluster.folder / "other").mkdir()
    other = ApiServer(cluster.folder / "other" / "account", [])
    (cluster.server.folder / "ca.crt").write_bytes((other.folder / "ca.crt").read_bytes())
    other.close()
    (answer,) = cluster.kubelet("prepare", claim).values()
    assert "invalid peer certificate" in answer["error"], answer


def log(cluster):
    return cluster.driver.stderr_path.read_bytes()


def test_without_the_feature_gate_a_gpu_is_of_one_claim(cluster):
    cluster.server.consumable = False
    cluster.start()
    cluster.has(A, B)
    cluster.wait(lambda: b"DRAConsumableCapacity is off" in log(cluster))
    device, _ = cluster.spec()["devices"]
    assert "allowMultipleAllocations" not in device
    claims = [cluster.claim(spec()), cluster.claim(spec())]
    assert all(claims) and cluster.claim(spec()) is None
    used = [cluster.prepared(claim)[0][0]["device"] for claim in claims]
    assert used == [A.lower(), B.lower()]
    # Fields that the server dropped are no reason to write again.
    writes, looks = len(cluster.server.written), len(cluster.server.requests)
    cluster.register()
    cluster.wait(lambda: len(cluster.server.requests) > looks)
    cluster.prepared(claims[0])
    assert len(cluster.server.written) == writes


def test_it_ends_by_sigterm_and_leaves_its_slice(cluster):
    """A new driver's pod comes at once, so pods that wait need the slice."""
    cluster.start()
    cluster.has(A, B)
    claim = cluster.claim(spec())
    cluster.prepared(claim)
    assert cluster.driver.terminate(BOUND) == 0, cluster.driver.explain()
    assert list(cluster.registry.iterdir()) == []
    assert cluster.devices() and cluster.files() == [cluster.file(claim).name]


def documents(text):
    """The documents of a YAML text."""
    return ask(texts=[text], versions=VERSIONS)["documents"]


def page_example():
    """The page's claim of two pods."""
    texts = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (found,) = [text for text in texts if "kind: ResourceClaim\n" in text]
    return documents(found)


def test_the_examples_claims_are_prepared(cluster):
    cluster.start()
    cluster.has(A, B)
    shown = documents((DEPLOY / "examples" / "dra.yaml").read_text())
    templates = {each["metadata"]["name"]: each for each in shown if each["kind"] == "ResourceClaimTemplate"}
    pods = [each for each in shown if each["kind"] == "Pod"]
    found = {}
    for pod in pods:
        (wanted,) = pod["spec"]["resourceClaims"]
        template = templates[wanted["resourceClaimTemplateName"]]
        _, pairs = cluster.prepared(cluster.claim(template["spec"]["spec"]))
        ((_, found[pod["metadata"]["name"]]),) = pairs.items()
    service, training = found["service"], found["training"]
    assert service["WEFT_PROFILE"] == "/profiles/resnet" and service["WEFT_PRIORITY"] == "high"
    assert training["WEFT_PRIORITY"] == "low"
    assert service["CUDA_VISIBLE_DEVICES"] == training["CUDA_VISIBLE_DEVICES"] == A
    (claim, *pods) = page_example()
    _, pairs = cluster.prepared(cluster.claim(claim["spec"], claim["metadata"]["name"]))
    named = [each["resources"]["claims"][0]["request"] for pod in pods for each in pod["spec"]["containers"]]
    assert sorted(name.rsplit("-", 1)[1] for name in pairs) == sorted(named) == ["serve", "train"]
    for pod in pods:
        assert pod["spec"]["resourceClaims"][0]["resourceClaimName"] == claim["metadata"]["name"]


def by_name(template, klass):
    """The spec of the claim that the scheduler makes of a pod's requests by a resource's name
    (KEP-5004): one request for each container that has the name in its limits."""
    requests = []
    for at, each in enumerate(template["spec"]["containers"]):
        count = int(each["resources"]["limits"].get(klass["spec"]["extendedResourceName"], 0))
        if count:
            exactly = {"deviceClassName": klass["metadata"]["name"], "count": count}
            requests.append({"name": f"container-{at}-request-0", "exactly": exactly})
    return spec(*requests)


def test_pods_that_request_a_share_by_its_name_get_one(cluster):
    """The manifests for the device plugin, as they are."""
    cluster.start()
    cluster.has(A, B)
    shown = documents((DEPLOY / "examples" / "pods.yaml").read_text())
    templates = [each if each["kind"] == "Pod" else each["spec"]["template"] for each in shown]
    assert len(templates) == 2
    for number, template in enumerate(templates):
        claim = cluster.claim(by_name(template, cluster.klass), f"pod{number}-extended-resources-x7k9p")
        ((device,), pairs) = cluster.prepared(claim)
        ((name, variables),) = pairs.items()
        # The kubelet gives the devices of this request to the container.
        assert device["requests"] == ["container-0-request-0"], device
        assert name == f"{claim['metadata']['uid']}-container-0-request-0"
        assert variables["CUDA_VISIBLE_DEVICES"] == A and "WEFT_MEMORY" not in variables
    (each,) = templates[0]["spec"]["containers"]
    each["resources"]["limits"] = {"weft.dev/gpu-share": 2}
    _, pairs = cluster.prepared(cluster.claim(by_name(templates[0], cluster.klass), "two"))
    ((_, variables),) = pairs.items()
    assert variables["CUDA_VISIBLE_DEVICES"] == f"{A},{B}"


def test_two_pods_of_one_claim_run_on_one_gpu(scene, chart):
    """Containers of Podman get the page's claim by the CDI file that the driver wrote for it."""
    if not KUBELET.exists():
        pytest.skip("the driver is not built: scripts/cluster kubernetes --check builds it")
    if not all(map(shutil.which, ("podman", "runc"))) or podman(scene.folder, *ROOTFS, "/bin/true").wait(BOUND):
        pytest.skip("podman starts no container here (Debian: podman, runc)")
    node = Node(scene)
    place = scene.folder / "cluster"
    place.mkdir()
    cluster = Cluster(place, chart)
    try:
        cluster.weft, cluster.environment = paths.WEFT, node.variables
        # No GPU is listed, so `weft doctor` names the simulated one. It has no device node.
        cluster.more = ["--weft-folder", node.folders["weft"], "--socket", node.socket, *node.options()]
        cluster.more += ["--dev", "/dev"]
        scene.broker.socket = node.socket
        scene.broker.start()
        cluster.start()
        cluster.has(node.uuid)
        for file in node.folders["device"].iterdir():
            file.unlink()
        claim, *pods = page_example()
        claim = cluster.claim(claim["spec"], claim["metadata"]["name"])
        (answer,) = cluster.kubelet("prepare", claim).values()
        names = {device["requests"][0]: device["cdi"] for device in answer["devices"]}
        running = []
        for pod in pods:
            # Podman's folder of CDI files is one for all, so its starts take turns.
            running.append(job := start(node, cluster.file(claim), names, pod))
            jobs.wait_until(lambda: clients(node) == len(running) or not job.running(), BOUND)  # noqa: B023
            assert job.running(), job.explain()
        device = node.uuid.removeprefix("GPU-").replace("-", "")
        rows = {"service": (0, device), "training": (7, device)}
        # One after the other, so the first finds the second still there.
        for job, pod in zip(running, pods, strict=True):
            (node.folders["logs"] / pod["metadata"]["name"]).touch()
            assert job.wait(BOUND) == 0, job.explain()
            told = json.loads(job.stdout())
            assert (told["answer"], told["visible"]) == (49, node.uuid), told
            assert {row["name"]: (row["priority"], row["device_uuid"]) for row in told["clients"]} == rows
            del rows[pod["metadata"]["name"]]
        assert b"]: ran " in running[0].stderr_path.read_bytes(), "the outcome is in the pod's log"
        # Without the claim's file no further container starts with it.
        cluster.kubelet("unprepare", claim)
        assert not cluster.file(claim).exists()
    finally:
        cluster.close()
        node.close()


def start(node, file, names, pod):
    """The container of a pod, with the CDI devices of its request."""
    (inside,) = pod["spec"]["containers"]
    (wanted,) = inside["resources"]["claims"]
    words = [word for name in names[wanted["request"]] for word in ("--device", name)]
    name, logs = pod["metadata"]["name"], node.folders["logs"]
    words += ["--env", f"WEFT_NAME={name}", "--env", f"WAIT_FOR={logs / name}"]
    words += ["--volume", f"{logs}:{logs}:ro"]
    job = [python(), cluster_kubernetes.JOB, node.folders["weft"] / "weft"]
    started = podman(node.scene.folder, *words, *ROOTFS, *job, file=file)
    node.running.append(started)
    return started


def clients(node):
    """The number of jobs that the broker has."""
    variables = {"WEFT_SOCKET": str(node.socket), "PATH": "/usr/bin:/bin"}
    run = {"env": variables, "capture_output": True, "timeout": BOUND, "check": True}
    done = subprocess.run([paths.WEFT, "status", "--json"], **run)
    return sum(row["launches"] == 50 for row in json.loads(done.stdout)["clients"])


@pytest.mark.parametrize(
    "values",
    [
        {"dra": {"enabled": "yes"}},
        {"dra": {"enabled": True}, "shareMiB": 1024},
        {"dra": {"enabled": True}, "severalGpus": True},
        {"dra": {"enabled": True}, "cdi": {"enabled": True}},
        {"dra": {"className": "Weft"}},
        {"dra": {"enabled": True, "parameters": {"priority": 10}}},
        {"dra": {"enabled": True, "parameters": {"prioritty": 1}}},
        {"dra": {"enabled": True, "parameters": {"slowdown": "a lot"}}},
        {"dra": {"enabled": True, "parameters": {"slo": "50"}}},
        {"dra": {"enabled": True, "parameters": {"backing": "host"}}},
        {"dra": {"enabled": True, "parameters": {"outcome": "maybe"}}},
    ],
    ids=json.dumps,
)
def test_wrong_values_of_the_driver_are_refused(values, chart):
    assert ask(values=values)["refused"], values


def test_the_drivers_container_has_what_it_needs(chart):
    """It alone has the account's token, and it takes the words that the chart gives it."""
    spec = one(chart, "DaemonSet")["spec"]["template"]["spec"]
    assert [each["name"] for each in spec["containers"]] == ["broker", "dra"]
    mounts = {
        each["name"]: {mount["name"]: mount["mountPath"] for mount in each["volumeMounts"]}
        for each in [*spec["initContainers"], *spec["containers"]]
    }
    assert [name for name, mounted in mounts.items() if "account" in mounted] == ["dra"]
    assert not spec["automountServiceAccountToken"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert set(volumes) == {name for mounted in mounts.values() for name in mounted}
    for name, path in mounts["dra"].items():
        place = volumes[name].get("hostPath", {}).get("path")
        # The kubelet and the container engine see paths of the node.
        assert name in ("account", "dev") or place == path, name
    guard = container(chart, "dra")["securityContext"]
    assert guard["capabilities"] == {"drop": ["ALL"]} and guard["readOnlyRootFilesystem"]
    (subject,) = one(chart, "ClusterRoleBinding")["subjects"]
    account = one(chart, "ServiceAccount")["metadata"]
    assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
    if not cluster_kubernetes.PLUGIN.exists():
        pytest.skip("the driver is not built: scripts/cluster kubernetes --check builds it")
    given = container(chart, "dra")
    words = [*given["command"][1:], *given["args"], "--no-such-option"]
    run = {"capture_output": True, "text": True, "timeout": BOUND, "check": False}
    done = subprocess.run([cluster_kubernetes.PLUGIN, *words], **run)
    assert done.returncode == 2 and "'--no-such-option'" in done.stderr.splitlines()[0], done


def test_a_driver_may_write_its_own_nodes_slice_only(chart):
    (policy,) = [each for each in chart if each["kind"] == "ValidatingAdmissionPolicy"]
    key = "authentication.kubernetes.io/node-name"

    def write(node, account="system:serviceaccount:weft-system:weft", driver="weft.dev", extra=True):
        user = {"username": account, "extra": {key: ["node-1"]} if extra else {}}
        return {"object": {"spec": {"nodeName": node, "driver": driver}}, "request": {"userInfo": user}}

    writes = [write("node-1"), write("node-2", account="system:node:node-2")]
    wrong = [write("node-2"), write("node-1", driver="gpu.nvidia.com"), write("node-1", extra=False)]
    told = ask(texts=[json.dumps(policy)], versions=VERSIONS, writes=[*writes, *wrong])["verdicts"]
    assert told[:2] == [None, None], told
    assert all("only its own node's slice" in said for said in told[2:]), told
