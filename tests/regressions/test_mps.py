# SPDX-License-Identifier: MIT OR Apache-2.0
"""`--mps`: the broker's own MPS daemon. A control program of a case's own stands in for NVIDIA's
(programs/mps_control.c), and the simulated driver connects to it as a client does."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from built import compiled
from fixtures.scene import BOUND, COMPANION, weft_in
from harness import jobs, paths

CONTROL = "nvidia-cuda-mps-control"
UUID = "GPU-"


def daemons():
    """Control daemons on this machine, by process: their environment."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if entry.joinpath("cmdline").read_bytes().split(b"\0")[0].endswith(CONTROL.encode()):
                lines = entry.joinpath("environ").read_bytes().decode().split("\0")
                found[int(entry.name)] = dict(line.split("=", 1) for line in lines if "=" in line)
        except OSError:
            continue
    return found


class Machine:
    """A scene whose broker may start MPS. One at a time, because a daemon keeps all other brokers
    of the machine from it."""

    def __init__(self, scene, monkeypatch):
        self.scene, self.monkeypatch = scene, monkeypatch
        self.bin = scene.folder / "bin"
        self.bin.mkdir()
        shutil.move(compiled(scene, "mps_control.c"), self.bin / CONTROL)
        monkeypatch.setenv("PATH", f"{self.bin}:{os.environ['PATH']}")
        # A daemon's process outlives its case only if the case fails.
        self.pipes = Path(f"{scene.broker.socket}.mps")
        scene.device.settings["SIMGPU_MODE"] = "control"
        own, variables = scene.broker.variables, dict(scene.device.environment())
        self.more = {}
        scene.broker.variables = lambda: {**own(), **variables, **self.more}

    def start(self, mode, **more):
        self.more = more
        self.scene.broker.arguments = ["--mps", mode]
        self.scene.broker.start()
        assert jobs.wait_until(lambda: self.mps()["state"] != "starting", BOUND), self.mps()
        return self.mps()

    def mps(self):
        return self.scene.status()["broker"]["mps"]

    def log(self):
        return self.scene.broker.job.stderr()

    def environment(self, **more):
        return {**jobs.clean_environment(), **self.scene.device.environment(), **self.scene.broker.variables(), **more}

    def weft(self, *arguments, **more):
        done = weft_in(self.environment(**more), *arguments)
        assert done.returncode == 0, done
        return done

    def run(self, *options, command=("printenv", "CUDA_MPS_PIPE_DIRECTORY"), **more):
        """The output of a job under `weft run`, and the lines on stderr."""
        done = weft_in(self.environment(**more), "run", *options, "--", *command)
        return done.stdout.strip(), done.stderr

    def job(self, name, *options, **more):
        """A companion under `weft run`."""
        ready = self.scene.folder / f"{name}.ready"
        command = [COMPANION, "--while", self.scene.running, "--ready", ready, "--result", self.scene.folder / f"{name}.json", "--pause", "3000"]
        job = jobs.Job([paths.WEFT, "run", *options, "--", *command], environment=self.environment(**more), folder=self.scene.folder, name=name)
        self.scene.jobs.append(job)
        assert jobs.wait_until(lambda: ready.exists() or not job.running(), BOUND) and job.running(), job.explain()
        self.scene.attached(job)
        return job

    def words(self, under, apart):
        """Waits until the device has these numbers of clients under one server, and of others."""

        def device():
            found = self.scene.status()["broker"]["devices"]
            return next((device for device in found if (device["under_mps"], device["not_under_mps"]) == (under, apart)), None)

        assert jobs.wait_until(lambda: device() is not None, BOUND, step=0.1), self.scene.status()["broker"]["devices"]
        return device()["core"]["switch_cost"]

    def gone(self):
        return not daemons() and not self.pipes.exists()

    def ends_clean(self):
        self.scene.broker.stop()
        assert self.gone(), f"{daemons()}, {self.pipes.exists()}\n{self.log()}"


@pytest.fixture
def machine(scene, monkeypatch):
    with open("/tmp/weft-test-mps.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert jobs.wait_until(lambda: not any(Path(one.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control").exists() for one in daemons().values()), BOUND), f"daemons of others: {daemons()}"
        made = Machine(scene, monkeypatch)
        yield made
        scene.close()
        for pid, environment in daemons().items():
            if environment.get("PATH", "").startswith(str(made.bin)):
                os.kill(pid, signal.SIGKILL)


def test_the_broker_starts_a_daemon_for_its_jobs_and_ends_it(machine):
    mps = machine.start("on")
    [(pid, environment)] = daemons().items()
    assert mps == {"mode": "on", "state": "on", "why": None, "process": pid, "pipes": str(machine.pipes), "visible": None, "devices": None}, mps
    assert machine.pipes.stat().st_mode & 0o777 == 0o700
    assert environment["CUDA_MPS_LOG_DIRECTORY"] == str(machine.pipes) and "CUDA_VISIBLE_DEVICES" not in environment, environment
    # The first job prints the risk, no other.
    pipes, lines = machine.run()
    assert pipes == str(machine.pipes) and "a fatal fault of one ends all" in lines and len(lines.splitlines()) == 1, lines
    assert machine.run() == (str(machine.pipes), "")
    one, other = machine.job("one", "-p", "0"), machine.job("other")
    assert machine.words(2, 0) == 0
    assert f"MPS: daemon {pid} at {machine.pipes}" in machine.weft("status").stdout
    rows = {row["what"]: row["found"] for row in json.loads(machine.weft("doctor", "--json").stdout)["rows"]}
    assert "mps, broker" in rows and f"server {pid} with 2 clients" in rows["mps servers"], rows
    machine.scene.finish_companions(one, other)
    machine.ends_clean()


@pytest.mark.finding("users4-L4")
def test_without_the_option_nothing_starts(machine):
    machine.scene.broker.start()
    assert machine.mps()["state"] == "off" and not daemons()
    assert machine.run() == ("", "")
    for mode in ("on", "auto"):
        out, lines = machine.run("--mps", mode, command=("echo", "ran"))
        assert out == "ran" and "without MPS" in lines and "--mps off" in lines and len(lines.splitlines()) == 1, lines


def test_weft_run_has_its_broker_start_it(machine):
    done = weft_in(machine.environment(WEFT_AUTOSTART="1"), "run", "--mps", "auto", "--", "printenv", "CUDA_MPS_PIPE_DIRECTORY")
    assert done.stdout.strip() == str(machine.pipes), done
    assert machine.run("--mps", "off") == ("", "")
    assert daemons()
    machine.weft("stop")
    assert machine.gone(), daemons()


def test_weft_toml_asks_for_it(machine):
    settings = machine.scene.folder / "weft.toml"
    settings.write_text('[broker]\nmps = "auto"\n')
    machine.more = {"WEFT_CONFIG": str(settings)}
    machine.scene.broker.start()
    assert jobs.wait_until(lambda: machine.mps()["state"] == "on", BOUND), machine.mps()
    machine.ends_clean()


def test_a_killed_broker_s_daemon_stays_and_the_next_one_has_it(machine):
    before = machine.start("on")["process"]
    job = machine.job("job")
    machine.scene.broker.kill()
    assert list(daemons()) == [before] and job.running(), job.explain()
    assert machine.start("auto")["process"] == before
    assert "takes over" in machine.log(), machine.log()
    machine.scene.attached(job)
    machine.job("late")
    # The old job reports its server to the new broker.
    assert machine.words(2, 0) == 0
    # It stays for the next one while jobs use it, and then ends.
    machine.scene.broker.stop()
    assert list(daemons()) == [before] and job.running(), job.explain()
    machine.start("on")
    machine.scene.running.unlink()
    machine.scene.finish(job)
    assert jobs.wait_until(lambda: not machine.scene.status()["clients"], BOUND)
    machine.ends_clean()


def test_a_daemon_stays_for_jobs_that_have_not_attached_to_its_broker(machine):
    before = machine.start("on")["process"]
    job = machine.job("job")
    os.kill(job.pid, signal.SIGSTOP)
    machine.scene.broker.kill()
    assert machine.start("on")["process"] == before
    machine.scene.broker.stop()
    os.kill(job.pid, signal.SIGCONT)
    assert list(daemons()) == [before], machine.log()
    assert machine.start("on")["process"] == before
    machine.scene.finish_companions(job)
    assert jobs.wait_until(lambda: not machine.scene.status()["clients"], BOUND)
    machine.ends_clean()


def test_a_broker_without_mps_ends_a_daemon_that_was_left(machine):
    machine.start("on")
    job = machine.job("job")
    machine.scene.broker.kill()
    machine.scene.broker.arguments = []
    machine.scene.broker.start()
    # It takes no new clients, and the old one runs on.
    assert job.running() and daemons()
    machine.scene.running.unlink()
    machine.scene.finish(job)
    assert jobs.wait_until(lambda: not daemons(), BOUND), daemons()
    # Left without a job, it ends at once.
    machine.scene.broker.stop()
    machine.start("on")
    machine.scene.broker.kill()
    machine.scene.broker.arguments = []
    machine.scene.broker.start()
    assert jobs.wait_until(machine.gone, BOUND), daemons()


def test_a_daemon_that_ends_takes_no_jobs(machine):
    before = machine.start("on")["process"]
    job = machine.job("job")
    ending = subprocess.Popen([machine.bin / CONTROL], env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(machine.pipes)}, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    ending.stdin.write("quit\n")
    ending.stdin.close()
    machine.scene.broker.kill()
    mps = machine.start("on")
    assert mps["state"] == "off" and f"process {before}, the daemon of an earlier broker" in mps["why"], mps
    assert job.running(), job.explain()
    assert ending.poll() is None
    machine.scene.finish_companions(job)
    assert ending.wait(BOUND) == 0


def test_a_daemon_that_dies_is_noticed(machine):
    process = machine.start("on")["process"]
    os.kill(process, signal.SIGKILL)
    assert jobs.wait_until(lambda: machine.mps()["state"] == "off", BOUND)
    assert f"process {process}" in machine.mps()["why"], machine.mps()
    out, lines = machine.run(command=("echo", "ran"))
    assert out == "ran" and "has ended" in lines, lines


@pytest.mark.finding("users4-M2")
def test_a_control_program_that_hangs_ends_with_its_broker(machine):
    machine.more = {"FAKE_MPS": "hangs"}
    machine.scene.broker.arguments = ["--mps", "on"]
    machine.scene.broker.start()
    assert jobs.wait_until(daemons, BOUND)
    # The broker alone, without its process group.
    os.kill(machine.scene.broker.job.pid, signal.SIGKILL)
    assert jobs.wait_until(lambda: not daemons(), BOUND), daemons()


def descendants(word):
    """Processes with this word in their command line."""
    found = subprocess.run(["pgrep", "-f", word], capture_output=True, text=True, check=False).stdout
    return found.split()


@pytest.mark.finding("users4-L1")
def test_a_script_that_hangs_leaves_no_program(machine):
    """A script in the control program's place; its child has a mark that no other process has."""
    mark = f"7{os.getpid()}"
    (machine.bin / CONTROL).unlink()
    (machine.bin / CONTROL).write_text(f"#!/bin/sh\nsleep {mark}\nexit 0\n")
    (machine.bin / CONTROL).chmod(0o755)
    mps = machine.start("on")
    assert "did not answer within 5 s" in mps["why"], mps
    assert jobs.wait_until(lambda: not descendants(f"^sleep {mark}"), BOUND)


@pytest.mark.finding("users4-L3")
def test_a_daemon_that_hangs_takes_no_jobs(machine):
    process = machine.start("on")["process"]
    os.kill(process, signal.SIGSTOP)
    try:
        out, lines = machine.run(command=("echo", "ran"))
        assert out == "ran" and f"process {process}) does not answer" in lines, lines
    finally:
        os.kill(process, signal.SIGCONT)
    # A later job has it again.
    assert jobs.wait_until(lambda: machine.run()[0] == str(machine.pipes), BOUND, step=1.0), machine.mps()
    machine.ends_clean()


@pytest.mark.finding("users4-L2")
def test_the_folder_of_a_daemon_that_did_not_start_goes_with_the_broker(machine):
    machine.start("on", FAKE_MPS="fails")
    assert machine.pipes.exists()
    machine.scene.broker.stop()
    assert not machine.pipes.exists()


def test_a_profile_may_be_taken_without_mps(machine):
    machine.start("on")
    show = ("sh", "-c", "echo ${CUDA_MPS_PIPE_DIRECTORY-none}")
    for mode, expected in (("off", "none"), ("on", str(machine.pipes))):
        done = weft_in(machine.environment(), "profile", "--name", "x", "--mps", mode, "--", *show)
        assert done.stdout.splitlines()[0] == expected, done
    machine.ends_clean()


OBSTACLES = {
    "missing": ("is not in PATH", {}),
    "fails": ("-d failed: Cannot start for the test", {"FAKE_MPS": "fails"}),
    "hangs": ("did not answer within 5 s", {"FAKE_MPS": "hangs"}),
    "mute": ("it does not answer", {"FAKE_MPS": "mute"}),
    "named": ("CUDA_MPS_PIPE_DIRECTORY=/elsewhere is set", {"CUDA_MPS_PIPE_DIRECTORY": "/elsewhere"}),
    "exclusive": ("default compute mode", {"SIMGPU_COMPUTE_MODE": "3"}),
    "mig": ("MIG instance", {"SIMGPU_DEVICES": "40GiB:10GiB@2+5GiB@1"}),
    "hidden": ("no device", {"CUDA_VISIBLE_DEVICES": ""}),
}


@pytest.mark.parametrize("mode", ["on", "auto"])
@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_what_stands_in_the_way_is_told_and_jobs_run(machine, obstacle, mode):
    words, more = OBSTACLES[obstacle]
    if obstacle == "missing":
        machine.monkeypatch.setenv("PATH", "/bin" if not shutil.which(CONTROL, path="/bin:/usr/bin") else "/nonexistent")
    mps = machine.start(mode, **more)
    assert mps["state"] == "off" and words in mps["why"], mps
    assert not daemons(), daemons()
    assert words in machine.weft("status").stdout
    machine.more = {}
    out, lines = machine.run(command=("/bin/echo", "ran"))
    assert out == "ran", lines
    if mode == "on":
        assert words in lines and len(lines.splitlines()) == 1, lines
    else:
        assert lines == "", lines
    report = json.loads(weft_in(machine.environment(), "doctor", "--json").stdout)
    [row] = [row for row in report["rows"] if row["what"] == "mps, broker"]
    assert words in row["found"] and row["verdict"] == ("warn" if mode == "on" else "ok"), row


def test_a_long_path_is_told(machine):
    folder = machine.scene.folder / ("x" * (88 - len(str(machine.scene.folder)) - len("/broker.sock.mps")))
    folder.mkdir()
    machine.scene.broker.socket = folder / "broker.sock"
    mps = machine.start("on", WEFT_SOCKET=str(folder / "broker.sock"))
    assert "87 bytes" in mps["why"] and not daemons(), mps


def test_a_shared_broker_refuses_it(machine):
    done = weft_in(machine.environment(), "broker", "--shared", "--mps", "on")
    assert done.returncode == 2 and "cannot be used with" in done.stderr and "--mps" in done.stderr, done


def test_another_daemon_is_in_the_way_also_another_user_s(machine):
    """As root with another user, else with a second broker of the same user."""
    pipes = machine.scene.folder / "theirs"
    pipes.mkdir()
    machine.scene.folder.chmod(0o711)
    identity = {"user": 61001, "group": 61001, "extra_groups": []} if os.geteuid() == 0 else {}
    if identity:
        os.chown(pipes, 61001, 61001)
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(pipes)}
    subprocess.run([machine.bin / CONTROL, "-d"], env=environment, check=True, timeout=BOUND, **identity)
    [theirs] = daemons()
    try:
        mps = machine.start("on")
        assert mps["state"] == "off" and f"process {theirs} of user" in mps["why"], mps
        if identity:
            assert "61001" in mps["why"], mps
        assert list(daemons()) == [theirs]
    finally:
        os.kill(theirs, signal.SIGKILL)
    # A job that begins later has a daemon of the broker's.
    assert jobs.wait_until(lambda: machine.run()[0] == str(machine.pipes), BOUND, step=1.0), machine.mps()
    machine.ends_clean()


def test_two_brokers_of_one_user_have_one_daemon(machine):
    machine.start("auto")
    second = jobs.Broker(machine.scene.folder / "bin", machine.scene.device, extra=("--mps", "auto"))
    second.start()
    try:
        assert jobs.wait_until(lambda: second.status()["broker"]["mps"]["state"] == "off", BOUND)
        assert "is an MPS daemon" in second.status()["broker"]["mps"]["why"]
    finally:
        second.stop()
    assert len(daemons()) == 1
    machine.ends_clean()


def test_a_job_under_another_server_makes_the_device_switch(machine):
    machine.start("on")
    own = machine.job("own")
    assert machine.words(1, 0) == 0
    pipes = machine.scene.folder / "other"
    pipes.mkdir()
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(pipes)}
    subprocess.run([machine.bin / CONTROL, "-d"], env=environment, check=True, timeout=BOUND)
    other = machine.job("other", CUDA_MPS_PIPE_DIRECTORY=str(pipes))
    assert machine.words(1, 1) > 0
    assert "1 of its jobs share it under one MPS server, 1 do not" in machine.weft("status").stdout
    doctor = machine.weft("doctor").stdout
    assert "2 servers" in doctor and "jobs of different servers take turns" in doctor, doctor
    other.terminate()
    assert machine.words(1, 0) == 0
    subprocess.run([machine.bin / CONTROL], env=environment, input="quit\n", text=True, check=True, timeout=BOUND)
    machine.scene.finish_companions(own)
    machine.ends_clean()


def test_a_daemon_of_some_devices_has_their_uuids_and_jobs_too(machine):
    mps = machine.start("on", CUDA_VISIBLE_DEVICES="0")
    [environment] = daemons().values()
    uuid = environment["CUDA_VISIBLE_DEVICES"]
    assert uuid.startswith("GPU-") and (mps["visible"], mps["devices"]) == ("0", uuid), mps
    show = ("sh", "-c", "echo ${CUDA_MPS_PIPE_DIRECTORY-none} $CUDA_VISIBLE_DEVICES")
    machine.run()
    assert machine.run(command=show, CUDA_VISIBLE_DEVICES="0") == (f"{machine.pipes} {uuid}", "")
    assert machine.run(command=show, CUDA_VISIBLE_DEVICES=uuid[:12]) == (f"{machine.pipes} {uuid[:12]}", "")
    machine.more = {}
    for other in ({}, {"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "GPU-0000"}):
        out, lines = machine.run(command=show, **other)
        why = "name devices by UUID" if other else "and this job has all"
        assert out == f"none {other.get('CUDA_VISIBLE_DEVICES', '')}".strip() and why in lines, (out, lines)
    # A broker of other devices ends it and starts its own.
    machine.scene.broker.kill()
    machine.start("on")
    [environment] = daemons().values()
    assert "CUDA_VISIBLE_DEVICES" not in environment, environment
    machine.ends_clean()


def test_variables_of_a_job_are_not_those_of_the_daemon(machine):
    machine.start("on", CUDA_MPS_CLIENT_PRIORITY="1", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="10", LD_PRELOAD="")
    [environment] = daemons().values()
    assert "CUDA_MPS_CLIENT_PRIORITY" not in environment and "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in environment, environment
    assert environment["WEFT_MODE"] == "off", environment
    machine.ends_clean()


def test_a_job_beside_a_more_important_one_is_below_normal(machine):
    machine.scene.broker.start()
    show = ("sh", "-c", "echo ${CUDA_MPS_CLIENT_PRIORITY-normal}")
    assert machine.run("-p", "4", command=show) == ("normal", "")
    job = machine.job("job", "-p", "0")
    for priority, expected in (("0", "normal"), ("1", "1"), ("4", "1"), ("5", "1")):
        assert machine.run("-p", priority, command=show) == (expected, "")
    assert machine.run("-p", "4", command=show, CUDA_MPS_CLIENT_PRIORITY="0") == ("0", "")
    assert machine.run("-p", "4", command=show, WEFT_DEVICE_PRIORITIES="off") == ("normal", "")
    machine.scene.finish_companions(job)
