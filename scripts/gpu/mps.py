# SPDX-License-Identifier: MIT OR Apache-2.0
"""NVIDIA's multi-process service in our own folder: started for one measurement, ended by process
id.

It is started in the foreground, so that its id is known. Its pipes and logs lie in a private
folder, so that other users' jobs do not use it and our jobs do not use another daemon. The device's
compute mode stays as it is: the default mode allows MPS.
"""

import contextlib
import os
import subprocess
import time
from pathlib import Path

from harness import jobs

from . import machine, results, supervise
from .phase import Failure, Skip

# The daemon is there within a second; its server starts with the first client.
START, STOP = 15.0, 10.0


class Service:
    """Use with `with`. `variables` are for the jobs that use this service."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.pipes, self.logs = self.folder / "p", self.folder / "l"
        self.variables = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipes), "CUDA_MPS_LOG_DIRECTORY": str(self.logs)}
        self.program = machine.mps_control()
        self.job = None

    def __enter__(self):
        if not self.program:
            raise Skip(f"{machine.MPS_CONTROL} is not on this machine")
        self.pipes.mkdir()
        self.logs.mkdir()
        self.environment = {**jobs.clean_environment(), **jobs.RealDevice().environment(), **self.variables}
        # The control program starts its server by name; both lie in the same folder.
        self.environment["PATH"] = os.pathsep.join(filter(None, [self.environment.get("PATH"), str(Path(self.program).parent)]))
        # Killed with the phase if the phase is killed.
        self.job = jobs.Job(
            [self.program, "-f"], environment=self.environment, folder=self.folder, name="mps", limits=supervise.die_with_parent
        )
        there = jobs.wait_until(lambda: (self.pipes / "control").exists() or not self.job.running(), START)
        if not there or not self.job.running():
            self.__exit__()
            raise Failure("the MPS daemon did not start", results.tail(self.job.stderr() + self.log()))
        return self

    def log(self):
        texts = [path.read_text(errors="replace") for path in sorted(self.logs.glob("*.log"))]
        return "\n".join(texts)

    def ask(self, words):
        """The answer of the control program, or None."""
        try:
            done = subprocess.run(
                [self.program],
                env=self.environment,
                input=words + "\n",
                capture_output=True,
                text=True,
                timeout=10,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip()

    def servers(self):
        """Process ids of its servers: there is one after the first client."""
        answer = self.ask("get_server_list") or ""
        return [int(word) for word in answer.split() if word.isdigit()]

    def __exit__(self, *_):
        if not self.job:
            return
        # Its server may have left its group, so its id is read while the daemon still runs.
        servers = {}
        if self.job.running():
            servers = {pid: supervise.born(pid) for pid in {*self.servers(), *supervise.descendants(self.job.pid)}}
        if self.job.running():
            self.ask("quit -t 2")
        end = time.monotonic() + STOP
        while self.job.running() and time.monotonic() < end:
            time.sleep(0.05)
        self.job.terminate(3)

        def left():
            return {pid for pid, when in servers.items() if when is not None and supervise.born(pid) == when}

        for number in (15, 9):
            supervise.send(left(), number)
            jobs.wait_until(lambda: not left(), 3)
        with contextlib.suppress(OSError):
            os.remove(self.pipes / "control")
