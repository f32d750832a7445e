"""A service beside a batch job: what each gets alone, plainly shared, under MPS, and under weft.

The batch job starts first; when it is warm the service starts. Counted are the service's requests while both are at work, and the batch
job's steps within the same span. Conditions are those that a user could choose; none changes a setting of the device.
"""

import contextlib
import json
import re
import subprocess
from typing import NamedTuple

from harness import jobs, paths, show

from .. import mps, results, workload
from ..phase import Failure, NoTime, Skip

PRIORITISED = paths.ROOT / "scripts" / "gpu" / "prioritised.py"

# (service, batch job), most telling first.
QUICK_PAIRS = [("lstm", "lstm")]
PAIRS = [("resnet50", "resnet50"), ("bert_base", "gpt2"), ("gpt2", "vgg19"), ("vit_b_16", "lstm"), ("llama", "densenet201")]

# Host work before each request, ms: the service's own gaps.
HOST_MS = 5.0

# Seconds that the service is measured; requests that must have been, for a p99 to mean anything: with fewer, figures are marked as of few.
SECONDS, QUICK_SECONDS = 8.0, 2.5
ENOUGH, QUICK_ENOUGH = 100, 3

# What a condition takes on a machine with a real GPU: start of two jobs, the measured time, the end.
CONDITION_SECONDS = 24.0

# The simulated device runs slower by so much: two cores run two jobs, the broker and the device (tests/simgpu/README.md).
DILATION, QUICK_DILATION = 10, 2

# A simulated service needs more wall time for as many requests.
SIMULATED_LONGER = 4


class Condition(NamedTuple):
    """One way of sharing. `policy`: weft's, or None; `mps`: under MPS; `streams`: the service's stream has a higher priority; `events`: it learns by an event
    that an answer is there, as vLLM does, not by waiting for the stream.
    """

    name: str
    policy: str | None = None
    mps: bool = False
    streams: bool = False
    events: bool = False


ALONE = Condition("alone")


def conditions(policies):
    """Most valuable first."""
    found = [Condition("default")]
    found += [Condition(f"weft {policy}", policy) for policy in ("weft", "fikit") if policy in policies]
    found += [Condition("mps", mps=True)]
    best = "weft" if "weft" in policies else "fikit"
    # weft must see the service idle either way: the batch job's share must be the same.
    found += [Condition(f"weft {best}, ends by events", best, events=True)]
    found += [Condition(f"mps, weft {best}", best, mps=True), Condition("mps, stream priorities", mps=True, streams=True)]
    return [*found, Condition("weft exclusive", "exclusive")]


def chosen(phase, policies, service, batch):
    """The conditions of a pair that are tried."""
    wanted = [c for c in conditions(policies) if phase.wanted(f"{service}+{batch}: {c.name}")]
    return [c for c in wanted if c.name in ("weft weft", "weft weft, ends by events")] if phase.quick else wanted


def plan(phase):
    """Every process that this phase would start, MPS daemons apart: those of each condition, alone and the learning of profiles included."""
    policies = known_policies()
    for service, batch in pairs_of(phase):
        wanted = chosen(phase, policies, service, batch)
        if not wanted:
            continue
        pair = Pair(phase, service, batch, False)
        folder, device = pair.place("plan")
        broker = phase.broker(folder, device, trace=False)
        variables = broker.variables()
        for condition in [ALONE, *wanted]:
            service_extra, batch_extra = pair.variables(variables) if condition.policy else ({}, {})
            for name, command, extra in zip(("service", "batch"), pair.commands(folder, condition), (service_extra, batch_extra)):
                yield f"{pair.name}: {condition.name}: {name}", command, phase.environment(device, extra)
        for name, command in pair.learning() if any(condition.policy for condition in wanted) else ():
            yield f"{pair.name}: learn: {name}", command, phase.environment(device, variables)


def pairs_of(phase):
    return QUICK_PAIRS if phase.quick else PAIRS[: phase.options.get("pairs", len(PAIRS))]


def run(phase):
    policies = known_policies()
    pairs = pairs_of(phase)
    for number, (service, batch) in enumerate(pairs):
        wanted = chosen(phase, policies, service, batch)
        if not wanted:
            continue
        # The first pair is the phase; the others are more of the same, begun only where a comparison still fits.
        if number and phase.left() < 3 * CONDITION_SECONDS:
            phase.fact("pairs not tried", [" and ".join(pair) for pair in pairs[number:]])
            break
        Pair(phase, service, batch, number > 0).run(wanted)


def known_policies():
    """The policies that this broker has."""
    done = subprocess.run([paths.WEFT, "broker", "--help"], capture_output=True, text=True, timeout=20, check=False)
    found = re.search(r"--policy <([^>]*)>", done.stdout)
    return found[1].split("|") if found else ["fikit", "exclusive"]


class Pair:
    """Two jobs and what they did alone."""

    def __init__(self, phase, service, batch, more):
        self.phase, self.service, self.batch, self.more = phase, service, batch, more
        self.name = f"{service}+{batch}"
        self.seconds = QUICK_SECONDS if phase.quick else SECONDS
        self.dilation = 1 if not phase.simulated else QUICK_DILATION if phase.quick else DILATION
        if phase.simulated and not phase.quick:
            self.seconds *= SIMULATED_LONGER
        self.profiles = None
        self.alone = {}

    def run(self, wanted):
        phase, need = self.phase, 6.0 if self.phase.quick else CONDITION_SECONDS
        phase.case(f"{self.name}: alone", self.each_alone, need=need, always=True)
        for number, condition in enumerate(wanted):
            if self.more and phase.left() < need:
                phase.fact(f"{self.name}: not tried", [c.name for c in wanted[number:]])
                break
            phase.case(f"{self.name}: {condition.name}", self.under, condition, need=need)

    def place(self, name, mode=None):
        folder = self.phase.place(name)
        settings = {"dilation": self.dilation}
        if mode:
            settings["mode"] = mode
        return folder, self.phase.device(folder, **settings)

    def commands(self, folder, condition=ALONE):
        """(service, batch): the service answers for a set time, the batch job goes on until it is told to end."""
        common = {"ready": folder / "service.ready", "times": folder / "service.json"}
        service = workload.model(
            self.phase, self.service, "infer", seconds=self.seconds, host_ms=HOST_MS * self.dilation, end="event" if condition.events else None, **common
        )
        batch = workload.model(
            self.phase,
            self.batch,
            "train",
            seconds=600,
            ready=folder / "batch.ready",
            times=folder / "batch.json",
            batch=2 if self.phase.quick else None,
        )
        if condition.streams:
            service[1:1] = [PRIORITISED, "-5"]
        return service, batch

    def start(self, command, device, folder, name, extra):
        return jobs.Job(command, environment=self.phase.environment(device, extra), folder=folder, name=name)

    def bound(self):
        return max(self.phase.left() - 1.0, 1.0)

    def variables(self, variables):
        """What puts weft under (service, batch)."""
        return jobs.preload(variables, priority=0, profile="service"), jobs.preload(variables, priority=5, profile="batch")

    def each_alone(self):
        workload.needs_torch(self.phase)
        folder, device = self.place("alone")
        service, _ = self.commands(folder)
        self.phase.finish(self.start(service, device, folder, "service", {}), self.bound())
        times = json.loads((folder / "service.json").read_text())
        latencies = self.latencies(times["latencies"])
        device.wait_gone()
        folder, device = self.place("alone")
        _, batch = self.commands(folder)
        # As long as the service, then it is told to end.
        batch_job = self.start(batch, device, folder, "batch", {})
        self.until_ready(folder, {"batch": batch_job})
        jobs.wait_until(lambda: not batch_job.running(), min(self.seconds, self.bound()))
        batch_times = self.end(batch_job, folder)
        rate = (
            steps_in(batch_times, batch_times["first"], batch_times["ends"][-1])
            / (batch_times["ends"][-1] - batch_times["first"])
            * self.dilation
        )
        self.alone = {"p50": show.quantile(latencies, 0.5), "p99": show.quantile(latencies, 0.99), "rate": rate}
        self.tell("alone", latencies, rate)
        # What the host left of the device's time between and within requests is bounded by the time no request was under way.
        waiting = 1 - sum(times["latencies"]) / (times["last"] - times["first"])
        self.phase.value(
            f"{self.name}: between_requests",
            waiting,
            "of the time",
            n=len(latencies),
            how="service alone: no request under way",
        )

    def latencies(self, seconds):
        return [value * 1e3 / self.dilation for value in seconds]

    def tell(self, name, latencies, rate):
        phase, prefix = self.phase, f"{self.name}: {name}"
        how = f"service {self.service} with {HOST_MS:g} ms of host work, batch job {self.batch} in training"
        # A service that is slowed down this much is a result: it is kept, and its tail is told for what it is.
        few = len(latencies) < (QUICK_ENOUGH if phase.quick else ENOUGH) or None
        if few:
            how += f"; only {len(latencies)} requests"
        for label, q in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
            if q < 0.999 or len(latencies) >= 1000:
                phase.value(f"{prefix}: {label}", show.quantile(latencies, q), "ms", n=len(latencies), how=how, few=few)
        phase.value(f"{prefix}: batch", rate, "steps/s", how=how)
        if self.alone and name != "alone":
            for label, q in (("p50", 0.5), ("p99", 0.99)):
                phase.value(
                    f"{prefix}: {label}.slowdown",
                    show.quantile(latencies, q) / self.alone[label],
                    "times alone",
                    n=len(latencies),
                    how=how,
                    few=few,
                )
            phase.value(f"{prefix}: batch.share", rate / self.alone["rate"], "of alone", how=how)

    def until_ready(self, folder, running):
        """Waits until the jobs are warm; Failure where one ends before."""
        end = min(workload.START, self.bound())
        names = {name: folder / f"{name}.ready" for name in running}
        jobs.wait_until(lambda: all(p.exists() for p in names.values()) or not all(j.running() for j in running.values()), end)
        for name, job in running.items():
            if not names[name].exists():
                job.kill()
                if self.phase.left() < 2.5:
                    raise NoTime(f"the {name} job was not ready when the phase's time was over")
                raise Failure(f"the {name} job was not ready within {end:.0f} s or ended", results.tail(job.stderr()))

    def end(self, job, folder):
        """Tells the batch job to end after its step; its times."""
        code = job.terminate(min(30.0, self.bound()))
        file = folder / "batch.json"
        if not file.exists():
            raise Failure(f"the batch job ended with {code} and left no times", results.tail(job.stderr()))
        return json.loads(file.read_text())

    def under(self, condition):
        if not self.alone:
            raise Skip("what the jobs do alone is not known, so nothing could be compared")
        phase = self.phase
        if condition.policy:
            self.learn()
        folder, device = self.place("shared", "mps" if condition.mps and phase.simulated else None)
        with contextlib.ExitStack() as stack:
            extra, service_extra, batch_extra, broker = {}, {}, {}, None
            daemon = None
            if condition.mps and not phase.simulated:
                daemon = stack.enter_context(mps.Service(folder))
                extra = daemon.variables
            if condition.policy:
                broker = phase.broker(folder, device, policy=condition.policy, trace=False)
                broker.profiles = self.profiles
                stack.enter_context(broker)
                service_extra, batch_extra = self.variables(broker.variables())
            service, batch = self.commands(folder, condition)
            batch_job = self.start(batch, device, folder, "batch", {**extra, **batch_extra})
            stack.callback(batch_job.kill)
            # The service begins when the batch job is at work, so that all its requests count.
            self.until_ready(folder, {"batch": batch_job})
            service_job = self.start(service, device, folder, "service", {**extra, **service_extra})
            stack.callback(service_job.kill)
            phase.finish(service_job, self.bound())
            servers = daemon.servers() if daemon else None
            status = broker.status() if broker else None
            batch_times = self.end(batch_job, folder)
        times = json.loads((folder / "service.json").read_text())
        if daemon and not servers:
            raise Failure("no MPS server was there, so the jobs did not use MPS", results.tail(daemon.log()))
        # Both jobs at work.
        first, last = max(times["first"], batch_times["first"]), min(times["last"], batch_times["ends"][-1])
        inside = [
            latency for begin, latency in zip(times["begins"], times["latencies"]) if begin >= first and begin + latency <= last
        ]
        if not inside:
            raise Failure("no request was answered while both jobs ran", results.tail(batch_job.stderr(), 6))
        rate = steps_in(batch_times, first, last) / (last - first) * self.dilation
        if status:
            self.check_weft(condition, status, service_job.pid, batch_job.pid)
        self.tell(condition.name, self.latencies(inside), rate)

    def check_weft(self, condition, status, service, batch):
        """What weft counted; a figure taken while it stood aside is a figure of something else."""
        found = {row["last"]["pid"]: row["last"] for row in status["ended"]}
        found.update({row["pid"]: row for row in status["clients"]})
        counters = {
            name: {
                key: found[pid][key]
                for key in ("mode", "launches", "waits", "waits_expired", "waited_ns", "unnamed", "troubles", "profile_trouble")
            }
            for name, pid in (("service", service), ("batch", batch))
            if pid in found
        }
        self.phase.fact(f"{self.name}: {condition.name}: weft", {**counters, "policy": status["broker"]["policy"]})
        missing = {"service", "batch"} - set(counters)
        if missing:
            raise Failure(f"the broker did not see {' and '.join(sorted(missing))}: the figure is of something else")
        troubles = [f"{name}: {row['profile_trouble']}" for name, row in counters.items() if row["profile_trouble"]]
        if troubles:
            raise Failure("; ".join(troubles))

    def learning_requests(self):
        return {"service": 20 if self.phase.quick else 60, "batch": 4 if self.phase.quick else 15}

    def learning(self):
        """(name, command) of both jobs in stage 1."""
        for name, model, mode in (("service", self.service, "infer"), ("batch", self.batch, "train")):
            command = workload.model(
                self.phase,
                model,
                mode,
                requests=self.learning_requests()[name],
                host_ms=HOST_MS * self.dilation if mode == "infer" else 0,
                batch=2 if self.phase.quick and mode == "train" else None,
            )
            yield name, [paths.WEFT, "profile", "--name", name, "--", *command]

    def learn(self):
        """Stage 1 of both jobs, once."""
        if self.profiles:
            return
        requests = self.learning_requests()
        folder, device = self.place("learn")
        broker = self.phase.broker(folder, device, trace=False)
        with broker:
            for name, command in self.learning():
                job = self.start(command, device, folder, f"learn-{name}", broker.variables())
                self.phase.finish(job, self.bound(), f"weft profile of the {name} job")
                if name == "service":
                    self.gaps(broker, requests[name])
        self.profiles = broker.profiles

    def gaps(self, broker, requests):
        """How much device time a request takes, and so what was there to be filled."""
        done = subprocess.run(
            [paths.WEFT, "profile", "show", "service", "--json"],
            env=broker.environment(),
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        with contextlib.suppress(ValueError, KeyError, ZeroDivisionError, TypeError):
            profile = json.loads(done.stdout)
            busy = sum(kernel["launches"] * kernel["time"]["mean"] for kernel in profile["kernels"] if kernel.get("time")) / 1e6
            # The first requests, before the timed ones, launch as well.
            per_request = busy / (requests + 3) / self.dilation
            self.phase.value(
                f"{self.name}: gpu_per_request",
                per_request,
                "ms",
                n=profile["samples"],
                how="weft profile, sum of mean kernel times",
            )
            period = HOST_MS + self.alone["p50"]
            self.phase.value(
                f"{self.name}: to_be_filled",
                1 - per_request / period,
                "of the time",
                how="1 - GPU time of a request / (host work + p50 alone)",
            )


def steps_in(times, first, last):
    """Steps that ended within a span, counted with the parts of steps at its edges."""
    begins, ends = times["begins"], times["ends"]
    done = 0.0
    for begin, end in zip(begins, ends):
        inside = min(end, last) - max(begin, first)
        if inside > 0 and end > begin:
            done += inside / (end - begin)
    return done
