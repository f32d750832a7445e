# SPDX-License-Identifier: MIT OR Apache-2.0
"""The common tools of every phase: its share of the time, its results, a device, jobs.

A phase is a function `run(phase)` in phases/. It tries its cases with `phase.case`, most valuable
first. If a case fails, its reason is recorded and the next case runs. Each measurement is written
at once: a phase that is killed loses only its current step.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

from harness import jobs, paths, show

from . import machine, results

# Kernel times of the simulated GPU when the suite runs without a GPU.
DURATIONS = paths.ROOT / "scripts" / "workloads" / "durations.toml"


class Skip(Exception):
    """A case that cannot be tried here, with the reason."""


class Failure(Exception):
    """A case that failed, with the reason and the end of the output that shows it."""

    def __init__(self, why, tail=()):
        super().__init__(why)
        self.tail = list(tail)


class NoTime(Exception):
    """A case that the end of the phase's share cut short. It is neither passed nor failed."""


class TimeUp(BaseException):
    """The phase's time is over. Not an Exception, so that no case takes it for its own failure."""


def failed(job, what=None, phase=None):
    """A Failure with the way a job ended; NoTime if it was killed because the phase's time was
    over.
    """
    if phase and job.timed_out and phase.left() < 1.5:
        return NoTime(f"{what or job.name} was cut short: the phase's time was over")
    how = "was killed at its bound" if job.timed_out else f"ended with {job.process.returncode}"
    return Failure(f"{what or job.name} {how}", results.tail(job.stderr()))


class Phase:
    """A running phase."""

    def __init__(self, name, *, writer, facts, folder, out, deadline, quick, words=(), options=None):
        self.name, self.writer, self.facts = name, writer, facts
        self.folder, self.out = Path(folder), Path(out)
        self.deadline, self.quick, self.words = deadline, quick, words
        # {"managed": --managed was given, "clients": names of clients.toml, in this order}
        self.options = options or {}
        self.simulated = facts["simulated"]
        self.python = facts["python"]
        self.verdicts = {}
        self.numbers = {}
        self.lock = threading.Lock()

    def left(self):
        """Seconds until the phase should be done."""
        return self.deadline - time.monotonic()

    def say(self, text):
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)

    # Results.

    def value(self, name, value, unit, *, n=None, p10=None, p90=None, how=None, **more):
        self.writer.write("value", name=name, value=value, unit=unit, n=n, p10=p10, p90=p90, how=how, **more)

    def sample(self, name, values, unit, *, how=None, **more):
        """Records a figure from many samples: median with 10th and 90th percentile."""
        middle, low, high = (show.quantile(values, q) for q in (0.5, 0.1, 0.9))
        self.value(name, middle, unit, n=len(values), p10=low, p90=high, how=how, **more)
        return middle

    def fact(self, name, data):
        self.writer.write("fact", name=name, data=data)

    def verdict(self, name, verdict, why=None, tail=None, seconds=None, **more):
        self.verdicts[name] = verdict
        self.writer.write(
            "case", name=name, verdict=verdict, why=why, tail=list(tail) if tail else None, seconds=seconds, **more
        )
        detail = f": {why}" if why else f" {seconds:.1f}s" if seconds is not None else ""
        self.say(f"{name} {verdict}{detail}"[:400])

    def wanted(self, name):
        """Whether a word selects this case: a part of its name, or the whole name after a `=`."""
        return not self.words or any(word[1:] == name if word.startswith("=") else word in name for word in self.words)

    def case(self, name, function, *arguments, need=0.0, always=False, **more):
        """Tries one case. Returns the result of `function`, or None if the case failed, was
        skipped, or fewer than `need` seconds remain.

        `always`: run it even if no given word selects it, because other cases depend on it.
        """
        if not always and not self.wanted(name):
            return None
        if self.left() < max(need, 0.5):
            self.verdict(name, results.LEFT_OUT, f"{max(self.left(), 0):.0f} s left, about {need:.0f} needed")
            return None
        begin = time.monotonic()
        try:
            value = function(*arguments, **more)
        except Skip as why:
            self.verdict(name, results.SKIPPED, str(why))
            return None
        except NoTime as why:
            self.verdict(name, results.LEFT_OUT, str(why))
            return None
        except Failure as why:
            self.verdict(name, results.FAILED, str(why), why.tail, time.monotonic() - begin)
            return None
        # A fault in one case must not prevent the next one.
        except Exception as error:  # noqa: BLE001
            lines = results.tail(traceback.format_exc(), 12)
            self.verdict(name, results.FAILED, f"{type(error).__name__}: {error}", lines, time.monotonic() - begin)
            return None
        self.verdict(name, results.OK, seconds=round(time.monotonic() - begin, 2))
        return value

    # Devices and jobs.

    def place(self, name):
        """A fresh folder with a short name: a unix socket's path holds 107 bytes."""
        name = name[:24].replace("/", "-")
        with self.lock:
            number = self.numbers[name] = self.numbers.get(name, 0) + 1
        folder = self.folder / (name + (f".{number}" if number > 1 else ""))
        folder.mkdir(parents=True)
        return folder

    def device(self, folder, **settings):
        """The GPU of this machine, or a new simulated one for this folder."""
        if not self.simulated:
            return jobs.RealDevice()
        return jobs.Device(folder, config=settings.pop("config", DURATIONS), **settings)

    def environment(self, device, extra=(), libraries=()):
        """A job's environment: of our variables only those named here, and caches that all jobs
        share.
        """
        names = ["TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUPY_CACHE_DIR", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME"]
        # Another user's MPS daemon would change how jobs share without weft. Our jobs avoid it.
        apart = (
            {"CUDA_MPS_PIPE_DIRECTORY": str(self.folder / "no-mps")}
            if self.facts["machine"].get("mps_running") and not self.simulated
            else {}
        )
        caches = {name: str(Path(self.facts["caches"]) / name.lower().removesuffix("_dir")) for name in names}
        return {
            **jobs.clean_environment(),
            **caches,
            **device.environment(libraries),
            **apart,
            "PYTHONHASHSEED": "0",
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            **dict(extra),
        }

    def broker(self, folder, device, **settings):
        """A new broker."""
        return jobs.Broker(folder, device, **settings)

    def finish(self, job, bound, what=None):
        """Waits for a job, at most `bound` seconds and at most the phase's time. Raises Failure if
        the job did not end well.
        """
        if job.wait(max(1.0, min(bound, self.left()))) != 0:
            raise failed(job, what, self)
        return job


def ended_clients(status):
    """{pid: last record} of the clients that the broker has seen end or still sees."""
    found = {entry["last"]["pid"]: entry["last"] for entry in (status or {}).get("ended", [])}
    found.update({client["pid"]: client for client in (status or {}).get("clients", [])})
    return found


def settled(broker, pid, bound=10.0):
    """The broker's status once it knows that `pid` ended; after `bound` seconds the status at that
    time.
    """
    end = time.monotonic() + bound
    while True:
        status = broker.status()
        if status is None:
            raise Failure("the broker gave no status", results.tail(broker.job.stderr()))
        if all(client["pid"] != pid for client in status["clients"]) or time.monotonic() > end:
            return status
        time.sleep(0.05)


def json_lines(command, environment, bound, take, log):
    """Runs a program that prints JSON lines and passes each line to `take` when it arrives. Returns
    (exit code, tail of stderr, whether it overran).
    """
    with open(log, "w+b") as errors:
        process = subprocess.Popen(
            [str(part) for part in command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        overran = False
        end = time.monotonic() + bound
        selector = selectors.DefaultSelector()
        selector.register(process.stdout, selectors.EVENT_READ)
        kept = b""
        try:
            while True:
                if time.monotonic() > end:
                    overran = True
                    break
                if not selector.select(0.2):
                    if process.poll() is not None:
                        break
                    continue
                block = process.stdout.read1(65536)
                if not block:
                    break
                *whole, kept = (kept + block).split(b"\n")
                for line in whole:
                    with contextlib.suppress(ValueError):
                        value = json.loads(line)
                        if isinstance(value, dict):
                            take(value)
        finally:
            selector.close()
            if overran or process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0 if overran else 10)
            # Kills its process group too, in whatever state it is.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.stdout.close()
            process.wait(10)
        errors.seek(0)
        return process.returncode, results.tail(errors.read().decode(errors="replace")), overran


def mps_note(facts):
    """The reason why MPS cannot be started here, or None."""
    if facts["simulated"]:
        return None
    if not machine.mps_control():
        return f"{machine.MPS_CONTROL} is not on this machine"
    return None
