# SPDX-License-Identifier: MIT OR Apache-2.0
"""Does `weft profile --trace` record the job's operations? A PyTorch job on the simulated GPU,
without weft and recorded.

Checked: the job ends as without weft and prints the same bytes; it has as many steps as it marked,
all of one sequence; the kernels of the trace (graphs with their nodes) are those that the device
saw, by name, shape and order; copies, waits, events and threads are those of the program; the
device saw nothing more than without weft but event records; a failure is explained in one line.
"""

import collections
import json
import os
import subprocess

import pytest
from harness import devicelog, jobs, paths

pytestmark = pytest.mark.skipif(not paths.python("torch").exists(), reason="no .venv-torch: scripts/setup torch")

PROGRAM = paths.CLIENTS / "programs" / "torch_traced.py"
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
        assert done.returncode == 0, f"the trace cannot be read: {done.stderr}\n{self.job.explain()}"
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
        assert job.wait(BOUND) == 0, job.explain()
        assert device.wait_gone(), "the device process stayed"
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


@pytest.fixture(scope="module")
def run(request):
    """The recording, made once."""
    with jobs.workspace(request.config.option.keep) as folder:
        yield Recording(folder)


def weft(words):
    return subprocess.run([paths.WEFT, *words], capture_output=True, text=True, timeout=60, check=False)


def test_the_job_is_as_without_weft(run):
    assert run.job.stdout() == run.bare.stdout(), f"stdout differs: {run.bare.stdout()!r} and {run.job.stdout()!r}"
    assert run.result == run.bare_result, f"results differ: {run.bare_result} and {run.result}"
    said = run.job.stderr().splitlines()
    assert all(line.startswith(("weft: trace traced: 12 steps", "weft: profile traced")) for line in said), f"stderr: {said}"
    left = [name for name in os.listdir(run.folder) if name.endswith(".raw")]
    assert not left, f"left over: {left}"


def test_every_step_is_one_sequence(run):
    steps = run.trace["steps"]
    assert len(steps) == STEPS, f"{len(steps)} steps, {STEPS} were marked"
    shapes = {json.dumps([(o["thread"], strip(o["call"])) for o in step["operations"]]) for step in steps}
    assert len(shapes) == 1, f"{len(shapes)} sequences in steps that are all alike"
    shown = run.shown["steps"], run.shown["operations"]
    assert shown == (STEPS, sum(len(step["operations"]) for step in steps)), f"weft trace show: steps and operations {shown}"


def strip(call):
    ((kind, fields),) = call.items()
    return [kind, {k: v for k, v in fields.items() if k != "duration"} if isinstance(fields, dict) else fields]


def test_kernels_are_those_of_the_device(run):
    seen = [(r["name"], tuple(r["grid"]), tuple(r["block"])) for r in sorted(run.log, key=lambda r: r["seq"]) if r.get("op") == "kernel"]
    recorded = [kernel for step in run.trace["steps"] for kernel in run.launched(step)]
    # Two streams and a graph: the order among streams is that of submission, and a graph's is any
    # that its edges allow.
    assert 0 < len(recorded) <= len(seen), f"{len(recorded)} kernels in the trace, {len(seen)} on the device"
    tail = seen[-len(recorded) :]
    other = collections.Counter(tail) - collections.Counter(recorded)
    assert not other, f"other kernels: {other.most_common(3)}"
    for at, (device, trace) in enumerate(zip(tail, recorded)):
        assert device == trace, f"launch {at}: {trace} in the trace, {device} on the device"
    # The step before the first mark is not in it.
    step = len(recorded) // STEPS
    assert len(seen) >= len(recorded) + 2 * step, "the steps that were not marked are missing on the device"


def test_calls_are_those_of_the_program(run):
    step = run.trace["steps"][0]
    calls = list(run.calls(step))
    kinds = [kind for kind, _ in calls]
    graphs = [f for k, f in calls if k == "Launch" and run.trace["kernels"][f["kernel"]]["nodes"]]
    copies = [f for k, f in calls if k == "Copy" and f["direction"] != "Fill"]
    ways = [copy["direction"] for copy in copies if copy["direction"] in ("HostToDevice", "DeviceToHost")]
    assert ways == ["HostToDevice", "HostToDevice", "DeviceToHost"], f"copies between host and device: {ways}"
    # 32 images of 64 floats, 32 labels of 8 bytes, 32 answers of 10 floats.
    sizes = [copy["bytes"] for copy in copies if copy["direction"] in ("HostToDevice", "DeviceToHost")]
    assert sizes == [8192, 256, 1280], f"copied {sizes} bytes"
    assert len(graphs) == 1 and len(run.trace["kernels"][graphs[0]["kernel"]]["nodes"]) >= 3, f"{len(graphs)} graph launches"
    record, wait = kinds.index("Record"), kinds.index("Wait")
    recorded, waited = calls[record][1], calls[wait][1]
    assert record < wait and recorded["event"] == waited["event"] and recorded["stream"] != waited["stream"], f"event: {recorded}, {waited}"
    beside = calls[wait + 1]
    assert beside[0] == "Launch" and beside[1]["stream"] == calls[wait][1]["stream"], f"behind the wait: {beside}"
    syncs = [f for k, f in calls if k == "Sync"]
    assert len(syncs) == 2 and calls[wait + 2] == ("Sync", {"Stream": calls[wait][1]["stream"]}) and kinds[-1] == "Sync", f"waits: {syncs}"


def test_threads_hand_over(run):
    """The backward pass runs on a thread of its own, between two parts of the main one."""
    runs = []
    for operation in run.trace["steps"][0]["operations"]:
        if not runs or runs[-1][0] != operation["thread"]:
            runs.append((operation["thread"], operation["handed_over"]))
    assert runs == [(0, False), (1, True), (0, True)], f"threads: {runs}"


def test_times_are_told(run):
    work = [f for step in run.trace["steps"] for kind, f in run.calls(step) if kind in ("Launch", "Copy")]
    silent = sum(f["duration"] == 0 for f in work)
    assert not silent, f"{silent} of {len(work)} pieces of work have no time"
    # The job's steps on the host: the recorded time of them cannot be more than the whole run's.
    host = sum(o["host_before"] for step in run.trace["steps"] for o in step["operations"])
    assert 0 < host < BOUND * 1e9, f"{host} ns of host time"
    file = run.folder / "traced" / "profiles" / "traced.profile"
    assert file.exists(), "no profile was made of the trace"


def test_the_device_sees_nothing_but_events(run):
    def streams(records):
        found = collections.Counter(tuple(sequence) for s in devicelog.streams(records).values() for sequence in s)
        return found

    def plain(records):
        return [r for r in records if r.get("op") != "event"]

    before, after = streams(plain(run.bare_log)), streams(plain(run.log))
    # Sequences are long: their lengths are enough.
    lengths = [sorted(len(s) for s in (a - b).elements()) for a, b in ((before, after), (after, before))]
    assert lengths == [[], []], f"streams differ: lengths {lengths[0]} without weft, {lengths[1]} with it"


def run_failing(folder, command, trace):
    """`weft profile --trace` of a command that gives no trace; the exit code and the lines of
    stderr."""
    device = jobs.Device(folder)
    environment = {**jobs.clean_environment(), **device.environment(), **device.weft_environment(), "WEFT_SOCKET": str(folder / "none.sock")}
    job = jobs.Job([paths.WEFT, "profile", "--trace", trace, "--", *command], environment=environment, folder=folder, name="failing")
    code = job.wait(BOUND)
    return code, [line for line in job.stderr().splitlines() if line]


def test_without_a_mark_it_says_what_to_do(folder):
    code, said = run_failing(folder, [paths.python("torch"), "-c", "import torch; torch.zeros(3).cuda(); exit(3)"], folder / "unmarked.trace")
    assert code == 3 and len(said) == 1 and "torch.cuda.profiler.start()" in said[0], f"exit {code}: {said}"
    assert not any(".raw" in name for name in os.listdir(folder)), f"left over: {os.listdir(folder)}"


def test_a_job_that_cannot_write_runs_on(folder):
    """The folder for the trace does not exist: the job does its work, weft prints why there is no
    trace."""
    code, said = run_failing(folder, ["true"], "/no/such/place/x.trace")
    assert code == 1 and len(said) == 1 and "/no/such/place" in said[0], f"exit {code}: {said}"
