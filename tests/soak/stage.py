# SPDX-License-Identifier: MIT OR Apache-2.0
"""The common base of the campaign's parts: their figures, the program that makes random driver
calls, and the comparison of a run of it with the plain one."""

import dataclasses
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
for folder in (ROOT / "scripts", ROOT / "tests", ROOT / "tests" / "regressions"):
    sys.path.insert(0, str(folder))

import wire  # noqa: E402
from fixtures import scene  # noqa: E402
from harness import devicelog, jobs, paths  # noqa: E402

KERNELS = ROOT / "tests" / "simgpu" / "driver" / "src" / "kernels" / "simgpu.ptx"
# Evidence of a failed run: its result next to the plain one's, and the fuzzer's findings.
FAILURES = paths.TARGET / "soak-failures"
# Longest time for anything that takes a second on an idle machine; a job that takes longer hangs.
BOUND = 120.0
# weft's own operations on the device for a background job: event records that show the end of its
# work.
OWN = frozenset({"event"})


@dataclasses.dataclass
class Figures:
    """Counts of a campaign's actions and findings."""

    client_kills: int = 0
    broker_kills: int = 0
    stops: int = 0
    starts: int = 0
    ended: int = 0
    sequences: int = 0
    calls: int = 0
    inputs: int = 0
    moves: int = 0
    lost: int = 0
    hung: int = 0
    reordered: int = 0
    troubles: list = dataclasses.field(default_factory=list)

    def trouble(self, kind, what):
        """Something went wrong: `kind` is lost, hung or reordered."""
        setattr(self, kind, getattr(self, kind) + 1)
        self.troubles.append(f"{kind}: {what}")
        print(f"soak: {kind}: {what}", file=sys.stderr, flush=True)

    def add(self, other):
        """Adds another one's."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def line(self):
        """All of it in a line."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "troubles"]
        return ", ".join(f"{getattr(self, name)} {name.replace('_', ' ')}" for name in names)

    def settle(self, before):
        """Fails if anything went wrong since `before` troubles were known."""
        new = self.troubles[before:]
        assert not new, "\n".join([f"{len(new)} troubles", *new[:10]])


def program(folder):
    """The C program, built into this folder."""
    target = Path(folder) / "calls"
    command = ["cc", "-O1", "-o", target, HERE / "programs" / "calls.c", f'-DKERNELS="{KERNELS}"', "-ldl", "-lpthread"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=BOUND, check=False)
    assert done.returncode == 0, done.stderr
    return target


@dataclasses.dataclass(frozen=True)
class Play:
    """One sequence of calls: the same for the same numbers."""

    seed: int
    steps: int
    threads: int

    def command(self, folder, result, go=None):
        """Its command line. `folder`: the program's folder."""
        return [Path(folder) / "calls", self.seed, self.steps, self.threads, result, *([go] if go else [])]


class Plain:
    """A sequence without weft: its result, and its operations on the device."""

    def __init__(self, play, result, streams):
        self.play, self.result = play, result
        self.legacy, *self.streams = self.apart(streams)

    def apart(self, streams):
        """The same streams, but the legacy one without its order: threads share it in an order that
        time decides."""
        first, *rest = streams or [[]]
        return [sorted(first, key=repr) if self.play.threads > 1 else first, *rest]

    def differs(self, streams):
        """The difference between another run's operations on the device and this one's, in words;
        None if there is none."""
        legacy, *left = self.apart(streams)
        if not fits(self.legacy, legacy):
            return "the legacy stream " + devicelog.first_difference(self.legacy, legacy)
        for stream in self.streams:
            match = next((other for other in left if fits(stream, other)), None)
            if match is None:
                nearest = max(left, key=lambda other: devicelog.common_prefix(stream, other), default=[])
                return "a stream " + devicelog.first_difference(stream, nearest)
            left.remove(match)
        more = [item for stream in left for item in stream if item[0] not in OWN]
        return f"the device saw more: {devicelog.describe(more[0])}" if more else None


def fits(expected, seen):
    """Whether the seen operations are the expected ones, in order, except for weft's own
    operations."""
    return devicelog.only_allowed(devicelog.extra_operations(expected, seen), OWN)


def plain_runs(folder, plays, figures):
    """Plays each without weft, twice. {play: Plain}; a play that is not the same twice is a fault
    of the program or of the simulated GPU, and an error."""
    folder = Path(folder)
    device = jobs.Device(folder, log=folder / "plain.log")
    environment = {**jobs.clean_environment(), **device.environment()}
    runs = {}
    for play in plays:
        both = []
        for turn in range(2):
            name = f"plain-{play.seed}-{play.steps}-{play.threads}-{turn}"
            job = jobs.Job(play.command(folder, folder / name), environment=environment, folder=folder, name=f"{name}.job")
            code = job.wait(BOUND)
            assert code == 0, f"{play} without weft\n{job.explain()}"
            both.append((job.pid, (folder / name).read_bytes()))
        assert both[0][1] == both[1][1], f"{play} is not the same twice without weft: see {saved(play, 'plain', both[0][1], both[1][1])}"
        runs[play] = both
    assert device.wait_gone(), "the device stays after its last client"
    streams = streams_of(device.log, {pid for both in runs.values() for pid, _ in both})
    return {play: Plain(play, both[0][1], streams.get(both[0][0], [])) for play, both in runs.items()}


def streams_of(log, pids):
    """{pid: its streams' operations on the device, the legacy stream first}, read once and only for
    these processes."""
    wanted = {b'"pid":%d,' % pid for pid in pids}
    found = {pid: {} for pid in pids}
    with open(log, "rb") as file:
        for line in file:
            at = line.find(b'"pid":')
            if at >= 0 and line[at : line.find(b",", at) + 1] in wanted:
                # The last line of a device that was killed may be torn.
                record = json.loads(line) if line.endswith(b"}\n") else {"op": "wait"}
                # A wait for ended work is left out, so the number of waits depends on time.
                if record["op"] != "wait":
                    found[record["pid"]].setdefault((record["ctx"], record["stream"]), []).append((record["seq"], devicelog.operation(record)))
    # A sequence's first operation is on the legacy stream.
    ordered = lambda streams: sorted(([*sorted(stream, key=lambda one: one[0])] for stream in streams.values()), key=lambda stream: stream[0][0])  # noqa: E731
    return {pid: [[item for _, item in stream] for stream in ordered(streams)] for pid, streams in found.items()}


def saved(play, role, expected, seen):
    """Keeps two results that should be one, and returns their common path."""
    FAILURES.mkdir(parents=True, exist_ok=True)
    stem = f"{play.seed}-{play.steps}-{play.threads}-{role}"
    for kind, content in (("plain", expected), ("weft", seen)):
        (FAILURES / f"{stem}.{kind}").write_bytes(content)
    return FAILURES / stem


def first_line(expected, seen):
    """The first line that differs between two results, in words."""
    ours, theirs = expected.decode().splitlines(), seen.decode().splitlines()
    at = next((number for number, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    line = lambda lines: repr(lines[at]) if at < len(lines) else "its end"  # noqa: E731
    return f"line {at + 1}: {line(theirs)}, not {line(ours)}"


def judge(figures, what, plain, job, result):
    """A job that ended by itself: exit code and result. True if both are right."""
    if job.timed_out:
        figures.trouble("hung", f"{what}\n{job.explain()}")
        return False
    code = job.process.returncode
    if code != 0:
        figures.trouble("lost", f"{what}: exit {code}\n{job.explain()}")
        return False
    seen = Path(result).read_bytes()
    if seen != plain.result:
        kept = saved(plain.play, "weft", plain.result, seen)
        figures.trouble("lost", f"{what}: {first_line(plain.result, seen)} ({kept})")
        return False
    figures.ended += 1
    return True


def judge_order(figures, log, ended):
    """Judges the device's records of jobs that ended well. `ended`: {pid: (what, Plain)}."""
    streams = streams_of(log, set(ended))
    for pid, (what, plain) in ended.items():
        wrong = plain.differs(streams.get(pid, []))
        if wrong:
            figures.trouble("reordered", f"{what}: {wrong}")


def asked(socket, what, timeout=BOUND):
    """A broker's answer about itself: `what` is "status" or "queue"."""
    return wire.ask(socket, what, timeout)[what]


class Clock:
    """The seconds that a part has."""

    def __init__(self, seconds):
        self.begin = time.monotonic()
        self.end = self.begin + seconds

    def left(self):
        """Seconds that are left; not below 0."""
        return max(0.0, self.end - time.monotonic())

    def spent(self):
        """Seconds that are over."""
        return time.monotonic() - self.begin


def copied(folder, *files):
    """Copies files to a folder in which every user may read and start them."""
    for source, name in files:
        target = Path(folder) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(source).resolve(), target)
        target.chmod(0o755)


missing = scene.missing
