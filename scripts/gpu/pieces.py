"""The runs that a borrowed GPU is used for, in the order of what they are worth: each at most MOST seconds, each useful alone.

First what can make weft wrong, then what no simulator can know and everything else is computed from, then what weft is worth, then recordings
that feed the laboratory, and last what a driver may take amiss.
"""

import textwrap
from typing import NamedTuple

# What a call to a borrowed machine may take, with time to start and to bring the results home.
MOST = 540.0


class Piece(NamedTuple):
    """One run. `steps`: {phase: (weight, words or None, what the phase is told)}."""

    number: int
    name: str
    about: str
    writes: str
    differs: str
    steps: dict
    # Whether its phases run PyTorch, so that a warm-up is worth its time.
    warm: bool = True


# Clients of piece 1, those first that would show a fault that changes results.
RIGHT = [
    "cudarc",
    "patterns",
    "torch-matmul",
    "torch-train",
    "torch-graphs",
    "torch-conv",
    "torch-attention",
    "triton",
    "torch-elementwise",
    "torch-compile",
    "torch-streams",
    "cupy",
    "numba",
    "jax",
]

ALL = [
    Piece(
        1,
        "right",
        "Is it right at all? weft doctor, the driver's functions against our table, then small programs of every kind without weft, alone, as foreground job "
        "and as background job: same output, same data, every launch named. Plain memory only.",
        "facts and warm-up; cases doctor, symbols, graph updates, profiler, CLIENT/ROLE, blocking, exits; symbols.*, graph-update.*, graph-relaunch.*, profiler.*, launches, "
        "launches.unnamed, launches.left_behind, lookups.*, data.compared, data.differing, blocking.*, exits.*; facts counters: launches of each client and role, "
        "tables: private tables of the driver and who asked for them",
        "Data or output differs: stop, measure nothing else; bring the files home, the case names the data that differ, and the same client with "
        "--only interception --case CLIENT says whether it comes back. Only `unnamed` differs: go on, priorities hold, profiles miss those kernels. launches.left_behind is 0: "
        "no kernel's parameters were had, background jobs wait at the gate instead. Nothing differs, background jobs had launches left behind and weft saw as many launches as the profiler kernels: "
        "the tables in the fact `tables` carry no launch, and interposer/src/deferred/tables.rs may know them.",
        {"interception": (100, None, {"clients": RIGHT})},
    ),
    Piece(
        2,
        "constants",
        "The device's constants: launch, spacing, events, copies, switch, time slice, MPS; then what weft adds to a launch in every role. "
        "The laboratory is run again with them at home, without a GPU.",
        "facts; context.*, launch.*, spacing.*, event.*, copy.*, switch.*, stream-write.*, memset.*, cupti.*, mps.*; launch.ROLE.WAY, counted.ROLE.WAY",
        "A figure is off the simulated GPU's by 2 or more: scripts/gpu-results writes the calibration; run the laboratory with it before a constant of "
        "the broker is changed. launch.* swings: judge by counted.*, which needs no device.",
        {"calibration": (300, None, {}), "cost": (110, ["launches"], {})},
        False,
    ),
    Piece(
        3,
        "worth",
        "What weft is worth: a service beside a batch job, alone, plainly shared, under weft, MPS, MPS with weft, MPS with stream priorities.",
        "facts and warm-up; PAIR: CONDITION: p50, p99, batch, p99.slowdown, batch.share; with few requests marked few=true",
        "Two runs differ: compare clocks_before and clocks_after, then the counters in the fact `PAIR: CONDITION: weft`. weft no better than default: look "
        "at waits and waits_expired there, and at switch.* of piece 2.",
        {"sharing": (100, None, {"pairs": 2})},
    ),
    Piece(
        4,
        "record",
        "Stage-1 profiles and launch traces of twelve models: what profiles/recorded and the laboratory live on.",
        "facts and warm-up; MODEL-MODE.step, .device, .alone, .launches, .bytes; the recordings themselves in RUN.recorded.tar",
        "A trace's steps differ in launches: the model is not steady, leave that recording out. .step far above piece 3's alone: stage 1 costs too "
        "much on this device; the difference is the figure.",
        {"record": (100, None, {})},
    ),
    Piece(
        5,
        "managed",
        "The risky part, last and small: managed memory, one probe at a time, at most 256 MiB; with --managed also two processes that share as much.",
        "facts; signatures.*, page-table.*, discard.*, read-mostly.*, alloc.*, prefetch.*, fault.*, managed.*; with --managed swap.*",
        "A probe fails or hangs: do not try it again, give the machine back; what was measured before is in the files. page-table says that the host's "
        "page table shows nothing: weft plans without it (docs/managed-memory.md).",
        {"memory": (100, None, {})},
        False,
    ),
]

BY_NUMBER = {piece.number: piece for piece in ALL}


def described():
    """The pieces, for --help."""

    def lines(head, text):
        return textwrap.wrap(text, 132, initial_indent=f"      {head}", subsequent_indent="        ")

    parts = [f"pieces: each at most {MOST:.0f} s, each useful alone, in this order\n"]
    for piece in ALL:
        parts.append(f"  --piece {piece.number}  {piece.name}")
        parts += [*lines("", piece.about), *lines("writes: ", piece.writes), *lines("if results differ: ", piece.differs)]
    return "\n".join(parts)
