"""The two commands for a borrowed GPU of 15 minutes: each at most MOST seconds, its steps in order
of worth.

A step ends at its seconds at the latest. A step that ends early leaves its time to those behind it.
"""

import textwrap
from typing import NamedTuple

# Most seconds of one command on a borrowed machine, with time to start and to bring results home.
MOST = 540.0

# The most that facts and the warm-up take of it, seconds. They need a dozen where PyTorch is read
# from a warm disk.
FACTS_SECONDS = 20.0


class Step(NamedTuple):
    """A phase of a lease. `words` choose its cases, `options` are for the phase alone."""

    seconds: float
    words: tuple = ()
    options: dict = {}  # noqa: RUF012 - read, never changed


class Lease(NamedTuple):
    """One command. `steps`: {phase: Step}, in order."""

    name: str
    about: str
    differs: str
    steps: dict


# Clients that would show a fault that changes results, the most telling first. `chained`:
# products that each need the one before.
RIGHT = ("torch-matmul", "cudarc", "torch-train", "torch-graphs", "torch-conv", "torch-attention", "torch-fft", "triton", "torch-compile", "cupy", "patterns")
MORE_RIGHT = ("torch-elementwise", "torch-streams", "torch-lstm", "torch-events", "numba", "jax", "tinygrad")

# Probes of the device's constants, the most telling first: the time of a switch halves or doubles
# what weft is worth without MPS.
CONSTANTS = ("switch", "launch", "spacing", "event", "mps", "copy", "stream-write", "memset", "context")

# (service, batch job). The third: a decoder beside a training of another language model.
PAIRS = (("resnet50", "resnet50"), ("bert_base", "vgg19"), ("llama", "gpt2"))
MORE_PAIRS = (("gpt2", "densenet201"), ("vit_b_16", "lstm"))

FIRST = Lease(
    "first",
    "Is it right, what is it worth, and the device's constants.",
    "Data or output differs: stop, measure nothing else; the case names the data that differ, and --only interception --case =CLIENT/ROLE says whether "
    "it comes back. Only `unnamed` differs: priorities hold, profiles miss those kernels. launches.left_behind is 0: background jobs wait at the gate. "
    "A figure of calibration is off the simulated GPU's by 2 or more: run the laboratory with the file that scripts/gpu-results writes.",
    {
        "interception": Step(150, options={"clients": RIGHT, "exits": 20}),
        "sharing": Step(250, options={"pairs": PAIRS}),
        "calibration": Step(60, options={"probes": CONSTANTS}),
        "cost": Step(32, ("launches",), {"seconds": 8.0}),
        "movable": Step(15),
        # With all that the steps before it leave.
        "record": Step(8, options={"after": PAIRS}),
    },
)

MORE = Lease(
    "more",
    "What the 15 minutes have left: further pairs, further recordings, further clients.",
    "As in the first.",
    {
        "sharing": Step(170, options={"pairs": MORE_PAIRS}),
        "record": Step(100, options={"after": MORE_PAIRS, "done": PAIRS}),
        "interception": Step(90, options={"clients": MORE_RIGHT, "exits": 20}),
    },
)

ALL = {lease.name: lease for lease in (FIRST, MORE)}


def seconds_of(lease):
    """The bounds of all that a lease does, seconds."""
    return FACTS_SECONDS + sum(step.seconds for step in lease.steps.values())


def described():
    """The leases, for --help."""

    def lines(head, text):
        return textwrap.wrap(text, 132, initial_indent=f"      {head}", subsequent_indent="        ")

    parts = []
    for lease in ALL.values():
        steps = ", ".join(f"{name} {step.seconds:g} s" for name, step in lease.steps.items())
        parts += [f"  --lease{'' if lease is FIRST else ' ' + lease.name}", *lines("", lease.about)]
        parts += [*lines("steps: ", steps), *lines("if results differ: ", lease.differs)]
    return f"leases: each at most {MOST:.0f} s\n\n" + "\n".join(parts)
