# SPDX-License-Identifier: MIT OR Apache-2.0
"""weft's own commands on a machine with a driver and no device: `weft doctor`, NVML, `weft run` and
`weft broker`, and NVIDIA's control daemon together with them."""

import contextlib
import json
import os
import subprocess
from pathlib import Path

from harness import jobs
from stage import BOUND, case

# The rows that `weft doctor` must have, the verdict of each, and a word of its text.
DOCTOR = {
    "driver": ("ok", "libcuda.so"),
    "driver version": ("fail", "cuInit returns 100"),
    "nvml": ("warn", "nvmlInit_v2 returns 9"),
    "libweft": ("ok", "libweft.so"),
    'interception: dlopen("libcuda.so.1")': ("ok", "reaches weft"),
    'interception: dlopen("libcuda.so")': ("ok", "reaches weft"),
    "interception: dlopen of the driver's absolute path": ("ok", "reaches weft"),
    "interception: dlsym(RTLD_DEFAULT)": ("ok", "reaches weft"),
    "interception: cuGetProcAddress_v2": ("ok", "reaches weft"),
    "cuInit through weft": ("fail", "returns 100"),
    "symbol table": ("ok", "knows every function of this driver"),
}

# Rows about the present state of the machine, which may change between two questions: the daemon's
# server comes and goes.
MOMENTARY = {"broker", "past weft", "mps", "mps servers"}


def doctor(scene, **more):
    """The rows, from --json; the plain form must have the same."""
    told = scene.weft("doctor", "--json", **more)
    assert told.returncode == 1, f"exit {told.returncode}: {told.stderr}"
    assert not told.stderr, told.stderr
    report = json.loads(told.stdout)
    assert report["healthy"] is False
    rows = {row["what"]: row for row in report["rows"]}
    plain = scene.weft("doctor", **more)
    assert plain.returncode == 1 and not plain.stderr, f"exit {plain.returncode}: {plain.stderr}"
    for row in report["rows"]:
        assert row["what"] in plain.stdout and (row["what"] in MOMENTARY or row["found"] in plain.stdout), f"only with --json: {row}"
    return rows


def stands(rows, wanted):
    wrong = []
    for what, (verdict, found) in wanted.items():
        row = rows.get(what)
        if row is None or row["verdict"] != verdict or found not in row["found"]:
            wrong.append(f"{what}: {row}, not {verdict} with {found!r}")
    assert not wrong, "\n".join(wrong)


@case
def doctor_tells_a_driver_without_a_device(scene):
    rows = doctor(scene)
    stands(rows, DOCTOR)
    assert os.path.realpath(scene.driver.cuda) == os.path.realpath(rows["driver"]["found"].split(" (")[0]), rows["driver"]
    failed = sorted(what for what, row in rows.items() if row["verdict"] == "fail")
    assert failed == sorted(what for what, (verdict, _) in DOCTOR.items() if verdict == "fail"), failed
    assert all(rows[what]["advice"] for what in failed)
    return rows["driver version"]["found"]


@case
def doctor_takes_the_named_library(scene):
    more = {"WEFT_CUDA_LIBRARY": str(scene.driver.cuda), "LD_LIBRARY_PATH": ""}
    rows = doctor(scene, more=more)
    wanted = {what: how for what, how in DOCTOR.items() if what != "nvml"}
    stands(rows, wanted)


@case
def a_job_of_weft_run_ends_as_without(scene):
    """`weft run` on such a machine: the job's own answer and exit code, and a broker that ends."""
    program = scene.compiled("calls.c")
    names = scene.folder / "called"
    names.write_text("cuDeviceGetCount\ncuCtxSynchronize\n")
    plain = scene.run("plain", [program, "after", names], weft=False)
    scene.broker.start()
    told = scene.weft("run", "--", program, "after", names)
    assert (told.returncode, told.stdout.encode()) == (plain.process.returncode, plain.stdout()), f"exit {told.returncode}\n{told.stdout[-300:]}\n{told.stderr}"
    failing = scene.weft("run", "--", "sh", "-c", "exit 7")
    assert failing.returncode == 7, f"exit {failing.returncode}: {failing.stderr}"
    status = scene.broker.status()
    assert status is not None and not status["clients"], f"the broker still lists {status and status['clients']}"
    return told.stderr.strip()


class Control:
    """The control daemon in a folder of its own, in the foreground, so that its process is
    known."""

    def __init__(self, scene, folder=None):
        self.scene, self.folder = scene, folder or scene.folder
        self.pipes, self.logs = self.folder / "p", self.folder / "l"
        for folder in (self.pipes, self.logs):
            folder.mkdir()
        path = os.pathsep.join([*map(str, scene.driver.programs), os.environ.get("PATH", "")])
        self.variables = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipes), "CUDA_MPS_LOG_DIRECTORY": str(self.logs), "PATH": path}
        self.program = scene.driver.programs[0] / "nvidia-cuda-mps-control"

    def __enter__(self):
        environment = {**self.scene.environment(False), **self.variables}
        self.job = jobs.Job([self.program, "-f"], environment=environment, folder=self.folder, name="mps", cwd=self.folder)
        self.scene.jobs.append(self.job)
        there = jobs.wait_until(lambda: (self.pipes / "control").exists() or not self.job.running(), BOUND)
        assert there and self.job.running(), "the control daemon did not start\n" + self.job.explain() + self.log()
        return self

    def __exit__(self, *_):
        self.job.kill()

    def log(self):
        return "\n".join(file.read_text(errors="replace") for file in sorted(self.logs.glob("*.log")))

    def ask(self, words):
        """The control program's answer; it must end within its bound."""
        environment = {**self.scene.environment(False), **self.variables}
        done = subprocess.run([str(self.program)], env=environment, input=words + "\n", capture_output=True, text=True, timeout=BOUND, check=False)
        return done.returncode, done.stdout.strip(), done.stderr.strip()

    def quit(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.ask("quit -t 5")
        assert jobs.wait_until(lambda: not self.job.running(), BOUND), "the control daemon did not end\n" + self.log()
        return self.job.process.returncode


def another_runs():
    """Whether a control daemon that is none of ours is on this machine."""
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"nvidia-cuda-mps" in line.read_bytes().split(b"\0")[0]:
                return True
    return False


@case
def the_control_daemon_comes_up_and_ends_beside_weft(scene):
    """Clients of it get another error than without it, since its server finds no device: `weft
    doctor` gets it on both ways to the driver."""
    scene.broker.start()
    foreign = another_runs()
    assert foreign or doctor(scene)["mps"]["found"].startswith("not running")
    with Control(scene) as control:
        code, servers, error = control.ask("get_server_list")
        assert code == 0 and not servers, f"get_server_list: exit {code}, {servers!r}, {error!r}"
        rows = doctor(scene, more=control.variables)
        plain = rows["driver version"]["found"].rsplit(" ", 1)[-1]
        stands(rows, {**DOCTOR, "driver version": ("fail", "cuInit returns"), "cuInit through weft": ("fail", f"returns {plain}"), "mps": ("ok", "the control daemon runs")})
        assert plain in rows["driver version"]["advice"], f"no word on what {plain} is: {rows['driver version']['advice']}"
        late = scene.folder / "late"
        late.mkdir()
        # A broker that starts while the daemon runs, and the one from before, both answer.
        with jobs.Broker(late, scene.device) as second:
            assert second.status() is not None and scene.broker.status() is not None
        job = scene.run("job", ["true"], weft=True, more=control.variables)
        assert job.process.returncode == 0 and not job.stderr(), job.explain()
        control.quit()
    assert foreign or doctor(scene)["mps"]["found"].startswith("not running")
    assert scene.broker.status() is not None, "the broker went with it"
    return f"cuInit beside it says {plain}"


# The control daemon's server finds no device while clients ask: the result of a second cuInit
# depends on its state at that moment, also without weft.
SERVER_ENDS = {"100", "805", "806", "807", "808", "809", "810"}


def stable(stdout):
    """A client's lines, with one word for all ends of the server that its second cuInit meets."""
    lines = [line.split("\t") for line in stdout.splitlines()]
    for line in lines:
        if line[0] == "cuInit again" and line[1] in SERVER_ENDS:
            line[1] = "the server ends"
    return lines


@case
def a_job_under_the_control_daemon_says_the_same(scene):
    """A client of the control daemon, whose server finds no device: under weft the same answers as
    without it, and the daemon ends in the same way."""
    program = scene.compiled("calls.c")
    names = scene.folder / "called"
    names.write_text("cuDeviceGetCount\ncuCtxSynchronize\ncuMemFree_v2\n")
    scene.broker.start()
    said = {}
    for name, weft in (("plain", False), ("weft", True)):
        folder = scene.folder / name
        folder.mkdir()
        with Control(scene, folder) as control:
            job = scene.run(name, [program, "after", names], weft=weft, more=control.variables)
            said[name] = (job.process.returncode, stable(job.stdout().decode()), job.stderr(), control.quit())
    for what, plain, weft in zip(("exit code", "stdout", "stderr", "the daemon's exit code"), said["plain"], said["weft"]):
        assert plain == weft, f"{what}: {plain!r} without weft, {weft!r} with it"
    init = " says ".join(next(line for line in said["plain"][1] if line[0] == "cuInit"))
    return f"{init}, the daemon ends with {said['plain'][3]}"
