# SPDX-License-Identifier: MIT OR Apache-2.0
"""Stages of scripts/test: commands with their output in a log, and counts of their cases.

A stage is bounded in time. Its output is in target/test-logs. Its result is printed when it ends,
and once more at the end of the run.
"""

import collections
import os
import re
import subprocess
import sys
import threading
import time

from .. import paths
from . import reasons, watch

LOGS = paths.TARGET / "test-logs"

# Seconds between signs of life of stages that print nothing while they work.
SIGN_OF_LIFE = 30

# A stage that is not done by then is ended, and the run reports what the stage was doing. Each
# takes a third of this on two busy cores.
STAGE_MINUTES = 20
# Bound of the whole run, which takes half of it. A run that is cut off reports its results so far.
RUN_MINUTES = 75

BEGIN = time.monotonic()


def say(text):
    print(text, file=sys.stderr, flush=True)


class Tally:
    """Passed and failed cases, stage by stage."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.lines = []
        self.why = []
        self.untried = []
        self.lock = threading.Lock()

    def add(self, stage, passed, failed, skipped, took, why=(), untried=None):
        """`took`: a text on its time. `why`: lines with the reason of each failure, shown now and
        at the end of the run. `untried`: reasons of skips, each with its number of cases.
        """
        verdict = "ok" if not failed else "FAILED"
        line = f"{verdict:7} {stage}: {passed} passed, {failed} failed"
        line += (f", {skipped} skipped" if skipped else "") + f" ({took})"
        lines = [f"    {line}" for line in why or ["it printed nothing"]]
        told = [f"why {stage} failed:", *lines] if failed else []
        with self.lock:
            self.passed += passed
            self.failed += failed
            self.skipped += skipped
            self.lines.append(line)
            self.why += told
            rows = (untried or {}).items()
            self.untried += [f"NOT TRIED {stage}: {count} cases: {said}" for said, count in rows]
        say("\n".join([*told, line]))

    def finish(self):
        """Prints all results once more. Returns the exit code of the run."""
        say("\n".join(["", *self.lines]))
        say(f"        the whole run took {(time.monotonic() - BEGIN) / 60:.1f} minutes")
        if self.why:
            say("\n".join(["", *self.why, ""]))
        if self.untried:
            say("\n".join(["", *self.untried, ""]))
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        print(f"{self.passed} passed, {self.failed} failed{skipped}", flush=True)
        return 1 if self.failed or not self.passed else 0


class Command:
    """A command with its output in a log. Runs in the background until `wait`."""

    def __init__(self, name, command, live=False, apart=True):
        """`live`: its stderr is shown as it arrives; with `apart` off, all of its output."""
        self.name, self.live = name, live
        LOGS.mkdir(parents=True, exist_ok=True)
        self.log = LOGS / f"{name}.log"
        self.progress = LOGS / f"{name}.progress.log"
        self.progress.unlink(missing_ok=True)
        self.apart = live and apart
        self.shown = self.progress if self.apart else self.log
        self.begin = time.monotonic()
        self.end = self.cpu = None
        progress = self.progress if self.apart else "/dev/null"
        with open(self.log, "wb") as out, open(progress, "wb") as errors:
            self.process = subprocess.Popen(
                [str(part) for part in command],
                cwd=paths.ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors if self.apart else subprocess.STDOUT,
            )
        self.echo = threading.Thread(target=self.show_progress, daemon=True)
        if live:
            self.echo.start()

    def show_progress(self):
        """Reads from a file: a process that the stage leaves behind would hold a pipe open."""
        with open(self.shown, "rb") as file:
            ended = False
            while not ended:
                ended = self.end is not None
                sys.stderr.write(file.read().decode(errors="replace"))
                sys.stderr.flush()
                time.sleep(0.2)

    def wait(self, minutes=STAGE_MINUTES):
        """The exit code; 124 if the stage had to be ended."""
        code = self.ends(minutes)
        if self.live:
            self.echo.join(10)
        return code

    def ends(self, minutes):
        shown = time.monotonic()
        end = min(self.begin + minutes * 60, max(BEGIN + RUN_MINUTES * 60, shown + 60))
        while True:
            if self.ended():
                return self.process.returncode
            time.sleep(0.1)
            now = time.monotonic()
            if not self.live and now - shown > SIGN_OF_LIFE:
                shown = now
                say(f"        {self.name}: {now - self.begin:.0f} s")
            if now > end:
                ran = (now - self.begin) / 60
                say(f"    {self.name} is ended, not done after {ran:.0f} minutes. What it did:")
                say(watch.diagnosis(self.process.pid))
                watch.end([*watch.descendants(self.process.pid), self.process.pid])
                while not self.ended():
                    time.sleep(0.1)
                return self.process.returncode or 124

    def ended(self):
        """Whether it has ended. If so, records its times."""
        if self.end is None:
            pid = self.process.pid
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False
            # CPU time of the process and of children that it waited for. It must be read before the
            # process is reaped.
            self.cpu = watch.cpu_seconds(pid)
            self.process.wait()
            self.end = time.monotonic()
        return True

    @property
    def seconds(self):
        return (self.end or time.monotonic()) - self.begin

    @property
    def took(self):
        """Seconds that it ran, and of the cores' time."""
        cpu = f", {self.cpu:.0f} s of a core" if self.cpu is not None else ""
        return f"{self.seconds:.0f} s{cpu}"

    def text(self):
        return self.log.read_text(errors="replace")

    def texts(self):
        """Its stderr, if that is kept separately, and the rest of its output."""
        apart = [self.progress.read_text(errors="replace")] if self.apart else []
        return [*apart, self.text()]

    def show(self, lines=60):
        tail = self.text().splitlines()[-lines:]
        say("\n".join(f"    {line}" for line in tail))


class Beside:
    """Stages that run next to the others: a list of calls, each begun in its turn.

    `lanes`: the number of calls at a time.
    """

    def __init__(self, *calls, lanes=1):
        self.calls, self.threads, self.raised = collections.deque(calls), [], []
        self.more(lanes)

    def more(self, lanes):
        for _ in range(lanes):
            self.threads.append(threading.Thread(target=self.play, daemon=True))
            self.threads[-1].start()

    def play(self):
        while True:
            try:
                call = self.calls.popleft()
            except IndexError:
                return
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - raised in `finish`
                self.raised.append(error)

    def finish(self, more=0):
        """Waits for all of them, with `more` further lanes from now on."""
        self.more(more)
        for thread in self.threads:
            thread.join()
        if self.raised:
            raise self.raised[0]


def check_stage(tally, name, command):
    """A stage that passes or fails as one."""
    running = Command(name, command)
    code = running.wait()
    if code:
        running.show()
    why = [f"exit code {code}", *reasons.of_stage(running.text())]
    tally.add(name, int(code == 0), int(code != 0), 0, running.took, why)
    return code == 0


def runner_results(text):
    """The last `N passed, N failed[, N skipped]` line."""
    pattern = r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$"
    found = re.findall(pattern, text, re.MULTILINE)
    return tuple(int(n or 0) for n in found[-1]) if found else None


def runner_stage(tally, name, command, live=True):
    """A runner that counts its own cases."""
    running = Command(name, command, live)
    code = running.wait()
    results = runner_results(running.text())
    for line in running.text().splitlines():
        if line.startswith("failed:"):
            say("    " + line)
    if results is None or (code and not results[1] and results[0]):
        running.show()
        results = (0, 1, 0)
    tally.add(name, *results, running.took, reasons.of_runner(*running.texts()))


def chosen(words):
    """Options with which pytest runs only cases with one of these words in their name; without
    words all.
    """
    return ["-k", " or ".join(words)] if words else []


def pytest_stage(tally, name, arguments, live=True, words=()):
    """Runs cases of tests/ with pytest. The counts come from the file that pytest writes.

    With `words`, only cases with one of them in their name.
    """
    found = LOGS / f"{name}.xml"
    found.unlink(missing_ok=True)
    command = [paths.python("pytest"), "-m", "pytest", f"--junitxml={found}"]
    running = Command(name, [*command, *arguments, *chosen(words)], live, apart=False)
    code = running.wait()
    results, why, untried = reasons.of_junit(found) if found.exists() else (None, [], {})
    # 0: all well; 1: something failed; 5: there is no such case, which is well if words chose.
    known = (0, 1, 5) if words else (0, 1)
    if results is None or code not in known or (code == 1) != bool(results[1]):
        running.show()
        passed, failed, skipped = results or (0, 0, 0)
        results = (passed, failed + 1, skipped)
        why = [*why, f"exit code {code}", *reasons.of_stage(running.text())]
    tally.add(name, *results, running.took, why, untried)
