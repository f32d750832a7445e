#!/usr/bin/env python3
"""Does `weft profile --trace` record what the job did? A PyTorch job on the simulated GPU, without weft and recorded.

    tests/clients/trace.py [--keep]

Checked: the job ends as without weft and prints the same bytes; it has as many steps as it marked, all of one sequence; the kernels of the trace (graphs
with their nodes) are those that the device saw, by name, shape and order; copies, waits, events and threads are those of the program; the device saw
nothing more than without weft but event records; what fails says why in one line. The last line is `N passed, N failed`.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from harness import devicelog, jobs, paths, show  # noqa: E402

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "programs" / "torch_traced.py"
STEPS = 12
# A run takes 5 s on two idle cores; this leaves room for busy ones and still ends.
BOUND = 150.0


class Recording:
    """The program, run once without weft and once recorded."""

    def __init__(self, folder):
        self.folder = folder
        self.bare, self.bare_log, self.bare_result = self.run("bare", [])
        self.trace_file = folder / "job.trace"
        self.job, self.log, self.result = self.run("traced", [paths.WEFT, "profile", "--trace", self.trace_file, "--name", "traced", "--"])
        done = weft(["trace", "export", self.trace_file, folder / "trace.json"])
        if done.returncode != 0:
            raise RuntimeError(f"the trace cannot be read: {done.stderr}\n{self.job.explain()}")
        self.trace = json.loads((folder / "trace.json").read_text())
        self.shown = json.loads(weft(["trace", "show", "--json", self.trace_file]).stdout)

    def run(self, name, before):
        folder = self.folder / name
        folder.mkdir()
        log, result = folder / "device.log", folder / "result.json"
        device = jobs.Device(folder, log=log)
        environment = {**jobs.clean_environment(), **device.environment(), **device.weft_environment(), "OMP_NUM_THREADS": "1"}
        environment.update({"WEFT_SOCKET": str(folder / "none.sock"), "WEFT_PROFILE_DIR": str(folder / "profiles")})
        job = jobs.Job([*before, paths.python("torch"), PROGRAM, result], environment=environment, folder=folder, name=name, cwd=folder)
        if job.wait(BOUND) != 0:
            raise RuntimeError(job.explain())
        if not device.wait_gone():
            raise RuntimeError("the device process stayed")
        return job, devicelog.read(log), json.loads(result.read_text())

    def calls(self, step):
        """The calls of a step: (kind, fields)."""
        for operation in step["operations"]:
            (item,) = operation["call"].items()
            yield item

    def launched(self, step):
        """The kernels of a step by identity, those of graphs one by one."""
        for kind, fields in self.calls(step):
            if kind == "Launch":
                kernel = self.trace["kernels"][fields["kernel"]]
                nodes = [self.trace["kernels"][node["kernel"]] for node in kernel["nodes"]] or [kernel]
                yield from ((node["id"]["symbol"], tuple(node["id"]["grid"]), tuple(node["id"]["block"])) for node in nodes)


def weft(words):
    return subprocess.run([paths.WEFT, *words], capture_output=True, text=True, timeout=60, check=False)


def the_job_is_as_without_weft(run):
    if run.job.stdout() != run.bare.stdout():
        return f"stdout differs: {run.bare.stdout()!r} and {run.job.stdout()!r}"
    if run.result != run.bare_result:
        return f"results differ: {run.bare_result} and {run.result}"
    said = run.job.stderr().splitlines()
    if not all(line.startswith(("weft: trace traced: 12 steps", "weft: profile traced")) for line in said):
        return f"stderr: {said}"
    left = [name for name in os.listdir(run.folder) if name.endswith(".raw")]
    return f"left over: {left}" if left else None


def every_step_is_one_sequence(run):
    steps = run.trace["steps"]
    if len(steps) != STEPS:
        return f"{len(steps)} steps, {STEPS} were marked"
    shapes = {json.dumps([(o["thread"], strip(o["call"])) for o in step["operations"]]) for step in steps}
    if len(shapes) != 1:
        return f"{len(shapes)} sequences in steps that are all alike"
    if run.shown["steps"] != STEPS or run.shown["operations"] != sum(len(step["operations"]) for step in steps):
        return f"weft trace show: {run.shown['steps']} steps, {run.shown['operations']} operations"
    return None


def strip(call):
    ((kind, fields),) = call.items()
    return [kind, {k: v for k, v in fields.items() if k != "duration"} if isinstance(fields, dict) else fields]


def kernels_are_those_of_the_device(run):
    seen = [(r["name"], tuple(r["grid"]), tuple(r["block"])) for r in sorted(run.log, key=lambda r: r["seq"]) if r.get("op") == "kernel"]
    recorded = [kernel for step in run.trace["steps"] for kernel in run.launched(step)]
    # Two streams and a graph: the order among streams is that of submission, and a graph's is any that its edges allow.
    if not recorded or len(recorded) > len(seen):
        return f"{len(recorded)} kernels in the trace, {len(seen)} on the device"
    tail = seen[-len(recorded) :]
    if collections.Counter(tail) != collections.Counter(recorded):
        return f"other kernels: {(collections.Counter(tail) - collections.Counter(recorded)).most_common(3)}"
    for at, (device, trace) in enumerate(zip(tail, recorded)):
        if device != trace:
            return f"launch {at}: {trace} in the trace, {device} on the device"
    # The step before the first mark is not in it.
    step = len(recorded) // STEPS
    return None if len(seen) >= len(recorded) + 2 * step else "the steps that were not marked are missing on the device"


def calls_are_those_of_the_program(run):
    step = run.trace["steps"][0]
    calls = list(run.calls(step))
    kinds = [kind for kind, _ in calls]
    graphs = [f for k, f in calls if k == "Launch" and run.trace["kernels"][f["kernel"]]["nodes"]]
    copies = [f for k, f in calls if k == "Copy" and f["direction"] != "Fill"]
    ways = [copy["direction"] for copy in copies if copy["direction"] in ("HostToDevice", "DeviceToHost")]
    if ways != ["HostToDevice", "HostToDevice", "DeviceToHost"]:
        return f"copies between host and device: {ways}"
    # 32 images of 64 floats, 32 labels of 8 bytes, 32 answers of 10 floats.
    sizes = [copy["bytes"] for copy in copies if copy["direction"] in ("HostToDevice", "DeviceToHost")]
    if sizes != [8192, 256, 1280]:
        return f"copied {sizes} bytes"
    if len(graphs) != 1 or len(run.trace["kernels"][graphs[0]["kernel"]]["nodes"]) < 3:
        return f"{len(graphs)} graph launches"
    record, wait = kinds.index("Record"), kinds.index("Wait")
    if not record < wait or calls[record][1]["event"] != calls[wait][1]["event"] or calls[wait][1]["stream"] == calls[record][1]["stream"]:
        return f"event: {calls[record]}, {calls[wait]}"
    beside = calls[wait + 1]
    if beside[0] != "Launch" or beside[1]["stream"] != calls[wait][1]["stream"]:
        return f"behind the wait: {beside}"
    syncs = [f for k, f in calls if k == "Sync"]
    if len(syncs) != 2 or calls[wait + 2] != ("Sync", {"Stream": calls[wait][1]["stream"]}) or kinds[-1] != "Sync":
        return f"waits: {syncs}"
    return None


def threads_hand_over(run):
    """The backward pass runs on a thread of its own, between two parts of the main one."""
    runs = []
    for operation in run.trace["steps"][0]["operations"]:
        if not runs or runs[-1][0] != operation["thread"]:
            runs.append((operation["thread"], operation["handed_over"]))
    return None if runs == [(0, False), (1, True), (0, True)] else f"threads: {runs}"


def times_are_told(run):
    work = [f for step in run.trace["steps"] for kind, f in run.calls(step) if kind in ("Launch", "Copy")]
    silent = sum(f["duration"] == 0 for f in work)
    if silent:
        return f"{silent} of {len(work)} pieces of work have no time"
    # The job's steps on the host: what is recorded of them cannot be more than the whole run was.
    host = sum(o["host_before"] for step in run.trace["steps"] for o in step["operations"])
    if not 0 < host < BOUND * 1e9:
        return f"{host} ns of host time"
    file = run.folder / "traced" / "profiles" / "traced.profile"
    return None if file.exists() else "no profile was made of the trace"


def the_device_sees_nothing_but_events(run):
    def streams(records):
        found = collections.Counter(tuple(sequence) for s in devicelog.streams(records).values() for sequence in s)
        return found

    def plain(records):
        return [r for r in records if r.get("op") != "event"]

    before, after = streams(plain(run.bare_log)), streams(plain(run.log))
    if before != after:
        # Sequences are long: their lengths tell enough.
        lengths = [sorted(len(s) for s in (a - b).elements()) for a, b in ((before, after), (after, before))]
        return f"streams differ: lengths {lengths[0]} without weft, {lengths[1]} with it"
    return None


CHECKS = [
    the_job_is_as_without_weft,
    every_step_is_one_sequence,
    kernels_are_those_of_the_device,
    calls_are_those_of_the_program,
    threads_hand_over,
    times_are_told,
    the_device_sees_nothing_but_events,
]


def run_failing(folder, command, trace):
    """`weft profile --trace` of a command that gives no trace; the exit code and what was said."""
    device = jobs.Device(folder)
    environment = {**jobs.clean_environment(), **device.environment(), **device.weft_environment(), "WEFT_SOCKET": str(folder / "none.sock")}
    job = jobs.Job([paths.WEFT, "profile", "--trace", trace, "--", *command], environment=environment, folder=folder, name="failing")
    code = job.wait(BOUND)
    return code, [line for line in job.stderr().splitlines() if line]


def without_a_mark_it_says_what_to_do(folder):
    code, said = run_failing(folder, [paths.python("torch"), "-c", "import torch; torch.zeros(3).cuda(); exit(3)"], folder / "unmarked.trace")
    if code != 3 or len(said) != 1 or "torch.cuda.profiler.start()" not in said[0]:
        return f"exit {code}: {said}"
    return f"left over: {os.listdir(folder)}" if any(".raw" in name for name in os.listdir(folder)) else None


def a_job_that_cannot_write_runs_on(folder):
    """The folder for the trace does not exist: the job does its work, weft says why there is no trace."""
    code, said = run_failing(folder, ["true"], "/no/such/place/x.trace")
    return None if code == 1 and len(said) == 1 and "/no/such/place" in said[0] else f"exit {code}: {said}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="keep logs and outputs")
    arguments = parser.parse_args()
    if not paths.python("torch").exists():
        print("0 passed, 0 failed, 1 skipped (no .venv-torch: scripts/setup torch)")
        return 0
    alone = [without_a_mark_it_says_what_to_do, a_job_that_cannot_write_runs_on]
    progress = show.Progress(len(CHECKS) + len(alone), "trace")
    failed = []

    def done(check, wrong, begin):
        name = check.__name__
        if wrong:
            failed.append(name)
        verdict = f"FAILED {wrong}" if wrong else f"ok {time.monotonic() - begin:.1f}s"
        progress.finish_one(f"trace/{name} {verdict}".replace("\n", "\n    "))

    with jobs.workspace(arguments.keep) as folder:
        progress.step("recording")
        begin = time.monotonic()
        try:
            run = Recording(folder)
        except (RuntimeError, OSError, ValueError) as error:
            run = None
            wrong = str(error)
        for check in CHECKS:
            done(check, check(run) if run else wrong, begin)
        for check in alone:
            begin = time.monotonic()
            own = folder / check.__name__
            own.mkdir()
            done(check, check(own), begin)
    progress.close()
    return show.verdict("trace", len(CHECKS) + len(alone), failed)


if __name__ == "__main__":
    sys.exit(main())
