# SPDX-License-Identifier: MIT OR Apache-2.0
"""The phases, most valuable first. The one with managed memory, on which some drivers may hang, is
last, and runs on a real GPU only if it is requested.

Each gets a share of the remaining time at its turn: its weight over the sum of the remaining
weights. Later phases thus get the time that one phase does not use. With 540 s every phase has
enough time for its most valuable cases on an H100-class machine (start of a PyTorch job there:
about 8 s).
"""

import importlib
from typing import NamedTuple


class Entry(NamedTuple):
    """One phase: its module has a function `run(phase)`."""

    name: str
    weight: float
    about: str

    def function(self):
        return importlib.import_module(f"gpu.phases.{self.name}").run

    def plan(self):
        """The function that names every process that the phase would start: (case, command,
        environment).
        """
        return importlib.import_module(f"gpu.phases.{self.name}").plan


ALL = [
    Entry(
        "interception",
        110,
        "real clients with and without weft: same results, every launch named, the driver's symbols against our table",
    ),
    Entry("cost", 90, "nanoseconds a launch in every role; slow-down of models' inference and training"),
    Entry(
        "calibration", 100, "constants for the simulated GPU: launch, switch, copy, event costs (weft-gpu-probe)"
    ),
    Entry("sharing", 110, "a service and a batch job: alone, shared, MPS, weft"),
    Entry("record", 80, "stage-1 profiles and launch traces of twelve models"),
    Entry("movable", 15, "memory that is mapped, copied out, freed and allocated again (weft-gpu-probe)"),
    Entry("memory", 40, "managed memory, at most 256 MiB: faults, prefetches, pagemap (weft-gpu-probe); real GPU: --managed"),
]

BY_NAME = {entry.name: entry for entry in ALL}

# Runs before the others, outside their shares. It cannot be chosen.
FACTS = Entry("facts", 0, "facts of the machine, and a warm-up")


def share(left, entry, later):
    """Seconds that `entry` gets of the `left` ones; the phases `later` follow it."""
    return left * entry.weight / (entry.weight + sum(other.weight for other in later))
