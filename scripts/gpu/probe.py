"""Runs weft-gpu-probe and turns its JSON lines into results.

A line with a figure is `{"probe", "name", "value", "unit", "n", "p10", "p90"}`; one without says why: `{"probe", "skipped"}` or
`{"probe", "error"}`.
"""

import contextlib
from pathlib import Path

from harness import paths

from . import machine, mps, results
from .phase import Failure, Skip, json_lines

PROGRAM = paths.TARGET / "release" / "weft-gpu-probe"

# With --quick: short ones.
QUICK = {"calibration": ["copy", "memset", "alloc"], "memory": ["discard"]}

# The probe ends by itself within the budget it is given; this much earlier than the phase must, to leave time to write and end.
MARGIN = 5.0


def run(phase, what):
    """All probes of a kind in one process, then a verdict each."""
    if not PROGRAM.exists():
        phase.case(what, missing)
        return
    folder = phase.place(what)
    device = phase.device(folder)
    seen = {}

    def take(line):
        probe = line.get("probe", what)
        if probe in ("about", "end"):
            phase.fact(probe, line)
            for name in line.get("left_out") or ():
                phase.verdict(name, results.LEFT_OUT, "the probe's budget was over")
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
            phase.fact(name, line)
        elif "skipped" in line:
            seen[name] = results.SKIPPED
            phase.verdict(name, results.SKIPPED, str(why))
        else:
            seen[name] = results.FAILED
            phase.verdict(name, results.FAILED, str(why))

    def measure(stack):
        # Without a GPU a few of each kind show that it works.
        arguments = [PROGRAM, what, *(word for name in (QUICK[what] if phase.quick else ()) for word in ("--only", name))]
        if what == "calibration" and not phase.simulated:
            # How processes share under MPS is measured too, where the daemon is on the machine. It starts before, and others do not meet it.
            try:
                service = stack.enter_context(mps.Service(folder))
                arguments += ["--mps-pipe", service.pipes]
            except (Skip, Failure) as why:
                phase.verdict("mps", results.SKIPPED, str(why), getattr(why, "tail", None))
        # The simulated driver knows nothing of CUPTI's tables.
        cupti = None if phase.simulated else find_cupti(phase)
        if what == "calibration" and cupti:
            arguments += ["--cupti", cupti]
        budget = max(phase.left() - MARGIN, 3.0)
        arguments += ["--budget", f"{budget:.0f}"]
        code, tail, overran = json_lines(arguments, phase.environment(device), phase.left() - 1.0, take, folder / "stderr")
        for probe, verdict in seen.items():
            if verdict == results.OK:
                phase.verdict(probe, results.OK)
        if overran:
            raise Failure(f"it did not end within its budget of {budget:.0f} s; what it measured before is kept", tail)
        if code != 0:
            raise Failure(f"it ended with {code}; what it measured before is kept", tail)
        if not seen:
            raise Failure("it measured nothing", tail)
        if tail:
            phase.fact("stderr", tail)

    with contextlib.ExitStack() as stack:
        phase.case("weft-gpu-probe", measure, stack, need=4.0)


def find_cupti(phase):
    """CUPTI's library as pip installs it beside PyTorch; the probe itself looks where a toolkit puts it."""
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
