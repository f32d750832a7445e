# SPDX-License-Identifier: MIT OR Apache-2.0
"""The two commands for a borrowed GPU of 15 minutes: each at most MOST seconds, most valuable steps
first.

A step ends after its seconds at the latest. The following steps get the time that a step leaves.
"""

import textwrap
from typing import NamedTuple

# Most seconds of one command on a borrowed machine. This leaves time to start and to bring back the
# results.
MOST = 540.0

# Most seconds of that for facts and the warm-up. They take a dozen if PyTorch is read from a warm
# disk.
FACTS_SECONDS = 20.0


class Step(NamedTuple):
    """A phase of a lease. `words` choose its cases, `options` are only for this phase."""

    seconds: float
    words: tuple = ()
    options: dict = {}  # noqa: RUF012 - read, never changed


class Lease(NamedTuple):
    """One command. `steps`: {phase: Step}, in order."""

    name: str
    about: str
    differs: str
    steps: dict


# Clients that would show a fault that changes results, the most informative first. `chained`:
# products that each need the previous one.
RIGHT = ("torch-matmul", "cudarc", "torch-train", "torch-graphs", "torch-conv", "torch-attention", "torch-fft", "triton", "torch-compile", "cupy", "patterns")
MORE_RIGHT = ("torch-elementwise", "torch-streams", "torch-lstm", "torch-events", "numba", "jax", "tinygrad")

# Probes of the device's constants, the most informative first: the time of a switch can halve or
# double weft's benefit without MPS.
CONSTANTS = ("switch", "launch", "spacing", "event", "mps", "copy", "stream-write", "memset", "context")

# (service, batch job). The third: a decoder with a training of another language model.
PAIRS = (("resnet50", "resnet50"), ("bert_base", "vgg19"), ("llama", "gpt2"))
MORE_PAIRS = (("gpt2", "densenet201"), ("vit_b_16", "lstm"))

FIRST = Lease(
    "first",
    "Correctness, benefit, and the device's constants.",
    "Data or output differs: stop, measure nothing else; the case names the data that differ, and --only interception --case =CLIENT/ROLE shows whether "
    "it happens again. Only `unnamed` differs: priorities hold, profiles miss those kernels. launches.left_behind is 0: background jobs wait at the gate. "
    "A figure of calibration is off the simulated GPU's by 2 or more: run the laboratory with the file that scripts/gpu-results writes.",
    {
        "interception": Step(150, options={"clients": RIGHT, "exits": 20}),
        "sharing": Step(250, options={"pairs": PAIRS}),
        "calibration": Step(60, options={"probes": CONSTANTS}),
        "cost": Step(32, ("launches",), {"seconds": 8.0}),
        "movable": Step(15),
        # With all the time that earlier steps leave.
        "record": Step(8, options={"after": PAIRS}),
    },
)

MORE = Lease(
    "more",
    "For the rest of the 15 minutes: further pairs, further recordings, further clients.",
    "As in the first.",
    {
        "sharing": Step(170, options={"pairs": MORE_PAIRS}),
        "record": Step(100, options={"after": MORE_PAIRS, "done": PAIRS}),
        "interception": Step(90, options={"clients": MORE_RIGHT, "exits": 20}),
    },
)

ALL = {lease.name: lease for lease in (FIRST, MORE)}


def seconds_of(lease):
    """The sum of the bounds of a lease, seconds."""
    return FACTS_SECONDS + sum(step.seconds for step in lease.steps.values())


def described():
    """The description of the leases, for --help."""

    def lines(head, text):
        return textwrap.wrap(text, 132, initial_indent=f"      {head}", subsequent_indent="        ")

    parts = []
    for lease in ALL.values():
        steps = ", ".join(f"{name} {step.seconds:g} s" for name, step in lease.steps.items())
        parts += [f"  --lease{'' if lease is FIRST else ' ' + lease.name}", *lines("", lease.about)]
        parts += [*lines("steps: ", steps), *lines("if results differ: ", lease.differs)]
    return f"leases: each at most {MOST:.0f} s\n\n" + "\n".join(parts)
