# SPDX-License-Identifier: MIT OR Apache-2.0
"""Properties of a device, and its other users: MPS by each client's driver, other brokers,
processes of other pid namespaces, and the host memory that a job's control group leaves it."""

import contextlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from fixtures.scene import BOUND, COMPANION, weft
from harness import jobs, paths


def fake_daemon(scene):
    """A process that is called as NVIDIA's MPS daemon is."""
    command = ["bash", "-c", "exec -a nvidia-cuda-mps-control sleep 600"]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def device(scene):
    """The one device of the broker, once a client has reported how it shares it."""

    def said():
        return next((device for device in scene.status()["broker"]["devices"] if device["under_mps"] + device["not_under_mps"] > 0), None)

    assert jobs.wait_until(lambda: said() is not None, BOUND, step=0.1), scene.status()["broker"]["devices"]
    return said()


def alone(scene, words, **more):
    """The device's words and its cost of switching while one such client is there."""
    client = scene.companion(f"one{scene.number}", more=more)
    found = device(scene)
    client.terminate()
    assert jobs.wait_until(lambda: not scene.status()["clients"], BOUND, step=0.1), client.explain()
    assert (found["under_mps"], found["not_under_mps"]) == words, found
    return found["core"]["switch_cost"]


@pytest.mark.finding("hardware-F5")
def test_a_device_is_under_mps_where_its_clients_say_so(scene):
    daemon = fake_daemon(scene)
    try:
        scene.broker.start()
        # A daemon that serves another device is no reason.
        assert alone(scene, (0, 1)) > 0
        # The driver's answer is a reason, in any namespace of its daemon.
        assert alone(scene, (1, 0), SIMGPU_MODE="mps") == 0
        # If the driver does not know the question, the daemon's process is looked for.
        assert alone(scene, (1, 0), SIMGPU_ATTRIBUTES="132") == 0
    finally:
        daemon.kill()
        daemon.wait()


@pytest.mark.finding("hardware-F5")
def test_one_client_that_is_not_under_mps_makes_the_device_one_that_switches(scene):
    scene.broker.start()
    under = scene.companion("under", more={"SIMGPU_MODE": "mps"})
    assert device(scene)["core"]["switch_cost"] == 0
    assert "share it under MPS" in weft(scene, "status").stdout
    other = scene.companion("other", more={"SIMGPU_MODE": "timeslice"})
    assert jobs.wait_until(lambda: device(scene)["not_under_mps"] == 1, BOUND, step=0.1), device(scene)
    assert device(scene)["core"]["switch_cost"] > 0, device(scene)
    page = weft(scene, "status").stdout
    assert "1 of its jobs share it under one MPS server, 1 do not" in page, page
    doctor = weft(scene, "doctor").stdout
    assert "mps, jobs" in doctor and "CUDA_MPS_PIPE_DIRECTORY" in doctor, doctor
    other.terminate()
    assert jobs.wait_until(lambda: device(scene)["core"]["switch_cost"] == 0, BOUND, step=0.1), device(scene)
    scene.finish_companions(under)


def others(broker):
    return (broker.status() or {"broker": {"others": None}})["broker"]["others"]


@pytest.mark.finding("hardware-F6", "users-B14")
def test_two_brokers_of_one_device_say_so(scene):
    (scene.folder / "elsewhere").mkdir()
    (scene.folder / "apart").mkdir()
    second = jobs.Broker(scene.folder / "elsewhere", scene.device)
    # One that has a device for itself reports no others.
    apart = jobs.Broker(scene.folder / "apart", jobs.Device(scene.folder / "apart"))
    brokers = (scene.broker, second, apart)
    try:
        for broker in brokers:
            broker.start()
        first = scene.companion("first")
        assert not others(scene.broker)
        scene.companion("alone", more={**apart.device.environment(), **apart.variables()})
        scene.companion("second", more=second.variables())
        for broker, other in ((scene.broker, second), (second, scene.broker)):
            assert jobs.wait_until(lambda it=broker: others(it), BOUND, step=0.1), broker.status()["broker"]
            [row] = others(broker)
            assert row["pid"] == other.job.pid and row["device"] == broker.status()["broker"]["devices"][0]["uuid"], row
            line = f"also managed by another broker (process {other.job.pid} of user"
            for words in (["status"], ["queue"], ["doctor"]):
                page = weft(scene, *words, more=broker.variables()).stdout
                assert line in page and "weft broker --shared" in page, page
            assert broker.job.stderr().count(line) == 1, broker.job.explain()
        assert others(apart) == [] and "another broker" not in weft(scene, "doctor", more=apart.variables()).stdout
        # A broker without jobs there is no neighbour, whether the name was its own or not.
        first.terminate()
        assert jobs.wait_until(lambda: others(scene.broker) == [] and others(second) == [], BOUND, step=0.1), (others(scene.broker), others(second))
    finally:
        for broker in brokers:
            broker.stop()


def in_a_namespace(*command):
    """Such a process is the first one of a pid namespace of its own, with its own /proc."""
    return ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *map(str, command)]


@pytest.mark.finding("hardware-F6")
def test_the_number_of_a_process_of_another_namespace_means_nothing(scene):
    tried = shutil.which("unshare") and subprocess.run(in_a_namespace("true"), capture_output=True, check=False)
    if not tried or tried.returncode:
        pytest.skip("no pid namespaces here")
    # The broker's second process is a stopped one; the client is the second process of its own
    # namespace.
    broker = scene.broker
    script = 'sleep 600 & kill -STOP $!; [ $! = 2 ] && exec "$@"'
    broker.job = jobs.Job(
        in_a_namespace("sh", "-c", script, "sh", paths.WEFT, "broker", *broker.arguments), environment={**broker.environment(), "WEFT_LOG": "info"}, folder=scene.folder, name="broker"
    )
    assert jobs.wait_until(lambda: jobs.socket_answers(str(broker.socket)) or not broker.job.running(), BOUND) and broker.job.running(), broker.job.explain()
    ready = scene.folder / "ready"
    command = [COMPANION, "--while", scene.running, "--ready", ready, "--result", scene.folder / "job.json"]
    job = scene.job(in_a_namespace("sh", "-c", '"$@" & [ $! = 2 ] && wait $!', "sh", *command), "job", more={"WEFT_MEMORY": "1GiB"})
    assert jobs.wait_until(lambda: ready.exists() or not job.running(), BOUND) and job.running(), job.explain()
    [row] = scene.status()["clients"]
    assert row["pid"] == 2 and row["stopped"] is False, row
    scene.running.unlink()
    scene.finish(job)
    # `unshare` hands no signal on.
    broker.job.kill()


@contextlib.contextmanager
def control_group(limit):
    """A control group with this limit of memory, as a folder, or None if none can be made."""
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    first = next((path for _, controllers, path in own if "memory" in controllers.split(",")), None)
    second = next((path for _, controllers, path in own if not controllers), None)
    places = [("/sys/fs/cgroup/memory", first, "memory.limit_in_bytes"), ("/sys/fs/cgroup", second, "memory.max")]
    for root, path, file in places:
        if path is None:
            continue
        group = Path(root + path) / f"weft-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            # In the second version no process may be in a group whose children have limits: then
            # the file is not there.
            if (group / file).exists():
                (group / file).write_text(str(limit))
                yield group
                return
        finally:
            assert jobs.wait_until(lambda at=group: not (at / "cgroup.procs").read_text().strip(), BOUND, step=0.1)
            group.rmdir()
    yield None


def in_group(group, *command):
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *map(str, command)]


@pytest.mark.finding("hardware-F3")
def test_a_job_that_its_control_group_could_not_hold_does_not_come_to_managed_memory(scene):
    scene.device.settings["SIMGPU_MEMORY"] = str(12 << 30)
    with control_group(2 << 30) as group:
        if group is None:
            pytest.skip("no control group can be made here")
        scene.broker.start()
        scene.companion("foreground", more={"WEFT_MEMORY": "6GiB"})
        ready = {name: scene.folder / f"{name}.ready" for name in ("free", "cramped", "asked")}

        def companion(name):
            return [COMPANION, "--while", scene.running, "--ready", ready[name], "--result", scene.folder / f"{name}.json", "--pause", 500]

        open_ = {"WEFT_BACKING": "auto", "WEFT_MEMORY": "6GiB"}
        try:
            cramped = scene.job(in_group(group, *companion("cramped")), "cramped", more=open_)

            def row(which, job):
                return next((row for row in json.loads(weft(scene, "queue", "--json").stdout)[which] if row["pid"] == job.pid), None)

            assert jobs.wait_until(lambda: row("waiting", cramped), BOUND, step=0.1), cramped.explain()
            reason = row("waiting", cramped)["reason"]
            assert "of device memory" in reason and "its control group, which leaves" in reason, reason
            # One without a limit begins at once, on managed memory.
            free = scene.job(companion("free"), "free", more=open_)
            assert jobs.wait_until(lambda: ready["free"].exists(), BOUND), free.explain()
            assert row("running", free)["memory"].startswith("managed"), row("running", free)
            assert not ready["cramped"].exists()
            # A job that asks for managed memory gets it, is warned, and shows the host memory
            # that is left.
            asked = scene.job(in_group(group, *companion("asked")), "asked", more={"WEFT_BACKING": "managed", "WEFT_MEMORY": "3GiB"})
            assert jobs.wait_until(lambda: ready["asked"].exists(), BOUND), asked.explain()
            assert "raise Slurm's --mem" in asked.stderr(), asked.explain()
            assert jobs.wait_until(lambda: 0 < scene.row(asked)["host_left"] <= 2 << 30, BOUND, step=0.1), scene.row(asked)
            assert scene.row(free)["host_left"] == 0, scene.row(free)
        finally:
            scene.running.unlink()
            for job in scene.jobs:
                job.kill()
