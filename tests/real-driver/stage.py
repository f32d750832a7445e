# SPDX-License-Identifier: MIT OR Apache-2.0
"""The common base of the cases of a real driver library: the list of them, the library as a device
that none is, C programs.

A case is a function of a Stage; it is played once a branch. Its result stands behind its `ok`.
"""

import json
import subprocess
from pathlib import Path

from fixtures.scene import weft_in
from harness import jobs, paths

HERE = Path(__file__).resolve().parent
# Longest time for anything that takes seconds on an idle machine: two busy cores stretch it.
BOUND = 120.0
TABLE = paths.ROOT / "interposer" / "symbols" / "driver-api.tsv"
BEYOND = paths.ROOT / "interposer" / "symbols" / "beyond.tsv"

CASES = []


class Case:
    def __init__(self, function, ends):
        self.function, self.name, self.ends = function, function.__name__.replace("_", " "), ends

    def branches(self, all_of_them, check):
        """The branches that it is played on."""
        return [all_of_them[0], all_of_them[-1]] if check and self.ends and len(all_of_them) > 1 else all_of_them


def case(function=None, *, ends=False):
    """Marks a case. `ends`: CI plays it only on the oldest and the newest branch."""

    def mark(function):
        CASES.append(Case(function, ends))
        return function

    return mark(function) if function else mark


class Library:
    """A driver's folder as a job's device: found by the library path."""

    simulated = False
    log = None
    dilation = 1

    def __init__(self, driver):
        self.driver = driver

    def environment(self, libraries=()):
        return {"LD_LIBRARY_PATH": ":".join([str(self.driver.libraries), *libraries])}

    def weft_environment(self):
        return {}


class Stage:
    """One case on one branch, in a folder of its own."""

    def __init__(self, folder, driver):
        self.folder, self.driver = Path(folder), driver
        self.device = Library(driver)
        self.broker = jobs.Broker(self.folder, self.device)
        self.jobs = []

    def close(self):
        for job in self.jobs:
            job.kill()
        self.broker.stop()

    def environment(self, weft, libraries=()):
        """Of a job without weft, or with it."""
        own = {"HOME": str(self.folder), "XDG_CACHE_HOME": str(self.folder / "cache"), "XDG_RUNTIME_DIR": str(self.folder)}
        more = jobs.preload(self.broker.variables()) if weft else {}
        return {**jobs.clean_environment(), **own, **self.device.environment(libraries), **more}

    def run(self, name, command, *, weft, libraries=(), more=None, bound=BOUND):
        """Runs it to its end; a job that has to be ended fails the case."""
        job = jobs.Job(command, environment={**self.environment(weft, libraries), **(more or {})}, folder=self.folder, name=name, cwd=self.folder)
        self.jobs.append(job)
        job.wait(bound)
        assert not job.timed_out, f"{name} hangs\n{job.explain()}"
        return job

    def compiled(self, source, *flags):
        """A C program of this folder, built into the case's."""
        target = self.folder / Path(source).stem
        command = ["cc", "-O1", "-Wall", "-Werror", "-o", target, HERE / source, *flags, "-ldl"]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=BOUND, check=False)
        assert done.returncode == 0, f"{source} does not compile\n{done.stderr}"
        return target

    def weft(self, *arguments, bound=BOUND, more=None):
        """A command of weft's, as a user gives it on a machine with this driver."""
        environment = {**self.environment(False), **self.broker.variables(), **(more or {})}
        return weft_in(environment, *arguments, bound=bound)


def missing():
    """The part that is not built, or None."""
    absent = [needed for needed in (paths.LIBWEFT, paths.WEFT) if not needed.exists()]
    return f"{absent[0]} is not built: run scripts/layout" if absent else None


def table():
    """{symbol: base name} of weft's table."""
    lines = [line.split("\t") for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    return {line[0]: line[1] for line in lines}


def parsed(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith(("[", "{"))]
