# SPDX-License-Identifier: MIT OR Apache-2.0
"""Rehearses the leases on the simulated GPU, with the code and the budget of a real one, and checks
the files that each writes.

A rehearsal judges names, never figures: those of a simulated GPU are no measurements. Each case
that --dry-run names must have a verdict, and none may have failed. A case that went well must have
written its figures, and the most informative case of each phase must have gone well. The simulated
GPU is too slow for some cases. Those may be left out if the result file names them.
"""

import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from harness import paths, show

from . import leases, results
from .phases import cost, facts, interception

KEYS = paths.ROOT / "tests" / "simgpu" / "calibration" / "keys.toml"

# Seconds that a lease may exceed its budget before it is given up.
BEYOND = 90.0

# Cases of interception that belong to no client, with the figures of each. The profiler sees no
# kernels on the simulated GPU.
BESIDES = {
    "doctor": [],
    "graph updates": [f"{key}.{name}" for _, _, key in interception.UPDATES for name in ("bare", "weft", "ratio")],
    "profiler": [f"profiler.{name}.{what}" for name, role, _ in interception.PROFILED_AS for what in ("kernels", "with_op", *(["launches"] if role else []))],
    "blocking": ["blocking.compared", "blocking.left_behind"],
    "exits": ["exits.tried", "exits.bad"],
}

# Phases that run weft-gpu-probe.
PROBES = ("calibration", "movable", "memory")

# The figures over all clients of a run.
GATHERED = ["launches", "launches.unnamed", "launches.left_behind", "lookups.ours", "lookups.unhooked", "data.compared", "data.differing"]


def cases_of(rows):
    """{phase: names of the cases} of the processes of a dry run, in their order."""
    found = {}
    for row in rows:
        phase, case = row["phase"], row["case"]
        if phase in PROBES:
            names = case.split(", ")
        elif phase == "sharing":
            pair, _, conditions = case.split(": ")
            names = [f"{pair}: {condition}" for condition in conditions.split(", ")]
        elif phase == "interception":
            one = case.partition(": ")[0]
            names = [one] if one in BESIDES or "/" in case and not case.endswith(": beside") else []
        elif phase == "cost":
            names = [case.split(": ")[0]]
        else:
            names = [case]
        found.setdefault(phase, {}).update(dict.fromkeys(names))
    if "interception" in found:
        found["interception"].setdefault("symbols")
    return {phase: list(names) for phase, names in found.items()}


def values_of(phase, case):
    """Names of the figures that a case writes if it goes well."""
    if phase == "facts":
        return ["warm_up.import_torch", "warm_up.first_product", "warm_up.second_product"]
    if phase == "interception":
        if case == "symbols":
            return ["symbols.driver", "symbols.table_lacks", "symbols.driver_lacks"]
        return BESIDES.get(case, GATHERED)
    if phase == "cost":
        prefix = "counted" if "count" in case else "launch"
        roles = ["bare", "no broker", "attached", "foreground", "background"]
        return [
            f"{prefix}.{role}.{way}{more}"
            for role in roles
            for way in cost.WAYS
            for more in (("",) if role == "bare" else ("", ".added", ".added_cpu"))
        ]
    if phase == "sharing":
        more = [] if case.endswith(": alone") else ["p50.slowdown", "p99.slowdown", "batch.share"]
        return [f"{case}: {what}" for what in ("p50", "p99", "batch", *more)]
    if phase == "record":
        return [f"{case}.{what}" for what in ("step", "device", "alone", "launches")] + [f"{case}.{kind}.bytes" for kind in ("profile", "trace")]
    return []


def first_of(phase, cases):
    """The cases of a phase that must go well."""
    if phase == "interception":
        return ["doctor", "cudarc/alone"]
    if phase == "cost":
        return [case for case in cases if case.startswith("launches")]
    if phase == "sharing":
        return cases[:2]
    return cases[:1]


def keys_of(names):
    """(probe, figure) that the simulated GPU reads from these probes."""
    found, entry = [], {}
    # Reads only two words of each table: some Pythons that run this have no reader of TOML.
    for line in [*KEYS.read_text().splitlines(), "["]:
        if line.startswith("["):
            if entry.get("probe") in names:
                found.append((entry["probe"], entry["name"]))
            entry = {}
        elif match := re.match(r'(probe|name)\s*=\s*"([^"]*)"', line):
            entry[match[1]] = match[2]
    return found


def faults(lease, planned, lines, folder):
    """Figures that a lease did not write, and its other faults; one line each."""
    found = []
    head = next((line for line in lines if line["kind"] == "run"), {})
    torch = "torch" in head.get("packages", {}) and "torchvision" in head.get("packages", {})
    if head.get("lease") != lease.name or not head.get("simulated"):
        found.append("its first line does not name the lease, or does not say that it is simulated")
    if not any(line["kind"] == "end" for line in lines):
        found.append("no last line: it did not finish")
    told = [line["name"] for line in lines if line["kind"] == "fact" and line.get("phase") == "facts"]
    found += [f"facts: no {name}" for name in ("keeper", *facts.NAMES) if name not in told]
    order = [line["phase"] for line in lines if "phase" in line]
    rank = {name: number for number, name in enumerate(["facts", *lease.steps])}
    if order != sorted(order, key=lambda name: rank.get(name, len(rank))) or not set(order) <= set(rank):
        found.append(f"phases in another order, or other phases: {list(dict.fromkeys(order))}")
    values = {(line.get("phase"), line["name"]) for line in lines if line["kind"] == "value"}
    said = {line["phase"]: line for line in lines if line["kind"] == "phase"}
    for phase in ["facts", *lease.steps]:
        verdict = said.get(phase, {"verdict": "nothing", "why": "it never began"})
        if verdict["verdict"] == results.LEFT_OUT and not torch and "torch" in verdict.get("why", ""):
            continue
        if verdict["verdict"] != results.OK:
            found.append(f"{phase}: {verdict['verdict']}: {verdict.get('why')}")
    for phase, cases in planned.items():
        verdicts = {line["name"]: line for line in lines if line["kind"] == "case" and line.get("phase") == phase}
        for name, line in verdicts.items():
            if line["verdict"] == results.FAILED:
                found.append(f"{phase}: {name} failed: {line.get('why')}")
        for case in cases:
            verdict = verdicts.get(case, {}).get("verdict")
            if verdict is None and not set_aside(lines, phase, case):
                found.append(f"{phase}: no verdict on {case}")
            if verdict == results.OK:
                found += [f"{phase}: {case} wrote no {name}" for name in values_of(phase, case) if (phase, name) not in values]
        needs_torch = phase in ("sharing", "record", "facts")
        for case in first_of(phase, cases):
            verdict = verdicts.get(case, {})
            if verdict.get("verdict") != results.OK and (torch or not needs_torch):
                found.append(f"{phase}: {case} must go well: {verdict.get('verdict')}: {verdict.get('why')}")
        if phase in PROBES:
            # If a part of a probe was skipped, with the reason, the figures of that part are not
            # required.
            parts = {name.partition(".")[0] for name, line in verdicts.items() if "." in name and line["verdict"] != results.OK}
            good = [case for case in cases if verdicts.get(case, {}).get("verdict") == results.OK and case not in parts]
            keys = {(line.get("probe"), line.get("key")) for line in lines if line["kind"] == "value"}
            found += [f"{phase}: no {name} of {probe_}, which the simulated GPU reads" for probe_, name in keys_of(good) if (probe_, name) not in keys]
        if phase == "record":
            found += recordings(folder, [case for case in cases if verdicts.get(case, {}).get("verdict") == results.OK])
    return found


def set_aside(lines, phase, case):
    """Whether the phase had no time to begin this pair of jobs."""
    pair = case.partition(": ")[0].replace("+", " and ")
    return any(line["kind"] == "fact" and line.get("phase") == phase == "sharing" and line["name"] == "pairs not tried" and pair in line["data"] for line in lines)


def recordings(folder, cases):
    """Recordings that are not in the archives."""
    there = set()
    for archive in folder.glob("*.recorded*.tar"):
        with tarfile.open(archive) as tar:
            there |= set(tar.getnames())
    return [f"record: no {case}.{kind} in an archive" for case in cases for kind in ("profile", "trace") if f"{case}.{kind}" not in there]


def one(lease, common, budget, out):
    """Runs a lease. Returns (its faults, its result lines)."""
    command = [sys.executable, paths.ROOT / "scripts" / "gpu-suite", "--lease", lease.name, "--simulated", "--budget", budget, *common]
    command = [str(part) for part in command]
    listed = subprocess.run([*command, "--dry-run"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=BEYOND, check=False)
    if listed.returncode:
        return [f"--dry-run ended with {listed.returncode}"], []
    *rows, plan = [json.loads(line) for line in listed.stdout.splitlines()]
    planned = cases_of(rows)
    if sum(plan["bounds"].values()) > leases.MOST:
        return [f"its steps may take {sum(plan['bounds'].values()):g} s, more than {leases.MOST:g}"], []
    # In its own session: a signal ends it, as it ends the suite, and it ends the processes it
    # started.
    process = subprocess.Popen([*command, "--out", str(out)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
    found = []
    try:
        code = process.wait(budget + BEYOND)
        if code:
            found.append(f"it ended with {code}")
    except subprocess.TimeoutExpired:
        found.append(f"it did not end within {BEYOND:.0f} s of its budget")
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
    brought = sorted(out.iterdir()) if out.exists() else []
    if [path.name for path in brought] != [f"lease-{lease.name}.tgz"]:
        return [*found, f"it left {', '.join(path.name for path in brought) or 'nothing'} instead of one archive"], []
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(brought[0]) as tar:
            tar.extractall(folder, filter="data")
        files = sorted(Path(folder).rglob("*.jsonl"))
        if not files:
            return [*found, "its archive has no result file"], []
        lines = results.read(files[-1])
        return found + faults(lease, planned, lines, files[-1].parent), lines


def main(arguments, out):
    """Runs all leases, or the named one. Returns the exit code."""
    common = []
    for option in ("bundle", "python"):
        if getattr(arguments, option):
            common += [f"--{option}", getattr(arguments, option)]
    if arguments.quick:
        common.append("--quick")
    rows, wrong = [], []
    for lease in [leases.ALL[arguments.lease]] if arguments.lease else leases.ALL.values():
        found, lines = one(lease, common, arguments.budget, Path(out) / lease.name)
        kinds = [sum(line["kind"] == kind for line in lines) for kind in ("fact", "case", "value")]
        left = sum(line["kind"] == "case" and line["verdict"] != results.OK for line in lines)
        seconds = next((line["seconds"] for line in lines if line["kind"] == "end"), 0)
        rows.append([lease.name, f"{seconds:.0f} s", *kinds, left, len(found)])
        wrong += [f"lease {lease.name}: {line}" for line in found]
    print(show.table(["lease", "took", "facts", "cases", "figures", "not tried", "faults"], rows))
    for line in wrong:
        print(f"fault: {line}")
    print(f"{len(rows)} leases rehearsed, {len(wrong)} faults")
    return 1 if wrong else 0
