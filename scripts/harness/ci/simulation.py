# SPDX-License-Identifier: MIT OR Apache-2.0
"""The simulation of the scheduler (tests/simulation): its command and its counts."""

import re
from typing import NamedTuple

from .. import paths

# The same in every run, so a failure points to the tested change. New seeds are tried by hand.
FIRST_SEED = 20_778_000_000


class Count(NamedTuple):
    """Counts of a run. `failures`: scenarios in which an invariant did not hold."""

    scenarios: int
    events: int
    failures: int


def command(minutes, scenarios):
    """The command for at most `scenarios` scenarios from FIRST_SEED on, within `minutes`."""
    program = paths.BUILT / "weft-simulation"
    bounds = ["--minutes", str(minutes), "--scenarios", str(scenarios)]
    return [program, "--seed", str(FIRST_SEED), *bounds]


def counted(text):
    """The counts that the program printed at its end, or None."""
    pattern = r"^(\d+) scenarios, (\d+) events, (\d+) failures$"
    found = re.findall(pattern, text, re.MULTILINE)
    return Count(*(int(number) for number in found[-1])) if found else None
