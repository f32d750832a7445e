# SPDX-License-Identifier: MIT OR Apache-2.0
"""Stage-1 profiles and launch traces of real models on this GPU, for profiles/recorded.

One job at a time, since times are measured. After each model all recordings so far are in archives
next to the results, so a later fault does not lose them. scripts/gpu-results unpacks them.
"""

import io
import json
import os
import subprocess
import tarfile

from harness import jobs, paths

from .. import workload
from ..phase import Failure, Skip

# Requests and iterations in a trace: enough for steps to repeat, few enough for a few hundred kB.
REQUESTS = {"infer": 100, "train": 40}
QUICK_REQUESTS = {"infer": 6, "train": 2}

# Approximate seconds of one recording on a machine with a real GPU.
RECORD_SECONDS = 14.0

# An archive larger than this is closed and another one begun: a file that comes back may have 16
# MiB.
MOST_ARCHIVE = 12 << 20

# A file larger than this is no compact recording; it is reported, not kept.
MOST_FILE = 2 << 20


def of_pairs(pairs):
    """The jobs of pairs, as cases."""
    return [case for service, batch in pairs for case in ((service, "infer", False), (batch, "train", False))]


def cases_of(phase):
    """(name, model, mode, whether as a CUDA graph), in their order. The names are those of
    scripts/traces.
    """
    cases = [(model, mode, False) for model in workload.MODELS for mode in ("infer", "train")]
    cases.insert(8, ("llama", "infer", True))
    # Cases that a pair of the sharing phase uses come first; cases that an earlier lease recorded
    # come last.
    first, done = (of_pairs(phase.options.get(name, ())) for name in ("after", "done"))
    cases.sort(key=lambda case: (case in done, first.index(case) if case in first else len(first)))
    if phase.quick:
        cases = [("resnet50", "infer", False)]
    return [(f"{model}{'_graph' if graph else ''}-{mode}", model, mode, graph) for model, mode, graph in cases]


def plan(phase):
    """Every process that this phase would start."""
    folder = phase.place("plan")
    device = phase.device(folder)
    broker = phase.broker(folder, device, trace=False)
    for name, model, mode, graph in cases_of(phase):
        if phase.wanted(name):
            yield name, command_of(phase, folder, name, model, mode, graph, can_trace()), phase.environment(device, broker.variables())


def run(phase):
    archive = Archive(phase)
    traces = can_trace()
    if not traces:
        phase.fact("traces", "this weft has no profile --trace: only profiles are recorded")
    for name, model, mode, graph in cases_of(phase):
        phase.case(name, record, phase, archive, name, model, mode, graph, traces, need=4 if phase.quick else RECORD_SECONDS)


def told(phase, name, trace, requests):
    """Reads the trace's own data. Raises Failure if they do not match the run."""
    done = subprocess.run(
        [paths.WEFT, "trace", "show", "--json", trace], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode != 0:
        raise Failure("weft cannot read the trace it wrote", done.stderr.splitlines()[-5:])
    shown = json.loads(done.stdout)
    if shown["steps"] != requests:
        raise Failure(f"the trace has {shown['steps']} steps, {requests} were marked")
    step = shown["step"]
    for key, what in (("device", "device time of a step"), ("alone", "a step played alone on an ideal device")):
        phase.value(f"{name}.{key}", step[key]["p50"] / 1e6, "ms", n=requests, how=f"weft trace show: {what}")
    phase.value(f"{name}.launches", step["launches"]["p50"], "launches a step", n=requests, how="weft trace show")


def can_trace():
    done = subprocess.run([paths.WEFT, "profile", "--help"], capture_output=True, text=True, timeout=20, check=False)
    return "--trace" in done.stdout


class Archive:
    """tar files next to the results, complete after each addition."""

    def __init__(self, phase):
        self.stem = phase.writer.path.with_suffix("")
        self.number = 1
        self.members = {}

    @property
    def path(self):
        return self.stem.with_name(f"{self.stem.name}.recorded{'' if self.number == 1 else f'-{self.number}'}.tar")

    def add(self, files):
        """{name: bytes}"""
        size = sum(map(len, files.values()))
        if self.members and sum(map(len, self.members.values())) + size > MOST_ARCHIVE:
            self.number += 1
            self.members = {}
        self.members.update(files)
        new = self.path.with_suffix(".new")
        with tarfile.open(new, "w") as tar:
            for name, data in sorted(self.members.items()):
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
        os.replace(new, self.path)


def command_of(phase, folder, name, model, mode, graph, traces):
    requests = (QUICK_REQUESTS if phase.quick else REQUESTS)[mode]
    command = workload.model(phase, model, mode, requests=requests, times=folder / "times.json", mark=True, graph=graph)
    # With a trace, the profile is made from the trace.
    return [paths.WEFT, "profile", "--name", name, *(["--trace", folder / f"{name}.trace"] if traces else []), "--", *command]


def record(phase, archive, name, model, mode, graph, traces):
    workload.needs_torch(phase)
    folder = phase.place("r")
    device = phase.device(folder)
    trace = folder / f"{name}.trace"
    requests = (QUICK_REQUESTS if phase.quick else REQUESTS)[mode]
    with phase.broker(folder, device, trace=False) as broker:
        profile = broker.profiles / f"{name}.profile"
        job = jobs.Job(
            command_of(phase, folder, name, model, mode, graph, traces),
            environment=phase.environment(device, broker.variables()),
            folder=folder,
            name="record",
        )
        phase.finish(job, max(phase.left() - 1, 1), f"weft profile of {name}")
    files = {}
    for path in (profile, *([trace] if traces else [])):
        if not path.exists():
            raise Failure(f"weft profile left no {path.suffix[1:]}", job.stderr().splitlines()[-12:])
        if path.stat().st_size > MOST_FILE:
            phase.fact(f"{path.name}: too large", path.stat().st_size)
            continue
        files[path.name] = path.read_bytes()
    if not files:
        raise Skip("nothing small enough to keep")
    if traces:
        told(phase, name, trace, requests)
    archive.add(files)
    latencies = [value * 1e3 for value in json.loads((folder / "times.json").read_text())["latencies"]]
    phase.sample(f"{name}.step", latencies, "ms", how=f"models.py {model} --mode {mode} under weft profile, {requests} steps")
    for file, data in files.items():
        phase.value(f"{file}.bytes", len(data), "bytes", how="weft profile")
