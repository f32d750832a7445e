# SPDX-License-Identifier: MIT OR Apache-2.0
"""The cost of weft for a job on this driver.

Launches: one process per configuration. Every round measures all of them in turn, so that a
disturbance of the machine affects all of them. A round is shorter than the driver's queue (about
1,024 launches); otherwise it would measure the device instead of the launch. Models: three
processes with the same model: without weft, attached, and sampled (stage 1). They run in turn in
short blocks.
"""

import contextlib
import json
import os
import signal
import statistics
import sys
import time

from harness import jobs, paths, show

from .. import workload
from ..phase import Failure, NoTime, Skip, ended_clients, failed
from ..workload import Orders

BENCH = paths.BUILT / "weft-bench-launch"
COMPANION = paths.BUILT / "weft-test-companion"
STEPS = paths.ROOT / "scripts" / "gpu" / "steps.py"

# Launches in a part of a round: half of the driver's queue. Parts in a round: the median counts.
# Rounds on a real GPU, and in a quick run.
LAUNCHES, PARTS, ROUNDS, QUICK_ROUNDS = 500, 5, 61, 3
WAYS = ("burst", "sync")

# The driver that only counts has no queue. A part lasts a fraction of a millisecond.
COUNTED_LAUNCHES = 2000

# The rounds end after this many seconds, whatever their number: the models need time too.
LAUNCH_SECONDS = 20.0

# Seconds of a block of steps, and blocks of each configuration.
BLOCK, BLOCKS = 0.12, 7
QUICK_BLOCK, QUICK_BLOCKS = 0.05, 2

# Seconds for a model's processes to create it: weights are drawn on the CPU.
LOAD = 90.0

# Approximate time of a model in all three processes on a machine with a real GPU.
MODEL_SECONDS = 6.0


def run(phase):
    phase.case("launches", launches, phase, "launch", LAUNCHES, phase.device, need=8)
    phase.case("launches that only count", launches, phase, "counted", COUNTED_LAUNCHES, lambda _: Counting(), need=8)
    models(phase)


def plan(phase):
    """Every process that this phase would start."""
    folder = phase.place("plan")
    broker = phase.broker(folder, phase.device(folder), trace=False)
    for name, device in (("launches", phase.device(folder)), ("launches that only count", Counting())):
        if phase.wanted(name):
            yield f"{name}: bare", [BENCH], phase.environment(device)
            for role, priority in (("no broker", 5), ("attached", 5), ("foreground", 0), ("background", 5), ("idle foreground job", 0)):
                yield f"{name}: {role}", [BENCH], phase.environment(device, jobs.preload(broker.variables(), priority=priority))
            command = [COMPANION, "--while", folder / "running", "--ready", folder / "ready", "--at-most", "300"]
            yield f"{name}: companion", command, phase.environment(device, jobs.preload(broker.variables(), priority=5))
    names = [name for name in model_names(phase) if phase.wanted(name)]
    if names:
        device = phase.device(folder)
        variables = broker.variables()
        sampled = jobs.preload(variables, priority=0, profile="cost", mode="profile")
        for name, extra in (("bare", {}), ("attached", jobs.preload(variables, priority=0)), ("sampled", sampled)):
            yield f"models: {name}", [phase.python, STEPS], phase.environment(device, extra)


class Counting:
    """A driver whose launch only counts, in place of a device: shows only weft's own cost on this
    machine's processors.
    """

    simulated = True
    dilation = 1

    def environment(self, _libraries=()):
        return {"LD_LIBRARY_PATH": str(paths.COUNTING_CUDA.parent)}

    def weft_environment(self):
        return {"WEFT_CUDA_LIBRARY": str(paths.COUNTING_CUDA)}


def launches(phase, prefix, count, make_device):
    """Nanoseconds per launch in each role. The figures' names begin with `prefix`."""
    for program in (BENCH, COMPANION, paths.COUNTING_CUDA):
        if not program.exists():
            raise Skip(f"{program} is not in the bundle")
    folder = phase.place(prefix)
    device = make_device(folder)
    rounds = QUICK_ROUNDS if phase.quick else ROUNDS
    with contextlib.ExitStack() as stack:

        def broker(name, *extra):
            place = folder / name
            place.mkdir()
            # Without a trace, which writes a line for each launch. The measured launches may need
            # that core.
            return stack.enter_context(phase.broker(place, device, extra=extra, trace=False))

        def start(name, variables):
            process = Orders([BENCH], phase.environment(device, variables), folder, name)
            stack.callback(process.close)
            # The first start on a driver compiles the test kernels.
            if process.hear(60) != "ready":
                raise process.failure("did not start")
            return process

        alone, holding = broker("a"), broker("h")
        # Enough credit that the measured background job never has to ask within a round. Under
        # fikit, which gives all of it while the foreground job is idle. Policy weft gives only the
        # time until the foreground job's likely return, and more step by step.
        filling = broker("f", "--policy", "fikit", "--delay-bound", "60000000")
        nobody = {**alone.variables(), "WEFT_SOCKET": str(folder / "nobody.sock")}
        processes = {
            "bare": start("bare", {}),
            "no broker": start("no broker", jobs.preload(nobody)),
            "attached": start("attached", jobs.preload(alone.variables())),
            "foreground": start("foreground", jobs.preload(holding.variables(), priority=0)),
            "background": start("background", jobs.preload(filling.variables(), priority=5)),
        }
        start("idle foreground job", jobs.preload(filling.variables(), priority=0))
        running, ready = folder / "running", folder / "ready"
        running.touch()
        companion = jobs.Job(
            [COMPANION, "--while", running, "--ready", ready, "--at-most", "300"],
            environment=phase.environment(device, jobs.preload(holding.variables(), priority=5)),
            folder=folder,
            name="companion",
        )
        stack.callback(companion.kill)
        if not jobs.wait_until(lambda: ready.exists() or not companion.running(), 40) or not companion.running():
            companion.kill()
            raise failed(companion, "the background job next to the foreground job")
        # It runs only while the foreground job is measured. Otherwise it would take the device from
        # the others.
        os.killpg(companion.pid, signal.SIGSTOP)
        samples = {}
        done, begun = 0, time.monotonic()
        for _ in range(rounds):
            if phase.left() < 4 or time.monotonic() - begun > phase.options.get("seconds", LAUNCH_SECONDS):
                break
            for name, process in processes.items():
                if name == "foreground":
                    os.killpg(companion.pid, signal.SIGCONT)
                for way in WAYS:
                    process.ask(f"{way} {count // 10} 2", 30)  # warm-up: the others used the caches
                    wall, cpu = process.ask(f"{way} {count} {PARTS}", 60).split()
                    samples.setdefault((name, way), []).append((float(wall), float(cpu)))
                if name == "foreground":
                    os.killpg(companion.pid, signal.SIGSTOP)
            done += 1
        os.killpg(companion.pid, signal.SIGCONT)
        seen = {
            name: client_of(broker_, processes[name].pid)
            for name, broker_ in (("attached", alone), ("foreground", holding), ("background", filling))
        }
        running.unlink()
    if not done:
        raise Failure("the time was too short for one round")
    expected = {"attached": "alone", "foreground": "foreground", "background": "background"}
    wrong = [f"{name} was measured as {seen[name]['mode']}" for name, mode in expected.items() if seen[name]["mode"] != mode]
    if seen["background"].get("waits", 0) * 1000 > seen["background"].get("launches", 0):
        wrong.append(
            f"the background job waited {seen['background']['waits']} times in {seen['background']['launches']} launches, so it was not within its credit"
        )
    if wrong:
        raise Failure("; ".join(wrong) + ": the figure does not measure this")
    how = f"weft-bench-launch, {done} rounds of {PARTS} parts of {count} launches, in turn"
    for name in processes:
        for way in WAYS:
            phase.sample(f"{prefix}.{name}.{way}", [wall for wall, _ in samples[name, way]], "ns", how=how)
            if name != "bare":
                pairs = list(zip(samples[name, way], samples["bare", way]))
                phase.sample(
                    f"{prefix}.{name}.{way}.added",
                    [a - b for (a, _), (b, _) in pairs],
                    "ns",
                    how=how + ", less bare in the same round",
                )
                phase.sample(
                    f"{prefix}.{name}.{way}.added_cpu",
                    [a - b for (_, a), (_, b) in pairs],
                    "ns",
                    how=how + ", the thread's own time",
                )


def client_of(broker, pid):
    """The broker's record of a client; mode `not attached` if it has none."""
    return ended_clients(broker.status()).get(pid) or {"mode": "not attached"}


def model_names(phase):
    """The cases of `models`, in their order."""
    wanted = ["resnet50"] if phase.quick else workload.MODELS
    modes = ["infer"] if phase.quick else ["infer", "train"]
    return [f"model.{name}.{mode}" for name in wanted for mode in modes]


def models(phase):
    """Measures the slow-down of models, one after the other in the same three processes."""
    names = model_names(phase)
    if not any(phase.wanted(name) for name in names):
        return
    try:
        workload.needs_torch(phase)
    except Skip as why:
        for name in names:
            phase.verdict(name, "skipped", str(why))
        return
    folder = phase.place("models")
    state = {"processes": None}
    with contextlib.ExitStack() as stack:

        def restart():
            """Starts new processes: the first time, and after one was lost."""
            if state["processes"]:
                for process in state["processes"].values():
                    process.close()
            state["processes"] = None
            state["processes"] = start(phase, folder, stack)

        for case in names:
            _, name, mode = case.split(".")
            phase.case(case, one_model, phase, state, restart, name, mode, need=3 if phase.quick else MODEL_SECONDS)
    if state["processes"]:
        for process in state["processes"].values():
            process.close()


def start(phase, folder, stack):
    device = phase.device(folder)

    def broker():
        # One broker each: a process has mode `alone` only if its broker has no other job.
        return stack.enter_context(phase.broker(phase.place("mb"), device, trace=False)).variables()

    configurations = {"bare": {}, "attached": jobs.preload(broker(), priority=0)}
    if not phase.quick:
        configurations["sampled"] = jobs.preload(broker(), priority=0, profile="cost", mode="profile")
    processes = {}
    for name, variables in configurations.items():
        command = [phase.python, STEPS]
        processes[name] = Orders(command, phase.environment(device, variables), folder, f"steps {name}")
        stack.callback(processes[name].close)
    for process in processes.values():
        check(process, process.hear(max(1.0, min(workload.START, phase.left()))))
    return processes


def check(process, line):
    """Reads an answer of scripts/gpu/steps.py. Raises Failure if it reports an error."""
    answer = json.loads(line)
    if "error" in answer:
        raise process.failure(answer["error"])
    return answer


def one_model(phase, state, restart, name, mode):
    if state["processes"] is None:
        restart()
    processes = state["processes"]
    try:
        for process in processes.values():
            process.tell(f"load {name} {mode}")
        trouble = None
        for process in processes.values():
            try:
                check(process, process.hear(max(1.0, min(LOAD, phase.left()))))
            except Failure as error:
                if process.process.poll() is not None or "no answer" in str(error):
                    raise
                trouble = trouble or error
        if trouble:
            # The model does not run here, but the processes do.
            raise Skip(f"{trouble}") if "bare" in str(trouble) else trouble
        block, blocks = (QUICK_BLOCK, QUICK_BLOCKS) if phase.quick else (BLOCK, BLOCKS)
        samples = {key: [] for key in processes}
        keys = list(processes)
        for number in range(blocks):
            # The first process finds colder caches, so each comes first in turn.
            for key in keys[number % len(keys) :] + keys[: number % len(keys)]:
                answer = check(processes[key], processes[key].ask(f"run {block}", max(1.0, min(60.0, phase.left()))))
                samples[key].append(statistics.median(answer["ms"]))
    except Failure as error:
        if phase.left() < 1:
            state["processes"] = None
            raise NoTime(f"cut short: the phase's time was over: {error}") from error
        if any(process.process.poll() is not None for process in processes.values()):
            state["processes"] = None
        raise
    how = f"{blocks} blocks of {block} s in turn, median step of each block"
    for key, values in samples.items():
        phase.sample(f"model.{name}.{mode}.{key}", values, "ms", how=how)
        if key != "bare":
            added = [(a / b - 1) * 100 for a, b in zip(values, samples["bare"])]
            phase.sample(f"model.{name}.{mode}.{key}.added", added, "%", how=how + ", over bare in the same round")
    print(
        f"cost: {name} {mode}: " + ", ".join(f"{key} {show.quantile(values, 0.5):.2f} ms" for key, values in samples.items()),
        file=sys.stderr,
        flush=True,
    )
