# SPDX-License-Identifier: MIT OR Apache-2.0
"""A service with a batch job: the progress of each by itself, shared without weft, under MPS, and
under weft.

The processes of a pair start once and live through all conditions. A condition changes only the
broker: none, a broker whose policy knows the service's profile, or one that knows both. Settings
that a job reads at its start need separate processes: without weft, under `weft run`, under MPS.

The service's requests count while the batch job works, and the batch job's steps count within the
same span. A user could choose each condition. None changes a setting of the device.
"""

import contextlib
import json
import time
from typing import NamedTuple

from harness import jobs, paths, show

from .. import mps, results, workload
from ..phase import Failure, NoTime, Skip, TimeUp

STEPS = paths.ROOT / "scripts" / "gpu" / "steps.py"

# (service, batch job), most informative first.
QUICK_PAIRS = (("lstm", "lstm"),)
PAIRS = (("resnet50", "resnet50"), ("bert_base", "gpt2"), ("gpt2", "vgg19"), ("vit_b_16", "lstm"), ("llama", "densenet201"))

# Host work before each request, ms: the service's own gaps.
HOST_MS = 5.0

# Seconds that the service is measured, and the batch job by itself; fewest requests for a
# meaningful p99.
SECONDS, QUICK_SECONDS = 4.0, 2.5
ENOUGH, QUICK_ENOUGH = 100, 3

# Seconds that the batch job works before the service begins: a condition is a lasting state, not
# its first second.
LEAD_SECONDS = 1.0

# Seconds of stage 1 of each job.
LEARN_SECONDS = 1.5

# Seconds of a condition on a machine with a real GPU: a broker, the lead, the measured time.
# Seconds of the start of a pair.
CONDITION_SECONDS, PAIR_SECONDS = 8.0, 16.0

# Longest wait, s. An attached job looks for a broker once a second.
ATTACH_SECONDS = 10.0

# Slow-down of the simulated device: two cores run the jobs, the broker and the device
# (tests/simgpu/README.md).
DILATION, QUICK_DILATION = 10, 2

# A simulated service needs this factor more wall time for the same number of requests.
SIMULATED_LONGER = 4

# Priorities of the service and of the batch job; CUDA priority of the service's stream in
# conditions that use it.
SERVICE, BATCH, STREAM = 0, 5, -5


class Condition(NamedTuple):
    """One way of sharing.

    policy   weft's policy, or None
    both     the batch job has a profile too
    streams  the service's stream has a higher priority
    events   the service waits for an event to learn that an answer is ready, as vLLM does, instead
             of waiting for its stream
    """

    name: str
    policy: str | None = None
    both: bool = False
    mps: bool = False
    streams: bool = False
    events: bool = False

    @property
    def kind(self):
        """The kind of processes that it needs: (under MPS, under weft)."""
        return self.mps, self.policy is not None


# Most valuable first. `weft` is README's own way: the service has a profile, the batch job has
# none.
CONDITIONS = (
    Condition("default"),
    Condition("weft", "weft"),
    Condition("mps", mps=True),
    Condition("mps weft", "weft", mps=True),
    Condition("weft both profiled", "weft", both=True),
    Condition("mps weft both profiled", "weft", both=True, mps=True),
    Condition("fikit both profiled", "fikit", both=True),
    Condition("mps stream priorities", mps=True, streams=True),
    Condition("weft ends by events", "weft", events=True),
)
QUICK_CONDITIONS = ("weft", "mps weft both profiled")

ALONE = "alone"

# Processes without weft and without MPS.
PLAIN = (False, False)


def chosen(phase, service, batch):
    """The conditions of a pair that are tried."""
    wanted = [c for c in CONDITIONS if phase.wanted(f"{service}+{batch}: {c.name}")]
    return [c for c in wanted if c.name in QUICK_CONDITIONS] if phase.quick else wanted


def pairs_of(phase):
    return QUICK_PAIRS if phase.quick else phase.options.get("pairs", PAIRS)


def plan(phase):
    """Every process that this phase would start, except MPS daemons."""
    for service, batch in pairs_of(phase):
        wanted = chosen(phase, service, batch)
        if wanted:
            pair = Pair(phase, service, batch, wanted)
            under_weft = [c.name for c in wanted if c.policy]
            for kind in pair.kinds():
                stage = Stage(pair, kind[0])
                names = [*([ALONE] if kind == PLAIN else []), *(c.name for c in wanted if c.kind == kind)]
                yield from labelled(pair, stage.commands(kind), names)
                if kind == PLAIN and under_weft:
                    yield from labelled(pair, stage.learning(), under_weft)


def labelled(pair, commands, conditions):
    """Processes for --dry-run, each with the conditions that it lives through."""
    for name, command, environment in commands:
        yield f"{pair.name}: {name}: {', '.join(conditions)}", command, environment


def run(phase):
    workload.needs_torch(phase)
    for number, (service, batch) in enumerate(pairs_of(phase)):
        wanted = chosen(phase, service, batch)
        if not wanted:
            continue
        # The first pair is the core of the phase. A further pair begins only if a comparison still
        # fits into the time.
        if number and phase.left() < PAIR_SECONDS + 3 * CONDITION_SECONDS:
            phase.fact("pairs not tried", [" and ".join(pair) for pair in pairs_of(phase)[number:]])
            break
        try:
            Pair(phase, service, batch, wanted).run()
        except TimeUp:
            phase.fact("pairs not tried", [" and ".join(pair) for pair in pairs_of(phase)[number + 1 :]])
            raise


class Stage:
    """A device in one mode, the broker on it, and the processes that share it."""

    def __init__(self, pair, is_mps):
        self.pair, self.phase, self.is_mps = pair, pair.phase, is_mps
        self.folder = self.phase.place("mps" if is_mps else "turns")
        settings = {"dilation": pair.dilation, **({"mode": "mps"} if is_mps else {})}
        self.device = self.phase.device(self.folder, **settings)
        self.broker = self.phase.broker(self.folder, self.device, trace=False)
        self.variables = {}
        self.processes = {}
        # The MPS daemon of a real GPU, and the reason why this stage cannot be measured.
        self.daemon = self.trouble = None

    def attempt(self, step, *arguments):
        """Returns the result of `step`, or records its trouble: the other stage goes on without
        this one.
        """
        if self.trouble:
            return None
        try:
            return step(*arguments)
        except (Failure, NoTime, Skip, OSError, RuntimeError) as why:
            self.trouble = why
            return None

    def open(self, stack, kinds, learns):
        """Starts the processes of these kinds, and those of stage 1 if it `learns`."""
        if self.is_mps and not self.phase.simulated:
            self.daemon = stack.enter_context(mps.Service(self.folder))
            self.variables = self.daemon.variables
        stack.callback(self.broker.stop)
        if learns or any(under_weft for _, under_weft in kinds):
            self.broker.arguments = []
            self.broker.start()
        for kind in kinds:
            self.begin(stack, self.commands(kind))
        if learns:
            self.begin(stack, self.learning())

    def load(self):
        """Lets each process create its model. Returns their answers."""
        pair = self.pair
        for process in self.processes.values():
            pair.answer(process, process.hear(pair.bound(workload.START)))
        for name, process in self.processes.items():
            model, mode = (pair.service, "infer") if "service" in name else (pair.batch, "train")
            process.tell(f"load {model} {mode} {2 if self.phase.quick and mode == 'train' else 0}")
        return {name: pair.answer(process, process.hear(pair.bound(workload.START))) for name, process in self.processes.items()}

    def commands(self, kind):
        """[(name, command, environment)] of the service and the batch job, of this kind."""
        _, under_weft = kind
        mark = f"{'mps ' if self.is_mps else ''}{'weft ' if under_weft else ''}"
        found = []
        for name, priority in (("service", SERVICE), ("batch", BATCH)):
            head = [paths.WEFT, "run", "-q", "--priority", priority, "--profile", name, "--"] if under_weft else []
            extra = {**self.variables, **(self.broker.variables() if under_weft else {})}
            found.append((f"{mark}{name}", [*head, self.phase.python, STEPS], self.phase.environment(self.device, extra)))
        return found

    def learning(self):
        """[(name, command, environment)] of both jobs in stage 1."""
        environment = self.phase.environment(self.device, self.broker.variables())
        return [(f"learn {name}", [paths.WEFT, "profile", "--name", name, "--", self.phase.python, STEPS], environment) for name in ("service", "batch")]

    def begin(self, stack, commands):
        for name, command, environment in commands:
            process = self.processes[name] = workload.Orders(command, environment, self.folder, name)
            stack.callback(process.close)

    def serve_under(self, condition):
        """A broker for this condition, with both jobs attached."""
        self.broker.arguments = ["--policy", condition.policy]
        # A job's environment names the path of its profile; it is read at each attachment.
        for name, data in self.pair.profiles.items():
            file = self.broker.profiles / f"{name}.profile"
            file.unlink(missing_ok=True)
            if name == "service" or condition.both:
                file.write_bytes(data)
        self.broker.start()
        pids = {process.pid for name, process in self.processes.items() if "weft" in name}
        if not jobs.wait_until(lambda: pids <= attached(self.broker), ATTACH_SECONDS, step=0.1):
            raise Failure(f"the jobs did not attach to the broker within {ATTACH_SECONDS:.0f} s", results.tail(self.broker.job.stderr()))


def attached(broker):
    return {row["pid"] for row in (broker.status() or {"clients": []})["clients"]}


class Pair:
    """Two jobs, and the figures of each by itself."""

    def __init__(self, phase, service, batch, wanted):
        self.phase, self.service, self.batch, self.wanted = phase, service, batch, wanted
        self.name = f"{service}+{batch}"
        self.seconds = QUICK_SECONDS if phase.quick else SECONDS
        self.dilation = 1 if not phase.simulated else QUICK_DILATION if phase.quick else DILATION
        if phase.simulated and not phase.quick:
            self.seconds *= SIMULATED_LONGER
        self.stages, self.profiles, self.alone = {}, {}, {}

    def kinds(self):
        """Kinds of processes that the conditions need. The plain ones come first: all others are
        compared with them.
        """
        return sorted({PLAIN, *(condition.kind for condition in self.wanted)})

    def run(self):
        with contextlib.ExitStack() as stack:
            self.begin(stack)
            try:
                self.cases()
            except TimeUp:
                for name in (ALONE, *(condition.name for condition in self.wanted)):
                    if f"{self.name}: {name}" not in self.phase.verdicts:
                        self.phase.verdict(f"{self.name}: {name}", results.LEFT_OUT, "the phase's time was over")
                raise
            # All at the same time: each takes a second to end.
            for process in (process for stage in self.stages.values() for process in stage.processes.values()):
                with contextlib.suppress(Failure):
                    process.tell("quit")

    def cases(self):
        self.phase.case(f"{self.name}: {ALONE}", self.each_alone, need=CONDITION_SECONDS, always=True)
        for condition in self.wanted:
            self.phase.case(f"{self.name}: {condition.name}", self.under, condition, need=CONDITION_SECONDS)

    def begin(self, stack):
        """Starts all processes at once, since a start mostly uses one core. Then runs stage 1,
        while the others wait.
        """
        profiled = any(condition.policy for condition in self.wanted)
        for is_mps in sorted({is_mps for is_mps, _ in self.kinds()}):
            stage = self.stages[is_mps] = Stage(self, is_mps)
            kinds = [kind for kind in self.kinds() if kind[0] == is_mps]
            stage.attempt(stage.open, stack, kinds, profiled and not is_mps)
        told = {}
        for stage in self.stages.values():
            told.update(stage.attempt(stage.load) or {})
        self.phase.fact(f"{self.name}: client priorities of MPS", {name: answer["client_priority"] for name, answer in told.items()})
        if profiled:
            plain = self.stages[False]
            plain.attempt(self.learn, plain)
        for stage in self.stages.values():
            stage.broker.stop()

    def learn(self, stage):
        """Runs stage 1 of both jobs, in separate processes."""
        seconds = LEARN_SECONDS * (1 if self.phase.quick or not self.phase.simulated else self.dilation)
        for name, order in (("service", f"serve {seconds} {HOST_MS * self.dilation} wait"), ("batch", f"run {seconds}")):
            process = stage.processes.pop(f"learn {name}")
            self.answer(process, process.ask(order, self.bound(60 + seconds)))
            process.tell("quit")
            if not jobs.wait_until(lambda p=process: p.process.poll() is not None, self.bound(30)):
                raise process.failure("did not end after stage 1")
            file = stage.broker.profiles / f"{name}.profile"
            if not file.exists():
                raise process.failure("left no profile")
            self.profiles[name] = file.read_bytes()

    def bound(self, seconds):
        return max(1.0, min(seconds, self.phase.left()))

    def answer(self, process, line):
        """Returns the answer of a process. Raises Failure if it is an error."""
        said = json.loads(line)
        if "error" in said:
            raise process.failure(said["error"])
        return said

    def serve(self, process, *, events=False, streams=False):
        """(begins, latencies) of the service, in seconds, and the time of its end."""
        process.tell(f"serve {self.seconds} {HOST_MS * self.dilation} {'event' if events else 'wait'} {STREAM if streams else ''}")
        said = self.answer(process, process.hear(self.bound(self.seconds + 60)))
        return said["begins"], said["latencies"], said["last"]

    def each_alone(self):
        stage = self.stages[False]
        if stage.trouble:
            raise stage.trouble
        begins, latencies, last = self.serve(stage.processes["service"])
        milliseconds = self.milliseconds(latencies)
        batch = stage.processes["batch"]
        batch.tell("train")
        time.sleep(min(self.seconds, self.bound(self.seconds)))
        times = self.answer(batch, batch.ask("end", self.bound(60)))
        rate = self.rate(times, times["begins"][0], times["ends"][-1])
        self.alone = {"p50": show.quantile(milliseconds, 0.5), "p99": show.quantile(milliseconds, 0.99), "rate": rate}
        self.tell(ALONE, milliseconds, rate)
        # The host left the device at most this share of the time.
        waiting = 1 - sum(latencies) / (last - begins[0])
        self.phase.value(f"{self.name}: between_requests", waiting, "of the time", n=len(latencies), how="service alone: no request under way")

    def under(self, condition):
        if not self.alone:
            raise Skip("the jobs' figures alone are not known, so there is no comparison")
        stage = self.stages[condition.mps]
        if stage.trouble:
            raise stage.trouble
        mark = f"{'mps ' if condition.mps else ''}{'weft ' if condition.policy else ''}"
        service, batch = (stage.processes[f"{mark}{name}"] for name in ("service", "batch"))
        with contextlib.ExitStack() as stack:
            if condition.policy:
                stack.callback(stage.broker.stop)
                stage.serve_under(condition)
            batch.tell("train")
            try:
                time.sleep(LEAD_SECONDS)
                begins, latencies, _ = self.serve(service, events=condition.events, streams=condition.streams)
                if condition.policy:
                    self.check_weft(condition, stage.broker.status(), service.pid, batch.pid)
            finally:
                batch.tell("end")
                times = self.answer(batch, batch.hear(self.bound(60)))
        if condition.mps and not self.phase.simulated and not stage.daemon.servers():
            raise Failure("no MPS server was there, so the jobs did not use MPS", results.tail(stage.daemon.log()))
        # The span in which both jobs work.
        first, last = max(begins[0], times["begins"][0]), min(begins[-1] + latencies[-1], times["ends"][-1])
        inside = [latency for begin, latency in zip(begins, latencies) if begin >= first and begin + latency <= last]
        if not inside:
            raise Failure("no request was answered while both jobs ran")
        self.tell(condition.name, self.milliseconds(inside), self.rate(times, first, last))

    def milliseconds(self, seconds):
        return [value * 1e3 / self.dilation for value in seconds]

    def rate(self, times, first, last):
        """Steps a second within a span, including the fractions of steps at its edges."""
        parts = [(min(end, last) - max(begin, first)) / (end - begin) for begin, end in zip(times["begins"], times["ends"]) if min(end, last) > max(begin, first)]
        return sum(parts) / (last - first) * self.dilation

    def tell(self, name, latencies, rate):
        phase, prefix = self.phase, f"{self.name}: {name}"
        how = f"service {self.service} with {HOST_MS:g} ms of host work, batch job {self.batch} in training"
        # A service that is slowed down this much is a result: it is recorded, and its tail is
        # marked.
        few = len(latencies) < (QUICK_ENOUGH if phase.quick else ENOUGH) or None
        if few:
            how += f"; only {len(latencies)} requests"
        for label, q in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
            if q < 0.999 or len(latencies) >= 1000:
                phase.value(f"{prefix}: {label}", show.quantile(latencies, q), "ms", n=len(latencies), how=how, few=few)
        phase.value(f"{prefix}: batch", rate, "steps/s", how=how)
        if self.alone and name != ALONE:
            for label, q in (("p50", 0.5), ("p99", 0.99)):
                slowdown = show.quantile(latencies, q) / self.alone[label]
                phase.value(f"{prefix}: {label}.slowdown", slowdown, "times alone", n=len(latencies), how=how, few=few)
            phase.value(f"{prefix}: batch.share", rate / self.alone["rate"], "of alone", how=how)

    def check_weft(self, condition, status, service, batch):
        """Records weft's counters. A figure taken while weft stood aside does not measure weft."""
        rows = {row["pid"]: row for row in (status or {"clients": []})["clients"]}
        keys = ("mode", "launches", "waits", "waits_expired", "waited_ns", "unnamed", "left_behind", "troubles", "profile_trouble")
        counters = {name: {key: rows[pid][key] for key in keys} for name, pid in (("service", service), ("batch", batch)) if pid in rows}
        self.phase.fact(f"{self.name}: {condition.name}: weft", {**counters, "policy": condition.policy})
        missing = {"service", "batch"} - set(counters)
        if missing:
            raise Failure(f"the broker did not see {' and '.join(sorted(missing))}: the figure does not measure this")
        without = {name for name, row in counters.items() if row["profile_trouble"]}
        if without != (set() if condition.both else {"batch"}):
            raise Failure(f"without a profile: {', '.join(sorted(without)) or 'neither'}: the figure does not measure this")
