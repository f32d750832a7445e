"""The simulation of the scheduler (tests/simulation): its command and what it counted."""

import re
from typing import NamedTuple

from . import paths

# The same in every run: a run says something about the change that it tests.
# New seeds are tried by hand.
FIRST_SEED = 20_778_000_000


class Count(NamedTuple):
    """What a run did. `failures`: scenarios in which an invariant did not hold."""

    scenarios: int
    events: int
    failures: int


def command(minutes, scenarios):
    """At most so many scenarios from FIRST_SEED on, within so many minutes."""
    program = paths.BUILT / "weft-simulation"
    bounds = ["--minutes", str(minutes), "--scenarios", str(scenarios)]
    return [program, "--seed", str(FIRST_SEED), *bounds]


def counted(text):
    """What the program printed at its end, or None."""
    pattern = r"^(\d+) scenarios, (\d+) events, (\d+) failures$"
    found = re.findall(pattern, text, re.MULTILINE)
    return Count(*(int(number) for number in found[-1])) if found else None
