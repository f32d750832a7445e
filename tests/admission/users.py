# SPDX-License-Identifier: MIT OR Apache-2.0
"""The stage of cases with jobs of several users: a simulated device of 8 GiB and one shared broker.

The users are numbers that no account of this machine has. The files that a job loads lie in the
case's folder, which they may read.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from harness import jobs, paths

HOLDS = Path(__file__).resolve().parent / "holds.py"
# A wait fails after this time without an event in the scene: no job came, began, took memory,
# printed a line or ended. The whole duration is the machine's business.
BOUND = 60.0
# But even a scene with events all the time is not waited for longer.
LONGEST = 20 * BOUND
MEMORY = 8 << 30
ANN, BEA, SERVICE = 61001, 61002, 61000


def becomes(uid):
    """A child's preparation before it runs the command: it is this user from then on."""

    def drop():
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)

    return drop


@functools.cache
def python():
    """An interpreter that every user may start; the one of this run may lie in root's home. None:
    there is none."""
    for program in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        command = [program, "-c", "import argparse, ctypes, json"]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=BOUND, check=False, preexec_fn=becomes(ANN), cwd="/")
        except OSError:
            continue
        if done.returncode == 0:
            return program
    return None


class Scene:
    """A device, a shared broker and jobs of several users in a folder that all may enter."""

    def __init__(self, folder, options, policy, *, broker=(), service=False):
        self.folder = Path(folder)
        self.folder.chmod(0o755)
        self.policy, self.arguments = policy, broker
        self.owner = SERVICE if service else 0
        self.bin = self.folder / "bin"
        (self.bin / "lib").mkdir(parents=True)
        for file, name in (
            (paths.WEFT, "weft"),
            (paths.LIBWEFT, "libweft.so"),
            (paths.SIMGPU_CUDA, "lib/libcuda.so.1"),
            (paths.SIMGPU_DEVICE, "simgpu-device"),
            (HOLDS, "holds.py"),
        ):
            shutil.copy(Path(file).resolve(), self.bin / name)
            (self.bin / name).chmod(0o755)
        self.place = self.folder / "broker"
        self.place.mkdir(mode=0o755)
        os.chown(self.place, self.owner, self.owner)
        self.socket = self.place / "broker.sock"
        for uid in (ANN, BEA):
            (self.folder / str(uid)).mkdir(mode=0o700)
            os.chown(self.folder / str(uid), uid, uid)
        (self.folder / "device").mkdir()
        (self.folder / "device").chmod(0o777)
        self.jobs, self.brokers = [], 0

    def open(self):
        self.start()

    def start(self):
        self.brokers += 1
        words = ["broker", "--shared", "--socket", self.socket, *(["--policy", self.policy] if self.policy else []), *self.arguments]
        self.broker = jobs.Job([self.bin / "weft", *words], environment={**jobs.clean_environment(), "WEFT_LOG": "info", "WEFT_STATE_DIR": ""}, folder=self.folder, name=f"broker{self.brokers}", limits=becomes(self.owner))
        assert jobs.wait_until(lambda: self.query() or not self.broker.running(), BOUND) and self.broker.running(), self.broker.explain()

    def close(self):
        for job in self.jobs:
            job.kill()
        self.broker.terminate()

    def environment(self, uid):
        return {
            **jobs.clean_environment(),
            "HOME": str(self.folder / str(uid)),
            "XDG_RUNTIME_DIR": str(self.folder / str(uid)),
            "WEFT_PROFILE_DIR": str(self.folder / str(uid) / "profiles"),
            "WEFT_STATE_DIR": str(self.folder / str(uid) / "state"),
            "WEFT_SOCKET": str(self.socket),
            "WEFT_CUDA_LIBRARY": str(self.bin / "lib/libcuda.so.1"),
            "SIMGPU_SOCKET": str(self.folder / "device/device.sock"),
            "SIMGPU_DEVICE_BIN": str(self.bin / "simgpu-device"),
            "SIMGPU_MEMORY": str(MEMORY),
            "SIMGPU_USERS": "all",
            "LD_LIBRARY_PATH": str(self.bin / "lib"),
        }

    def job(self, uid, name, *takes, weft=(), preload=False, **variables):
        """Starts one. It stays until `release(name)`. `preload`: without weft run."""
        command = [python(), self.bin / "holds.py", self.file(uid, name), "--while", self.folder / f"{name}.stay"]
        (self.folder / f"{name}.stay").touch()
        for take in takes:
            command += ["--take", take]
        environment = {**self.environment(uid), **variables}
        if preload:
            environment["LD_PRELOAD"] = str(self.bin / "libweft.so")
        else:
            command = [self.bin / "weft", "run", *weft, "--", *command]
        job = jobs.Job(command, environment=environment, folder=self.folder, name=name, limits=becomes(uid), cwd="/")
        job.uid = uid
        self.jobs.append(job)
        return job

    def file(self, uid, name):
        return self.folder / str(uid) / f"{name}.json"

    def events(self, job):
        return [line["event"] for line in jobs.lines_of(self.file(job.uid, job.name))]

    def begun(self, job):
        return next(line["at"] for line in jobs.lines_of(self.file(job.uid, job.name)) if line["event"] == "begun")

    def release(self, job):
        (self.folder / f"{job.name}.stay").unlink(missing_ok=True)

    def finish(self, job):
        self.release(job)
        self.comes_true(lambda: not job.running())
        code = job.wait(0.1)
        assert not job.timed_out and code == 0, job.explain()

    def weft(self, uid, *words, code=0):
        """A command of weft's as this user types it."""
        command = [str(self.bin / "weft"), *map(str, words)]
        done = subprocess.run(command, env=self.environment(uid), stdin=subprocess.DEVNULL, capture_output=True, timeout=BOUND, text=True, check=False, preexec_fn=becomes(uid), cwd="/")
        assert done.returncode == code, f"user {uid}, weft {' '.join(words)}: {done}"
        return done

    def query(self, what="queue"):
        done = subprocess.run([str(self.bin / "weft"), what, "--json"], env=self.environment(BEA), stdin=subprocess.DEVNULL, capture_output=True, timeout=BOUND, check=False, preexec_fn=becomes(BEA), cwd="/")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def until(self, what, condition):
        said = lambda: "\n".join(f"{job.name}: {self.events(job)} {job.stderr()[-600:]}" for job in self.jobs)  # noqa: E731
        assert self.comes_true(condition), f"{what}: nothing has happened for {BOUND:.0f} s\n{json.dumps(self.query(), indent=1)}\n{said()}"

    def happened(self):
        """A value that differs from an earlier one when something has happened in between."""
        files = lambda job: (job.stderr_path, *([self.file(job.uid, job.name)] if hasattr(job, "uid") else []))  # noqa: E731
        return [(job.process.poll(), *map(jobs.size_of, files(job))) for job in [*self.jobs, self.broker]]

    def comes_true(self, condition):
        """Waits for it for as long as things happen."""
        return jobs.wait_while(condition, self.happened, BOUND, LONGEST)

    def row(self, kind, job):
        return next((row for row in (self.query() or {kind: []})[kind] if row["pid"] == job.pid), None)

    def holder(self, uid, name, memory, **more):
        """A job that has its memory."""
        job = self.job(uid, name, memory, weft=["--memory", memory], **more)
        self.until(f"{name} has its memory", lambda: "took" in self.events(job))
        return job

    def waiter(self, uid, name, memory, **more):
        job = self.job(uid, name, memory, weft=["--memory", memory], **more)
        self.until(f"{name} waits", lambda: self.row("waiting", job))
        return job
