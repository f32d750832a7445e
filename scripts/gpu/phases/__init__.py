"""The phases, most valuable first; the one that uses managed memory, which a driver may take amiss, last, and on a real GPU only where it is asked for.

Each has a share of the time that is left when its turn comes: its weight over the weights still to come, so what one phase does not use
the later ones get. With 540 s every phase gets what its most valuable cases take on an H100-class machine (start of a PyTorch job
there: about 8 s).
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
        """The function that names every process that the phase would start: (case, command, environment)."""
        return importlib.import_module(f"gpu.phases.{self.name}").plan


ALL = [
    Entry(
        "interception",
        110,
        "real clients with and without weft: same results, every launch named, the driver's symbols against our table",
    ),
    Entry("cost", 90, "nanoseconds a launch in every role; slow-down of models' inference and training"),
    Entry(
        "calibration", 100, "what the simulated GPU needs to know: launch, switch, copy, event costs (weft-gpu-probe)"
    ),
    Entry("sharing", 110, "a service beside a batch job: alone, shared, MPS, weft"),
    Entry("record", 80, "stage-1 profiles and launch traces of twelve models"),
    Entry("movable", 15, "memory that is mapped, copied out, given back and had again (weft-gpu-probe)"),
    Entry("memory", 40, "managed memory, at most 256 MiB: faults, prefetches, what pagemap shows (weft-gpu-probe); real GPU: --managed"),
]

BY_NAME = {entry.name: entry for entry in ALL}

# Runs before the others, outside their shares: no phase to choose.
FACTS = Entry("facts", 0, "what the machine is, and a warm-up")


def share(left, entry, later):
    """Seconds that `entry` gets of the `left` ones, the phases `later` still to come."""
    return left * entry.weight / (entry.weight + sum(other.weight for other in later))
