# SPDX-License-Identifier: MIT OR Apache-2.0
"""Limits that protect a real GPU that belongs to others.

A program that requests more managed memory than the device has free can hang the GPU, not only
itself. So on a real GPU:

  * No process has WEFT_BACKING in its environment: weft would put all of a job's memory on managed
    memory, as much as the card has and more.
  * Managed memory is used only in the phase `memory`, by one probe at a time, at most MOST_MANAGED
    bytes of it.
  * That phase runs only if --managed is given.

The choice of processes obeys this (phases/, probe.py). `scripts/gpu-suite --dry-run` shows it, and
`guard` refuses to start a process that does not obey.
"""

import math
import os
import sys
from pathlib import Path

MOST_MANAGED = 256 << 20

# The variable by which a job requests managed memory from weft.
BACKING = "WEFT_BACKING"

PROBE = "weft-gpu-probe"

# Most managed bytes of each probe (tests/gpu-probe/src), all its processes together. A probe that
# is not named here may use any number.
PROBES = {
    "calibration": {
        **dict.fromkeys(["switch", "context", "launch", "spacing", "event", "copy", "stream-write", "memset", "cupti", "mps"], 0),
        "alloc": 64 << 20,
        "prefetch": 256 << 20,
        "fault": 64 << 20,
        "managed": 256 << 20,
    },
    "memory": {
        "signatures": 2 << 20,
        "page-table": 32 << 20,
        "discard": 128 << 20,
        "read-mostly": 128 << 20,
        "swap": 256 << 20,
    },
    "movable": {"vmm": 0},
}

# The phase in which managed memory may be used.
MEMORY = "memory"


class Refused(RuntimeError):
    """A process that must not be started on a real GPU, with the reason."""


def asks_for_managed(environment):
    """Whether weft would give a job with these variables managed memory. The default is `device`;
    any other value may.
    """
    return environment.get(BACKING, "device") != "device"


def managed_bytes(command, environment):
    """The most managed memory that a process of the suite can take; math.inf if it has no bound."""
    if asks_for_managed(environment):
        return math.inf
    words = [os.fsdecode(word) if isinstance(word, (bytes, os.PathLike)) else str(word) for word in command]
    if not words or Path(words[0]).name != PROBE:
        return 0
    if "--list" in words or "--help" in words:
        return 0
    group = PROBES.get(words[1] if len(words) > 1 else "")
    if group is None:
        return math.inf
    only = [words[at + 1] for at, word in enumerate(words[:-1]) if word == "--only"] or list(group)
    # One after the other, each in its own process.
    return max(group.get(name, math.inf) for name in only)


def refusal(phase, command, environment):
    """The reason why this process must not be started in this phase on a real GPU, or None."""
    if asks_for_managed(environment):
        return f"{BACKING}={environment[BACKING]}: all of its memory would be managed"
    managed = managed_bytes(command, environment)
    if managed > MOST_MANAGED:
        return f"{managed / 2**20:g} MiB of managed memory, at most {MOST_MANAGED >> 20} are allowed"
    if managed and phase != MEMORY:
        return f"{managed / 2**20:g} MiB of managed memory outside the phase {MEMORY}"
    return None


def guard(phase):
    """From now on this Python process starts no process that `refusal` forbids on a real GPU. This
    cannot be undone.
    """

    def look(event, arguments):
        if event != "subprocess.Popen":
            return
        _, command, _, environment = arguments
        variables = os.environ if environment is None else {os.fsdecode(key): os.fsdecode(value) for key, value in environment.items()}
        command = [command] if isinstance(command, (str, bytes)) else list(command)
        why = refusal(phase, command, variables)
        if why:
            raise Refused(f"not on a real GPU: {why}: {' '.join(map(str, command))[:200]}")

    sys.addaudithook(look)
