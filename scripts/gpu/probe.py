# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs weft-gpu-probe and converts its JSON lines to results.

A line with a figure is `{"probe", "name", "value", "unit", "n", "p10", "p90"}`. A line without one
has the reason: `{"probe", "skipped"}` or `{"probe", "error"}`.
"""

import contextlib
import time
from pathlib import Path

from harness import paths

from . import machine, mps, results, safety
from .phase import Failure, Skip, json_lines

PROGRAM = paths.BUILT / "weft-gpu-probe"

# The probes of each phase, in order: (group of the probe, names). Probes with managed memory are in
# the phase `memory`, whatever group they belong to.
RUNS = {
    "calibration": [("calibration", [name for name, managed in safety.PROBES["calibration"].items() if not managed])],
    "movable": [("movable", [*safety.PROBES["movable"]])],
    "memory": [
        ("memory", ["signatures", "page-table", "discard", "read-mostly"]),
        ("calibration", [name for name, managed in safety.PROBES["calibration"].items() if managed]),
    ],
}

# Two processes with managed memory at once: on a real GPU only if --managed is given.
TWO_AT_ONCE = ("memory", ["swap"])

# With --quick: short ones.
QUICK = {"calibration": [("calibration", ["switch", "copy", "memset"])], "movable": [("movable", ["vmm"])], "memory": [("memory", ["discard"]), ("calibration", ["alloc"])]}

# Seconds by which the probe's budget ends before the phase, to leave time to write and end.
MARGIN = 5.0


def chosen(phase):
    """(group, names) of this phase, in the order in which they run."""
    runs = [*QUICK[phase.name]] if phase.quick else [*RUNS[phase.name]]
    if (order := phase.options.get("probes")) and not phase.quick:
        runs = [(phase.name, [*order])]
    if phase.name == safety.MEMORY and not phase.quick and (phase.simulated or phase.options.get("managed")):
        runs.append(TWO_AT_ONCE)
    # A word selects probes, as it selects cases elsewhere.
    runs = [(group, [name for name in names if phase.wanted(name)]) for group, names in runs]
    return [(group, names) for group, names in runs if names]


def command_of(group, names):
    return [PROGRAM, group, *(word for name in names for word in ("--only", name))]


def plan(phase):
    """Every process that this phase would start."""
    device = phase.device(phase.place("plan"))
    for group, names in chosen(phase):
        yield ", ".join(names), command_of(group, names), phase.environment(device)


def run(phase):
    """Runs the phase's probes, one process after another."""
    if not PROGRAM.exists():
        phase.case(PROGRAM.name, missing)
        return
    runs = chosen(phase)
    for number, (group, names) in enumerate(runs):
        # The remaining time is divided by the number of remaining probes.
        later = sum(len(names) for _, names in runs[number + 1 :])
        run_group(phase, group, names, len(names) / (len(names) + later))


def run_group(phase, what, names, part):
    """Runs some probes of a group in one process, then writes a verdict for each. `part`: fraction
    of the remaining time.
    """
    folder = phase.place(what)
    device = phase.device(folder)
    end = time.monotonic() + part * phase.left()
    seen = {}

    def left():
        return min(phase.left(), end - time.monotonic())

    def take(line):
        probe = line.get("probe", what)
        if probe in ("about", "end"):
            phase.fact(probe, line)
            for name in line.get("left_out") or ():
                phase.verdict(name, results.LEFT_OUT, "the probe's budget had run out")
            return
        if line.get("value") is not None:
            seen.setdefault(probe, results.OK)
            known = ("probe", "name", "value", "unit", "n", "p10", "p90")
            more = {key: value for key, value in line.items() if key not in known}
            phase.value(
                f"{probe}.{line['name']}" if line.get("name") else probe,
                line["value"],
                line.get("unit", ""),
                n=line.get("n"),
                p10=line.get("p10"),
                p90=line.get("p90"),
                how=f"weft-gpu-probe {what}",
                probe=probe,
                key=line.get("name"),
                more=more or None,
            )
            return
        why = line.get("skipped") or line.get("error") or line.get("failed") or line.get("why")
        name = f"{probe}.{line['name']}" if line.get("name") else probe
        if why is None:
            seen.setdefault(probe, results.OK)
            phase.fact(name, line)
        elif "skipped" in line:
            seen[name] = results.SKIPPED
            phase.verdict(name, results.SKIPPED, str(why))
        else:
            seen[name] = results.FAILED
            phase.verdict(name, results.FAILED, str(why))

    def measure(stack):
        arguments = command_of(what, names)
        if "mps" in names and not phase.simulated:
            # Sharing under MPS is measured too, if the machine has the daemon. The daemon starts
            # before the probe, and other processes do not use it.
            try:
                service = stack.enter_context(mps.Service(folder))
                arguments += ["--mps-pipe", service.pipes]
            except (Skip, Failure) as why:
                phase.verdict("mps", results.SKIPPED, str(why), getattr(why, "tail", None))
        # The simulated driver has none of CUPTI's tables.
        cupti = None if phase.simulated else find_cupti(phase)
        if "cupti" in names and cupti:
            arguments += ["--cupti", cupti]
        budget = max(left() - min(MARGIN, left() / 3), 3.0)
        arguments += ["--budget", f"{budget:.0f}"]
        code, tail, overran = json_lines(arguments, phase.environment(device), max(left() - 1.0, budget + 1.0), take, folder / "stderr")
        for probe, verdict in seen.items():
            if verdict == results.OK:
                phase.verdict(probe, results.OK)
        if overran:
            raise Failure(f"it did not end within its budget of {budget:.0f} s; its earlier measurements are kept", tail)
        if code != 0:
            raise Failure(f"it ended with {code}; its earlier measurements are kept", tail)
        if not seen:
            raise Failure("it measured nothing", tail)
        if tail:
            phase.fact("stderr", tail)

    with contextlib.ExitStack() as stack:
        phase.case(f"{PROGRAM.name} {what}", measure, stack, need=4.0, always=True)


def find_cupti(phase):
    """The path of CUPTI's library that pip installed with PyTorch. The probe itself searches a
    toolkit's folders.
    """
    return next(
        (
            str(path)
            for folder in machine.cuda_libraries(phase.python, "nvidia/*/lib", "nvidia/*/extras/CUPTI/lib64")
            for path in sorted(Path(folder).glob("libcupti.so.*"))
        ),
        None,
    )


def missing():
    raise Skip(f"{PROGRAM.name} is not in the bundle")
