# SPDX-License-Identifier: MIT OR Apache-2.0
"""weft under Ray: four nodes on one machine, in a network of their own, each with a simulated GPU.

Ray listens on all addresses of a machine, so it runs in a network namespace that has no other than
127.0.0.1. Without the namespace, or without the set `ray` of scripts/setup, nothing is tried.
"""

import json
import os
import shutil
import subprocess

import pytest
from fixtures.scene import Scene
from harness import jobs, paths

NODES = 4
# Seconds for all of it, on two busy cores.
BOUND = 560
GUEST = paths.CLIENTS / "guest"
DRIVER = paths.ROOT / "tests" / "cluster" / "ray_driver.py"
# A network of its own, and processes: the cluster's leftovers end with the first of them.
APART = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
# A user's further preload: any library will do.
OTHER = "libm.so.6"
LO = 'ip link set lo up && exec "$@"'

pytestmark = pytest.mark.timeout(600)


def why_not():
    """The missing requirement, or None."""
    if not paths.python("ray").exists():
        return "no Ray: scripts/setup ray"
    if shutil.which("ip") is None:
        return "no ip (Debian: iproute2)"
    done = subprocess.run([*APART, "true"], capture_output=True, text=True, timeout=60, check=False)
    return f"no network namespace: {done.stderr.strip()}" if done.returncode else None


def package(folder):
    """The Python package as the wheel has it, from the present build. Returns the folder for the
    path."""
    place = folder / "site" / "weft_gpu"
    shutil.copytree(paths.ROOT / "deploy" / "python" / "weft_gpu", place)
    (place / "_version.py").write_text('VERSION = "0"\n')
    (place / "bin").mkdir()
    for name in ("weft", "libweft.so"):
        (place / "bin" / name).symlink_to((paths.TARGET / "weft" / name).resolve())
    return place.parent


class RayScene(Scene):
    """Nodes, each with a folder, a device and a broker."""

    def open(self):
        self.nodes = []
        for number in range(NODES):
            folder = self.folder / str(number)
            folder.mkdir()
            device = jobs.Device(folder)
            self.nodes.append((device, jobs.Broker(folder, device, trace=False)))

    def close(self):
        super().close()
        for _, broker in self.nodes:
            broker.stop()


def played(request, play):
    """The result of `play`, in a scene of its own."""
    absent = why_not()
    if absent:
        pytest.skip(absent)
    with jobs.workspace(request.config.option.keep) as folder:
        scene = RayScene(folder, request.config.option)
        scene.open()
        try:
            yield play(scene)
        finally:
            scene.close()


@pytest.fixture(scope="module")
def told(request):
    """The result of the driver of four nodes. It runs once: a cluster takes a minute."""
    yield from played(request, run)


@pytest.fixture(scope="module")
def started(request):
    """Observations of a driver on one node that weft_gpu.ray started."""
    yield from played(request, run_started)


def environment_of(scene):
    """Variables of Ray's processes, except those that differ between nodes."""
    path = [package(scene.folder), GUEST, DRIVER.parent]
    return {
        **jobs.clean_environment(),
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_TMPDIR": str(scene.folder),
        "OTHER": OTHER,
        "HOME": str(scene.folder),
    }


def run(scene):
    settings = []
    for device, broker in scene.nodes:
        variables = {**broker.variables(), **device.environment()}
        # A node starts its broker by itself: weft_gpu.ray asks for it as the first job comes.
        del variables["WEFT_AUTOSTART"]
        settings.append(variables)
    (scene.folder / "NODES.json").write_text(json.dumps(settings))
    environment = environment_of(scene)
    command = [*APART, "sh", "-c", LO, "sh", paths.python("ray"), DRIVER, scene.folder]
    job = jobs.Job(command, environment=environment, folder=scene.folder, name="driver")
    scene.jobs.append(job)
    job.wait(BOUND)
    file = scene.folder / "TOLD.json"
    assert file.exists(), job.explain(60)
    return json.loads(file.read_text())


# A node as an administrator starts it, a driver, and the node's end.
STARTED = """set -e
ip link set lo up
"$1" -m weft_gpu.ray start --head --node-ip-address 127.0.0.1 --num-gpus 1 --num-cpus 6 \\
    --temp-dir "$3/r" --include-dashboard=false --disable-usage-stats >&2
"$1" "$2" "$3"
"$1" -m weft_gpu.ray stop >&2
"""


def run_started(scene):
    device, broker = scene.nodes[0]
    variables = {**broker.variables(), **device.environment(), "NODE": "0"}
    del variables["WEFT_AUTOSTART"]
    environment = {**environment_of(scene), **variables}
    if paths.python("torch").exists():
        environment["TORCH"] = str(paths.site_packages("torch"))
    driver = DRIVER.with_name("ray_started.py")
    command = [*APART, "sh", "-c", STARTED, "sh", paths.python("ray"), driver, scene.folder]
    job = jobs.Job(command, environment=environment, folder=scene.folder, name="started")
    scene.jobs.append(job)
    job.wait(BOUND)
    file = scene.folder / "STARTED.json"
    assert file.exists(), job.explain(60)
    return json.loads(file.read_text())


# A plain `ray.init()`, as most people begin. `sys.argv[1]`: whether weft's module comes before it.
PLAIN = """
import os, sys
import ray
if sys.argv[1] == "before":
    import weft_gpu.ray
ray.init(num_cpus=1, num_gpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
import weft_gpu.ray
print(weft_gpu.__file__, file=sys.stderr)
@ray.remote(num_gpus=0.5, runtime_env={"weft": {"priority": "high"}})
def task():
    return "libweft.so" in (os.environ.get("LD_PRELOAD") or "")
print(ray.get(task.remote(), timeout=240))
ray.shutdown()
"""


@pytest.mark.parametrize("order", ["before", "after"])
def test_plain_ray_init_is_under_weft_or_says_that_it_is_not(request, order):
    def play(scene):
        device, broker = scene.nodes[0]
        own = {**broker.variables(), **device.environment()}
        del own["WEFT_AUTOSTART"]
        words = [*APART, "sh", "-c", LO, "sh", paths.python("ray"), "-c", PLAIN, order]
        environment = {**environment_of(scene), **own}
        bounded = {"capture_output": True, "text": True, "timeout": BOUND, "check": False}
        return subprocess.run([str(word) for word in words], env=environment, **bounded)

    for done in played(request, play):
        under = order == "before"
        assert done.stdout.strip() == str(under), (done.stdout, done.stderr[-2000:])
        told = "weft: this Ray was started before weft_gpu.ray was imported" in done.stderr
        assert told != under, done.stderr[-2000:]


def test_a_node_that_weft_ray_starts_has_a_broker(started):
    # There before the first job, and the same afterwards.
    assert started["broker"] and started["broker"] == started["after"], started


def test_a_deployment_of_serve_is_a_job(started):
    saw = started["service"]
    assert saw["answer"] == 19 and saw["mapped"], saw
    (client,) = saw["clients"]
    assert (client["priority"], client["launches"]) == (0, 20), client


def test_workers_of_a_trainer_are_jobs(started):
    one, other = started["workers"]
    assert one["WEFT_GANG"] != other["WEFT_GANG"]
    for saw in (one, other):
        assert saw["answer"] == 19 and saw["mapped"], saw
        (client,) = saw["clients"]
        assert (client["name"], client["priority"]) == ("training", 7), client


def test_torch_trains_in_the_background_of_a_service(started):
    if "torch" not in started:
        pytest.skip("no PyTorch: scripts/setup torch")
    saw = started["torch"]
    assert len(saw["alone"]) == len(saw["beside"]) and saw["steps"] > 0, saw
    rows = saw["clients"]
    ranks = {name: (row["priority"], row["mode"]) for name, row in rows.items()}
    assert ranks == {"serving": (0, "foreground"), "training": (7, "background")}, ranks
    assert len({row["device_uuid"] for row in rows.values()}) == 1, rows
    # Both launched while they shared the device.
    assert all(count > 0 for count in saw["launched"].values()), saw


def test_tasks_run_under_weft_with_the_broker_of_their_node(told):
    assert len(told["tasks"]) == NODES
    for number, saw in enumerate(told["tasks"]):
        assert saw["answer"] == 19, saw
        assert saw["mapped"] and saw["child"], saw
        assert (saw["WEFT_PRIORITY"], saw["NODE"]) == ("0", str(number)), saw
        assert saw["broker"].endswith(f"/{number}/broker.sock"), saw
        (client,) = saw["clients"]
        assert (client["name"], client["priority"]) == ("service", 0), client
        assert client["launches"] == 20, client


def test_what_names_no_weft_runs_without(told):
    saw = told["plain"]
    assert saw["answer"] == 19, saw
    assert not saw["mapped"] and not saw["clients"] and saw["LD_PRELOAD"] is None, saw


def test_actors_of_one_runtime_env_are_jobs_of_their_own(told):
    one, other = told["actors"]
    assert one["WEFT_GANG"] != other["WEFT_GANG"], (one, other)
    assert one["pid"] != other["pid"]
    assert one["WEFT_GANG"].endswith(f"-{one['pid']}"), one
    assert told["again"]["WEFT_GANG"] == one["WEFT_GANG"]
    assert {saw["clients"][0]["priority"] for saw in (one, other)} == {7}


def test_what_the_runtime_env_says_besides_is_kept(told):
    saw = told["actors"][0]
    assert saw["MORE"] == "yes"
    preloads = saw["LD_PRELOAD"].split(":")
    assert preloads[0] == OTHER and preloads[-1].endswith("libweft.so"), preloads


def test_wrong_values_are_refused_where_they_are_submitted(told):
    says = [f"invalid value '{wrong}' for '--priority" for wrong in ("urgent", "10", "True")]
    says += ["much is not an amount", "cannot be used with '--no-wait'", "did you mean memory?"]
    says += ["Ray chooses the GPU", "unexpected value 'yes' for '--quiet'", "is a dict"]
    assert len(told["refused"]) == len(says)
    for refused, expected in zip(told["refused"], says):
        kind, text = refused
        assert kind == "ValueError" and expected in text and "\n" not in text, refused


# Options, and whether `weft run` takes them.
OPTIONS = [
    ({}, True),
    ({"priority": "high", "memory": "8GiB:20GiB", "slowdown": "2%", "slo": "50ms", "name": "a b"}, True),
    ({"priority": 7, "at_least": 0.3, "sm_share": "25%", "wait": 60, "duration": "short"}, True),
    ({"backing": "movable", "evict_idle": "10m", "longest_evicted": "30m", "quiet": False}, True),
    ({"evict_idle": "10m"}, True),
    ({"memory": None, "no_wait": True, "profile": "resnet"}, True),
    ({"slowdown": "150%"}, False),
    ({"slowdown": 1}, False),
    ({"slo": "0ms"}, False),
    ({"slo": "1h"}, False),
    ({"sm_share": "0%"}, False),
    ({"sm_share": "101%"}, False),
    ({"sm_share": "25"}, False),
    ({"memory": 0}, False),
    ({"memory": "12"}, False),
    ({"memory": "8GiB:4GiB"}, False),
    ({"at_least": "101%"}, False),
    ({"wait": 1.5}, False),
    ({"wait": 5, "no_wait": True}, False),
    ({"evict_idle": "0s"}, False),
    ({"evict_idle": "10m", "backing": "device"}, False),
    ({"name": ""}, False),
    ({"name": "x" * 65}, False),
    ({"profile": "a b"}, False),
    ({"priority": False}, False),
]
CHECKED = """
import json, sys
import weft_gpu.ray
def line(options):
    try:
        weft_gpu.ray.runtime_env(**options)
    except ValueError as why:
        return str(why)
print(json.dumps([line(options) for options in json.load(sys.stdin)]))
"""


def test_a_driver_refuses_what_the_command_refuses_in_its_words(folder):
    if not paths.python("ray").exists():
        pytest.skip("no Ray: scripts/setup ray")
    place, socket = package(folder), folder / "broker.sock"
    environment = {**jobs.clean_environment(), "WEFT_SOCKET": str(socket), "WEFT_OUTCOME": ""}
    bounded = {"capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run(
        [paths.python("ray"), "-c", CHECKED],
        env={**environment, "PYTHONPATH": str(place)},
        input=json.dumps([options for options, _ in OPTIONS]),
        **bounded,
    )
    assert done.returncode == 0, done.stderr
    for (options, is_good), line in zip(OPTIONS, json.loads(done.stdout)):
        words = [paths.TARGET / "weft" / "weft", "run", "--check"]
        for name, value in options.items():
            option = f"--{name.replace('_', '-')}"
            if value is not None and (value is not False or name == "priority"):
                words.append(option if value is True else f"{option}={value}")
        command = subprocess.run([*words, "--", "true"], env=environment, **bounded)
        assert (command.returncode == 0) == is_good == (line is None), (options, command, line)
        if line:
            assert line == f'runtime_env["weft"]: {command.stderr.strip().removeprefix("weft: ")}'
            assert "\n" not in line, line
    assert not socket.exists(), "no broker was started"


def test_wrong_values_are_refused_by_the_node_too(told):
    says = ["invalid value 'urgent' for '--priority", "12 is 12 bytes: write 12GiB"]
    for refused, expected in zip(told["late"], says):
        kind, text = refused
        assert kind == "RuntimeEnvSetupError" and expected in text, refused


def test_a_task_of_a_lost_node_begins_anew_under_weft(told):
    moved = told["moved"]
    before, after = moved["from"], int(moved["saw"]["NODE"])
    assert before != after and moved["begun"] == [str(before), str(after)], moved
    assert moved["saw"]["mapped"] and moved["saw"]["answer"] == 19, moved
    assert moved["saw"]["broker"].endswith(f"/{after}/broker.sock"), moved
