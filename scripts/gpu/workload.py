# SPDX-License-Identifier: MIT OR Apache-2.0
"""Jobs that phases run: processes that answer orders, and the models of scripts/workloads."""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from pathlib import Path

from harness import paths

from . import results
from .phase import Failure, Skip

MODELS_PROGRAM = paths.ROOT / "scripts" / "workloads" / "models.py"

# The twelve models of scripts/workloads/models.py, most informative first, in case time is short.
MODELS = [
    "resnet50",
    "gpt2",
    "bert_base",
    "llama",
    "vit_b_16",
    "resnet152",
    "vgg19",
    "unet",
    "lstm",
    "inception_v3",
    "densenet201",
    "detection",
]

# Seconds in which a model's process must start on a busy machine.
START = 90.0


class Orders:
    """A process that answers each line on stdin with one line on stdout."""

    def __init__(self, command, environment, folder, name):
        self.name = name
        self.errors = Path(folder) / f"{name.replace(' ', '-').replace(',', '')}.stderr"
        with open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(
                [str(part) for part in command],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self.kept = b""
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)

    @property
    def pid(self):
        return self.process.pid

    def tell(self, line):
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            raise self.failure("is gone") from error

    def hear(self, bound):
        """Its next line. Raises Failure if none comes in time."""
        end = time.monotonic() + bound
        while b"\n" not in self.kept:
            left = end - time.monotonic()
            if left <= 0:
                raise self.failure(f"gave no answer within {bound:.0f} s")
            if self.selector.select(left):
                block = os.read(self.process.stdout.fileno(), 1 << 20)
                if not block:
                    raise self.failure("ended")
                self.kept += block
        line, _, self.kept = self.kept.partition(b"\n")
        return line.decode(errors="replace")

    def ask(self, line, bound):
        self.tell(line)
        return self.hear(bound)

    def failure(self, how):
        return Failure(f"{self.name} {how}", results.tail(self.errors.read_text(errors="replace"), 15))

    def stop(self):
        self.signal(signal.SIGSTOP)

    def go_on(self):
        self.signal(signal.SIGCONT)

    def signal(self, number):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def close(self):
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.go_on()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self.signal(signal.SIGKILL)
        self.process.wait(10)
        self.selector.close()
        self.process.stdout.close()


def needs_torch(phase):
    """Raises Skip if the models cannot run."""
    without = [name for name in ("torch", "torchvision") if name not in phase.facts["packages"]]
    if without:
        raise Skip(f"no Python package {', '.join(without)} for {phase.python}")
    if not MODELS_PROGRAM.exists():
        raise Skip(f"no {MODELS_PROGRAM}")


def model(phase, name, mode, **options):
    """The command that runs a model. Options: requests, seconds, host_ms, times, ready, batch,
    warm_up, end; mark=True, graph=True.
    """
    command = [phase.python, MODELS_PROGRAM, name, "--mode", mode]
    for key, value in options.items():
        if value is True:
            command.append("--" + key.replace("_", "-"))
        elif value not in (None, False):
            command += ["--" + key.replace("_", "-"), value]
    return command
