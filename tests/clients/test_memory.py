"""Jobs that together exceed the device, on managed memory: real PyTorch on the simulated GPU.

  pytest tests/clients/test_memory.py                              every case
  pytest tests/clients/test_memory.py -k together --json F         two training jobs, with and without weft's planning; the ratio
  pytest tests/clients/test_memory.py -k together --arms weft --traces target/memory    with a trace for the Perfetto UI: what moved, and curves of what
                                                                   each job touches, has on the device, and had brought in by faults

Two jobs of one priority, and a broker with no options but the policy: the default one, or --policy. Under timeslice turns of 100 ms are asked for, which the others come to by themselves.

Cases:
  alone       a job that fits, on device memory and on managed memory: the same operations, and what managed memory costs
  together    two training jobs whose sum exceeds the device: both finish, the same operations reach the device as from each alone on a device that
              holds it, neither the device nor the host ever holds more than it has; what a step of both takes under demand paging alone, demand paging in weft's
              turns (every prefetch refused), weft, and weft with the profile that a run of stage 1 made (--arms names some of them)
  short       the same with fewer steps, under demand paging and weft: several times less comes in by faults than under demand paging, and of what comes in a good part is moved ahead
  tight       the same at 200 %, where a job alone takes all that weft plans with; the bytes are said and not bounded
  link        a device whose link is three times slower than weft takes for granted: what it carries is measured, and turns are as long as what is moved in them asks for
  killed      one of the two is killed while its memory moves; the other goes on and finishes
  broker      the broker is killed while memory moves; both finish
  larger      one job of 150 % of the device that said so (--memory) and uses a part of it a step: it runs, alone and under a broker, and beyond what it said it gets CUDA's own
              out-of-memory error; who did not say so gets that error where the device is full
  host        the host has too little memory for both: who comes too late gets CUDA's own out-of-memory error, the other finishes
  refused     the driver refuses every prefetch: both finish by demand paging, and it is counted; what came in by faults is about what the device's ledger says,
              and the broker's trace has the curves of it
  auto        jobs that leave open what their memory is (--backing auto): of two that take 150 % together the first has device memory and the second begins at once on managed memory; two
              that fit, and one without a broker, have device memory; all do on the device what they do alone
  unsupported managed memory is not supported: the job runs on device memory and says so once
  segments    PyTorch's expandable segments (virtual memory management) on managed backing: they stay device memory, the job runs as without weft, and what it
              holds is counted as taken of the device
"""

import contextlib
import json
import shutil
import time

import pytest
from harness import devicelog, jobs, paths, perfetto

pytestmark = [
    pytest.mark.skipif(not paths.python("torch").exists(), reason="no .venv-torch: scripts/setup torch"),
    pytest.mark.timeout(1200),
]

MIB = 1 << 20
# What a job of three layers holds: weights, gradients, two moments and the optimizer's temporaries of 64 MiB a layer, and activations (torch.cuda.max_memory_reserved: 990 MiB).
LAYERS, JOB = 3, 3 * 320 * MIB + 32 * MIB
# A simulated context takes 400 MiB of the device, as the calibration says.
CONTEXT = 400 * MIB
STEPS = 12
# Where speed is measured: steps that count, behind those in which the optimizer takes its memory and the job's period is learnt.
LONG, WARM = 70, 20
# Where only bytes are.
SHORT = 34
BOUND = 150.0
# Turns that a migration fits into: what timeslice must be told.
TURN_US = 100_000


@pytest.fixture(scope="module")
def figures(request):
    """What the cases found, by case, for --json."""
    found = {}
    yield found
    if request.config.option.json:
        request.config.option.json.write_text(json.dumps(found, indent=1) + "\n")


@pytest.fixture
def tells(request, figures, record_property):
    """Takes what a case found."""

    def take(found):
        figures[request.node.name.removeprefix("test_")] = found
        record_property("told", json.dumps(found))

    return take


@pytest.fixture
def percent(request):
    """Of the device's room, what both jobs want."""
    return request.config.option.percent


@pytest.fixture(autouse=True)
def chosen(request):
    """What --policy says, and --traces."""
    global POLICY, TRACE  # noqa: PLW0603
    POLICY, TRACE = request.config.option.policy, request.config.option.traces


def device_for(percent):
    """Bytes of a device whose room is so filled by two jobs."""
    return 2 * CONTEXT + 2 * JOB * 100 // percent


def start(folder, device, name, extra, *, layers=LAYERS, steps=STEPS):
    environment = {
        **jobs.clean_environment(),
        **device.environment(),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "MEMORY_LAYERS": str(layers),
        "MEMORY_STEPS": str(steps),
        "MEMORY_TIMES": str(folder / f"{name}.times"),
        **extra,
    }
    command = [paths.python("torch"), paths.CLIENTS / "programs" / "memory_train.py", folder / f"{name}.json"]
    return jobs.Job(command, environment=environment, folder=folder, name=name, cwd=folder)


def finish(job, bound=BOUND):
    if job.wait(bound) != 0:
        pytest.fail(job.explain())


def times(folder, name):
    path = folder / f"{name}.times"
    lines = path.read_text().splitlines() if path.exists() else []
    return [tuple(float(word) for word in line.split()) for line in lines]


def kernels(log, pid=None):
    """Kernels by stream, in order; of one process, or of the only one."""
    records = devicelog.read(log)
    if pid is not None:
        records = [record for record in records if record["pid"] == pid]
    return devicelog.streams(records)


# What moves memory is weft's own, and marks of background jobs.
OWN = frozenset({"event", "prefetch"})


def same(reference, log, pid):
    differences = devicelog.compare(reference, kernels(log, pid), OWN)
    if differences:
        pytest.fail("what reaches the device differs: " + "; ".join(differences[:3]))


def managed(extra=None):
    return {"WEFT_BACKING": "managed", **(extra or {})}


def without_broker(device):
    """weft's managed memory with nobody to plan: the stock driver's demand paging."""
    return managed(
        {
            "LD_PRELOAD": str(paths.LIBWEFT),
            "WEFT_AUTOSTART": "0",
            "WEFT_SOCKET": "/nonexistent/broker.sock",
            "WEFT_LOG": "error",
            **device.weft_environment(),
        }
    )


def test_alone(folder, tells):
    """A job that fits."""
    figures, logs = {}, {}
    for kind in ("device", "managed"):
        place = folder / kind
        place.mkdir()
        device = jobs.Device(place, log=place / "log")
        extra = without_broker(device)
        extra["WEFT_BACKING"] = kind
        job = start(place, device, "job", extra)
        finish(job)
        device.wait_gone()
        logs[kind] = kernels(place / "log")
        steps = sorted(end - begin for begin, end in times(place, "job")[2:])
        figures[kind] = steps[len(steps) // 2]
    differences = devicelog.compare(logs["device"], logs["managed"], OWN)
    if differences:
        pytest.fail("; ".join(differences[:3]))
    tells({"step_ms": {kind: round(1e3 * seconds, 3) for kind, seconds in figures.items()}})


# What :func:`reference` found, by the number of steps. Most of such a run imports PyTorch.
REFERENCES = {}


def reference(folder, steps=STEPS):
    """What the job does on a device that holds it. Played once for each number of steps."""
    if steps not in REFERENCES:
        place = folder / "reference"
        place.mkdir()
        device = jobs.Device(place, log=place / "log")
        job = start(place, device, "job", {}, steps=steps)
        finish(job)
        device.wait_gone()
        REFERENCES[steps] = kernels(place / "log"), times(place, "job")
    return REFERENCES[steps][0]


def step_alone(steps):
    """Seconds for a step of the job that :func:`reference` ran: what of a step is the machine's."""
    took = sorted(end - begin for begin, end in REFERENCES[steps][1][WARM:])
    return took[len(took) // 2]


# What the device says of managed memory, for each of its clients.
LEDGER = ("faults", "faulted", "created", "prefetched", "returned", "evicted")

# Of that, what a trace draws beside weft's own curves.
CURVES = ("resident", "faulted")

# weft's own figure of faults is an estimate; it is off by less than this factor, and by less than this part of what was moved ahead.
NEAR, LATE = 3, 0.5


def watch(device, running, memory, host=None, curves=None):
    """Looks at the device while the jobs run. Returns what device and host held at most at any time (the ledger keeps that), and each job's last figures by pid. With `curves`, a list, what a
    trace draws is appended to it: (device time, pid, {what: bytes})."""
    most, last = {}, {}
    deadline = time.monotonic() + BOUND
    while any(job.running() for job in running) and time.monotonic() < deadline:
        status = device.status()
        if status:
            most = status["memory"]["most"] or most
            device.seen = status
            if status["memory"]["used"] > memory:
                pytest.fail(f"{status['memory']['used']} bytes on a device of {memory}")
            for client in status["clients"]:
                last[client["pid"]] = {key: client["managed"][key] for key in LEDGER}
                if curves is not None:
                    curves.append((status["now"], client["pid"], {f"{key} (ledger)": client["managed"][key] for key in CURVES}))
        time.sleep(0.1)
    if not most:
        pytest.fail("the device never said what it holds")
    within(most, memory, host)
    return most, last


def near(estimates, ledger):
    """What weft says came in by faults is about what the device's ledger says. Where little did, weft need not have seen it: first touches before it knew the job. Of what was moved ahead it takes
    a part for faulted that was there before weft heard of it."""
    for pid, estimate in estimates.items():
        truth = ledger[pid]["faulted"] + ledger[pid]["created"]
        late = ledger[pid]["prefetched"] * LATE
        if not (truth - 2 * JOB) / NEAR <= estimate <= NEAR * truth + 2 * JOB + late:
            pytest.fail(f"weft says that {estimate} bytes came to {pid} by faults, the ledger {truth}")


def curves_of(folder, broker, ended, names):
    """The broker's trace has each job's memory, as it was in the end and never less than before, and a trace for the Perfetto UI draws all of it."""
    lines = [line for line in jobs.lines_of(broker.trace) if line["event"] == "memory"]
    for pid, last in ended.items():
        mine = [line for line in lines if line["pid"] == pid]
        if len(mine) < 10 or not any(line["working_set"] for line in mine) or max(line["resident"] for line in mine) > last["memory_peak"] + 64 * MIB:
            pytest.fail(f"the trace's lines on the memory of {pid}: {mine[:3]} ... {mine[-3:]}")
        for key in ("faulted", "prefetched", "evicted", "discarded"):
            said = [line[key] for line in mine]
            if said != sorted(said) or not 0.8 * last[key] <= said[-1] <= last[key]:
                pytest.fail(f"{key} of {pid} in the trace: {said[:3]} ... {said[-3:]}, and {last[key]} in the end")
    path = folder / "perfetto.json"
    records = devicelog.read(folder / "log")
    perfetto.write(path, records, names, lines, lambda ns: min(max(ns, records[0]["t"]), records[-1]["end"]))
    drawn = {event["name"] for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "C"}
    missing = {f"{name}: {what.replace('_', ' ')}, MiB" for name in names.values() for what in perfetto.CURVES} - drawn
    if missing:
        pytest.fail(f"not drawn: {sorted(missing)}")
    return len(lines)


def within(most, memory, host=None):
    """Neither the device nor the host ever held more managed memory than it has."""
    if most["device_limit"] > memory or host not in (None, most["host_limit"]):
        pytest.fail(f"not the limits that were set: {most}")
    if not 0 < most["device"] <= most["device_limit"]:
        pytest.fail(f"more than the device has: {most}")
    if not most["host"] <= most["allocated"] <= most["host_limit"]:
        pytest.fail(f"more than the host has: {most}")


def pair(place, device, first, second, **more):
    meets = [place / "one.met", place / "two.met"]
    for_one = {"MEMORY_MEETS": f"{WARM} {meets[0]} {meets[1]}", **first}
    for_two = {"MEMORY_MEETS": f"{WARM} {meets[1]} {meets[0]}", **second}
    one = start(place, device, "one", for_one, **more)
    two = start(place, device, "two", for_two, **more)
    return one, two


# What --policy says, and --traces.
POLICY = TRACE = None


def broker_for(place, device):
    return jobs.Broker(place, device, policy=POLICY, extra=("--turn", str(TURN_US)) if POLICY == "timeslice" else ())


# Longest wait for what a pair of jobs comes to. On a busy machine a minute was not enough.
LEARNT_S = 180


def long_turns(broker):
    """How many turns equals took whose memory does not fit together."""
    status = broker.status()
    return 0 if status is None else sum(device["core"]["counters"]["long_turns"] for device in status["broker"]["devices"])


def took_turns(broker):
    """Equals whose memory does not fit together took long turns, unless the policy has its own."""
    turns = long_turns(broker)
    if bool(turns) == (POLICY == "timeslice"):
        pytest.fail(f"{turns} long turns")
    return turns


def together_rate(place):
    """Seconds for a step of each of the two, while both were running: from when they met behind their warm-up until the first of them ended."""
    both = [times(place, name)[WARM:] for name in ("one", "two")]
    begin, end = max(steps[0][0] for steps in both), min(steps[-1][1] for steps in both)
    # A step that the first one's end cuts counts as far as it was.
    done = sum(max(0.0, min(to, end) - max(at, begin)) / (to - at) for steps in both for at, to in steps)
    return 2 * (end - begin) / done


# Demand paging under the device's own slices (no broker); in weft's turns with every prefetch refused; weft; weft with a profile.
ARMS = ("demand", "turns", "weft", "profile")

# What both jobs take at their peak and their optimizers' copies, and no more.
HOST = 2 * JOB * 3 // 2


def learn(place):
    """Stage 1: the job's profile, from a run alone on a device that holds it. Returns the folder of profiles."""
    place.mkdir()
    device = jobs.Device(place)
    with jobs.Broker(place, device) as broker:
        job = start(place, device, "job", managed(jobs.preload(broker.variables(), profile="training", mode="profile")))
        finish(job)
    device.wait_gone()
    if not any(broker.profiles.iterdir()):
        pytest.fail("stage 1 made no profile\n" + job.explain())
    return broker.profiles


def run_arm(place, kind, percent, profiles, steps):
    """Both jobs, one way. Returns seconds for a step, what was held at most, each job's figures of the device's and of weft's, and the two jobs."""
    place.mkdir()
    memory = device_for(percent)
    device = jobs.Device(place, log=place / "log", memory=memory)
    device.settings["SIMGPU_HOST_MEMORY"] = str(HOST)
    if kind == "turns":
        device.settings["SIMGPU_MANAGED"] = "no-prefetch"
    moved, turns = {}, 0
    with contextlib.ExitStack() as stack:
        extra = without_broker(device)
        if kind != "demand":
            broker = broker_for(place, device)
            if profiles:
                shutil.copytree(profiles, broker.profiles, dirs_exist_ok=True)
            stack.enter_context(broker)
            extra = managed(jobs.preload(broker.variables(), profile="training" if profiles else None))
        one, two = pair(place, device, extra, extra, steps=steps)
        curves = [] if TRACE else None
        most, ledger = watch(device, (one, two), memory, HOST, curves)
        finish(one)
        finish(two)
        if kind != "demand":
            turns = took_turns(broker)
            for pid, last in last_words(broker, (one, two)).items():
                moved[pid] = {key: last[key] for key in MOVED}
    device.wait_gone()
    near({pid: entry["faulted"] for pid, entry in moved.items()}, ledger)
    if TRACE:
        TRACE.mkdir(parents=True, exist_ok=True)
        path = TRACE / f"memory-{kind}.json"
        lines = [] if kind == "demand" else [line for line in jobs.lines_of(broker.trace) if line["event"] == "memory"]
        seen = device.seen
        clock = lambda ns: seen["now"] + (ns - seen["monotonic"]) / device.dilation  # noqa: E731
        operations = perfetto.write(path, devicelog.read(place / "log"), {one.pid: "one", two.pid: "two"}, lines, clock, curves)
        print(f"{path}: {operations} operations, {len(curves)} points of curves")
    return {"step": together_rate(place), "most": most, "ledger": ledger, "moved": moved, "long_turns": turns}, (one, two)


# What weft says of what it moved, and of the link.
MOVED = ("prefetched", "evicted", "faulted", "page_ops_refused", "page_ops_late", "memory_waited_ns", "memory_waits_expired", "unmanaged", "to_device_bytes_per_s", "to_host_bytes_per_s", "turns")


def together(folder, percent, arms=ARMS, steps=LONG):
    """Two that exceed the device."""
    want = reference(folder, steps)
    alone = step_alone(steps)
    profiles = learn(folder / "learn") if "profile" in arms else None
    found = {}
    for kind in arms:
        found[kind], both = run_arm(folder / kind, kind, percent, profiles if kind == "profile" else None, steps)
        for job in both:
            same(want, folder / kind / "log", job.pid)
        moved = [entry["prefetched"] for entry in found[kind]["moved"].values()]
        if kind in ("weft", "profile") and not any(moved):
            pytest.fail(f"weft moved nothing: {found[kind]['moved']}")
        if kind == "turns" and any(moved):
            pytest.fail(f"a refused prefetch moved something: {found[kind]['moved']}")
    rates = {kind: entry["step"] for kind, entry in found.items()}
    return {
        "percent": percent,
        "step_ms": {kind: round(1e3 * seconds, 2) for kind, seconds in rates.items()},
        # Of one alone on a device that holds it, and how long a step of both takes, of two such.
        "alone_ms": round(1e3 * alone, 2),
        "of_two_alone": {kind: round(seconds / (2 * alone), 3) for kind, seconds in rates.items()},
        # How many times as fast as demand paging alone.
        "faster": {kind: round(rates["demand"] / seconds, 3) for kind, seconds in rates.items() if "demand" in rates},
        **{what: {kind: entry[what] for kind, entry in found.items()} for what in ("most", "moved", "ledger", "long_turns")},
    }


def test_together(folder, percent, request, tells):
    arms = request.config.option.arms or ARMS
    assert set(arms) <= set(ARMS), f"--arms: {arms}, there are {ARMS}"
    tells(together(folder, percent, arms))


# So many times less comes in by faults under weft than under demand paging, at least. Some of it comes in while weft learns the jobs, and on a busy machine what is late: 15 times less was seen
# there, 5, and 2.7.
LESS = 1.5
# What comes in by faults is at most so many times what is moved ahead: 0.9 on a quiet machine, 1.1 and 1.7 on busy ones.
BESIDE = 3


# Of the device's room, where bytes are compared: at more the jobs' first steps, which nobody foresees, are most of what comes in by faults in so short a run.
COMPARED = 150


def test_short(folder, tells):
    """What `together` says of bytes, in short. A step's time is no measure on a machine that does other things too."""
    found = together(folder, COMPARED, ("demand", "weft"), SHORT)
    total = lambda kind, key: sum(entry[key] for entry in found["ledger"][kind].values())  # noqa: E731
    faulted, ahead, demand = total("weft", "faulted"), total("weft", "prefetched"), total("demand", "faulted")
    if not (faulted < BESIDE * ahead and LESS * faulted < demand):
        pytest.fail(f"{faulted} bytes came in by faults, {ahead} ahead, and under demand paging {demand} by faults: {found}")
    tells({key: found[key] for key in ("step_ms", "moved", "ledger", "long_turns")})


# Where each of the two alone takes all that weft plans with.
TIGHT = 200


def test_tight(folder, tells):
    """`short` where no turn finds room for all that its job uses. What comes in by faults is said and not bounded: it scatters by a factor of two."""
    found = together(folder, TIGHT, ("demand", "weft"), SHORT)
    tells({key: found[key] for key in ("step_ms", "moved", "ledger", "long_turns")})


# Bytes a microsecond that weft takes a link for that it has not measured, and how much slower the one of `link` is.
GRANTED, SLOWER = 22_200, 3


def test_link(folder, tells):
    """A slower link than weft takes for granted."""
    rate = GRANTED // SLOWER
    keys = [f"prefetch_{ways}_bytes_per_us = {{ value = {value}, source = \"estimate: this test\" }}" for ways, value in (("to_device", rate), ("to_host", rate), ("both_ways", 2 * rate))]
    calibration = folder / "slow.toml"
    calibration.write_text("\n".join(['gpu = "a slow link"', 'base = "a100-like"', "", "[values]", *keys, ""]))
    device = jobs.Device(folder, log=folder / "log", memory=device_for(COMPARED))
    device.settings["SIMGPU_CALIBRATION"] = str(calibration)
    lengths, seen = [], []
    near_it = lambda measured: rate * 1e6 * 0.8 <= measured <= rate * 1e6 * 1.25  # noqa: E731

    def measured():
        """Turns count from then on when the figure is right. The first moves go where the driver has to make room for each, and it takes some turns until those are few."""
        right = False
        for client in (broker.status() or {"clients": []})["clients"]:
            both = client["to_device_bytes_per_s"], client["to_host_bytes_per_s"]
            seen.append(both)
            if near_it(both[0]) and (not both[1] or near_it(both[1])) and client["turns"] > 8:
                right = True
                lengths.append(client["turn_ns"])
        return right and len(lengths) > 20

    with broker_for(folder, device) as broker:
        extra = managed(jobs.preload(broker.variables()))
        one, two = pair(folder, device, extra, extra, steps=500)
        found = jobs.wait_until(measured, 100, 0.1)
        one.kill()
        two.kill()
    if not found:
        pytest.fail(f"a link of {rate} MB/s was measured as {sorted(set(seen))}\n" + one.explain() + two.explain())
    # What does not fit leaves and comes in each turn, which has to be long enough for both. By the figures of the faster link it would not be.
    moves = 2 * (2 * JOB - device_for(COMPARED) + 2 * CONTEXT) * 1000 // rate
    if POLICY != "timeslice" and max(lengths) < moves:
        pytest.fail(f"turns of {max(lengths) / 1e6:.0f} ms at most, and to move what has to takes {moves / 1e6:.0f} ms")
    tells({"rate": rate * 1e6, "measured": seen[-1], "turn_ms": round(max(lengths) / 1e6, 1), "moves_ms": round(moves / 1e6, 1)})


def test_killed(folder, percent, tells):
    """One is killed in the middle."""
    want = reference(folder)
    device = jobs.Device(folder, log=folder / "log", memory=device_for(percent))
    with broker_for(folder, device) as broker:
        extra = managed(jobs.preload(broker.variables()))
        one = start(folder, device, "one", extra, steps=500)
        two = start(folder, device, "two", extra)
        moves = lambda: any(client["prefetched"] for client in (broker.status() or {"clients": []})["clients"])  # noqa: E731
        if not jobs.wait_until(moves, LEARNT_S, 0.2):
            pytest.fail("nothing moved\n" + one.explain() + two.explain())
        # Turns begin when the broker has seen what both touch.
        if POLICY != "timeslice" and not jobs.wait_until(lambda: long_turns(broker), LEARNT_S, 0.2):
            pytest.fail("no long turns\n" + one.explain() + two.explain())
        one.kill()
        finish(two)
        turns = took_turns(broker)
    device.wait_gone()
    same(want, folder / "log", two.pid)
    tells({"long_turns": turns})


def test_broker(folder, percent, tells):
    """The broker is killed in the middle."""
    want = reference(folder)
    device = jobs.Device(folder, log=folder / "log", memory=device_for(percent))
    with broker_for(folder, device) as broker:
        extra = managed(jobs.preload(broker.variables()))
        one, two = pair(folder, device, extra, extra)
        moves = lambda: any(client["prefetched"] for client in (broker.status() or {"clients": []})["clients"])  # noqa: E731
        if not jobs.wait_until(moves, LEARNT_S, 0.1):
            pytest.fail("nothing moved\n" + one.explain() + two.explain())
        broker.kill()
        finish(one)
        finish(two)
    device.wait_gone()
    for job in (one, two):
        same(want, folder / "log", job.pid)
    tells({})


# What a job has that is larger than its device: so many blocks of 64 MiB.
BLOCKS, BLOCK = 35, 64 * MIB


def test_larger(folder, tells):
    """One job that takes 150 % of the device and uses a part of it at a time."""
    memory = 1536 * MIB
    said = memory * 3 // 2
    host = 2 * said

    def large(place, name, extra, **settings):
        place.mkdir(exist_ok=True)
        device = jobs.Device(place, log=place / "log", **settings)
        environment = {**jobs.clean_environment(), **device.environment(), "OMP_NUM_THREADS": "1", "MEMORY_BLOCKS": str(BLOCKS)}
        device.settings["SIMGPU_HOST_MEMORY"] = str(host)
        environment |= device.environment() | extra(device)
        command = [paths.python("torch"), paths.CLIENTS / "programs" / "memory_large.py", place / f"{name}.json"]
        return device, jobs.Job(command, environment=environment, folder=place, name=name, cwd=place)

    place = folder / "reference"
    device, job = large(place, "job", lambda _: {})
    finish(job)
    device.wait_gone()
    want = kernels(place / "log")
    # Not told that it takes more than the device has, it gets what the device has, and says so.
    device, job = large(folder / "unsaid", "job", without_broker, memory=memory)
    if job.wait(BOUND) == 0 or job.timed_out or "out of memory" not in job.stderr():
        pytest.fail("who said nothing should have run out of memory\n" + job.explain())
    device.wait_gone()
    found = {}
    for kind in ("alone", "broker"):
        place = folder / kind
        place.mkdir()
        with contextlib.ExitStack() as stack:

            def extra(device, kind=kind, stack=stack, place=place):
                said_so = {"WEFT_MEMORY": str(said), "MEMORY_BEYOND": "256"}
                if kind == "alone":
                    return without_broker(device) | said_so
                broker = stack.enter_context(broker_for(place, device))
                return managed(jobs.preload(broker.variables())) | said_so

            device, job = large(place, "job", extra, memory=memory)
            most, ledger = watch(device, (job,), memory, host)
            finish(job)
        device.wait_gone()
        same(want, place / "log", job.pid)
        result = json.loads((place / "job.json").read_text())
        if not (result["refused"] and memory < result["free"] <= said and result["total"] >= result["free"]):
            pytest.fail(f"what a job was told that said {said} on a device of {memory}: {result}")
        if not 0 <= result["left"] <= said - BLOCKS * BLOCK:
            pytest.fail(f"what is left for it of {said}: {result}")
        if most["allocated"] < BLOCKS * BLOCK:
            pytest.fail(f"it took {BLOCKS * BLOCK} bytes: {most}")
        found[kind] = {"told": [result["free"], result["total"]], "most": most, "ledger": ledger}
    tells(found)


def last_words(broker, those):
    """The broker's last word on jobs that have ended, by process: it hears of their ends a moment later."""
    told = {}

    def all_told():
        told.update({entry["last"]["pid"]: entry["last"] for entry in (broker.status() or {"ended": []})["ended"]})
        return all(job.pid in told for job in those)

    if not jobs.wait_until(all_told, 60, 0.05):
        pytest.fail(f"the broker never heard the end of {[job.name for job in those if job.pid not in told]}")
    return told


def test_host(folder, percent, tells):
    """The host has no room for both."""
    device = jobs.Device(folder, log=folder / "log", memory=device_for(percent))
    # What one takes at most (its optimizer works on copies of a part), and too little of that for another.
    device.settings["SIMGPU_HOST_MEMORY"] = str(JOB * 3 // 2)
    with broker_for(folder, device) as broker:
        extra = managed(jobs.preload(broker.variables()))
        # So many steps that it still runs when the second one wants memory, however busy the machine; it is killed then.
        one = start(folder, device, "one", extra, steps=40_000)
        full = lambda: any(client["managed"] > JOB * 3 // 4 for client in (broker.status() or {"clients": []})["clients"])  # noqa: E731
        if not jobs.wait_until(lambda: full() or not one.running(), 60, 0.05):
            pytest.fail("the first job took no memory\n" + one.explain())
        two = start(folder, device, "two", extra)
        code = two.wait(BOUND)
        went_on = one.running()
        one.kill()
    if not went_on:
        pytest.fail("the first job did not go on\n" + one.explain())
    if two.timed_out or code == 0 or "out of memory" not in two.stderr():
        pytest.fail("the second job should have run out of memory\n" + two.explain())
    tells({"late_job": "out of memory", "exit": code})


def test_refused(folder, percent, tells):
    """Every prefetch is refused."""
    want = reference(folder)
    device = jobs.Device(folder, log=folder / "log", memory=device_for(percent))
    device.settings["SIMGPU_MANAGED"] = "no-prefetch"
    with broker_for(folder, device) as broker:
        extra = managed(jobs.preload(broker.variables()))
        one, two = pair(folder, device, extra, extra)
        _, ledger = watch(device, (one, two), device_for(percent))
        finish(one)
        finish(two)
        ended = last_words(broker, (one, two))
    device.wait_gone()
    for job in (one, two):
        same(want, folder / "log", job.pid)
    refused = [last["page_ops_refused"] for last in ended.values()]
    if not all(refused):
        pytest.fail(f"refusals counted: {refused}")
    faulted = {pid: last["faulted"] for pid, last in ended.items()}
    near(faulted, ledger)
    if not all(faulted.values()):
        pytest.fail(f"faults counted: {faulted}")
    points = curves_of(folder, broker, ended, {one.pid: "one", two.pid: "two"})
    tells({"refused": refused, "faulted": faulted, "ledger": {pid: ledger[pid]["faulted"] for pid in faulted}, "points": points})


def test_unsupported(folder, tells):
    """No concurrent managed access."""
    want = reference(folder)
    device = jobs.Device(folder, log=folder / "log")
    device.settings["SIMGPU_MANAGED"] = "off"
    with broker_for(folder, device) as broker:
        job = start(folder, device, "job", managed(jobs.preload(broker.variables())))
        finish(job)
        last = last_words(broker, (job,))[job.pid]
    device.wait_gone()
    same(want, folder / "log", job.pid)
    said = [line for line in job.stderr().splitlines() if line.startswith("weft")]
    if len(said) != 1 or "stays device memory" not in said[0]:
        pytest.fail(f"weft said {said}")
    if not last["unmanaged"] or last["managed"]:
        pytest.fail(f"{last['unmanaged']} not managed, {last['managed']} bytes managed")
    tells({"unmanaged": last["unmanaged"]})


# What each of two jobs says that it takes, and of a device that so much is too much for both: 150 % of its room, whatever --percent says.
SAID, TOO_SMALL = JOB + 8 * MIB, 150


def test_auto(folder, tells):
    """What a job's memory is is decided as it begins."""
    want = reference(folder)
    found = {}
    for kind in ("nobody", "fits", "exceeds"):
        place = folder / kind
        place.mkdir()
        device = jobs.Device(place, log=place / "log", memory=device_for(TOO_SMALL) if kind == "exceeds" else None)
        with contextlib.ExitStack() as stack:
            extra = without_broker(device)
            if kind != "nobody":
                broker = stack.enter_context(broker_for(place, device))
                extra = jobs.preload(broker.variables())
            extra |= {"WEFT_BACKING": "auto", "WEFT_MEMORY": str(SAID)}
            meets = place / "met"
            # The first one goes on when the second one has begun and done a step: so that it ran all that time.
            one = start(place, device, "one", extra if kind == "nobody" else extra | {"MEMORY_MEETS": f"4 {place / 'first'} {meets}"})
            running = [one]
            if kind != "nobody":
                if not jobs.wait_until(lambda place=place: (place / "first").exists() or not one.running(), 60, 0.02):  # noqa: B023
                    pytest.fail("the first job did not begin\n" + one.explain())
                running.append(start(place, device, "two", extra | {"MEMORY_MEETS": f"1 {meets} {place / 'first'}"}))
            taken, looks = 0, 0
            deadline = time.monotonic() + BOUND
            while any(job.running() for job in running) and time.monotonic() < deadline:
                if status := device.status():
                    looks, taken = looks + 1, max(taken, status["memory"]["most"]["allocated"])
                time.sleep(0.05)
            for job in running:
                finish(job)
            said = [[line for line in job.stderr().splitlines() if "managed memory" in line] for job in running]
            notes = []
            if kind != "nobody":
                last = last_words(broker, running)
                notes = [[note for note in last[job.pid].get("notes", []) if "WEFT_BACKING" in note] for job in running]
        device.wait_gone()
        for job in running:
            same(want, place / "log", job.pid)
        managed_jobs = [False, True] if kind == "exceeds" else [False] * len(running)
        if not looks or (taken > JOB // 2) != any(managed_jobs) or (taken > 0) != any(managed_jobs):
            pytest.fail(f"{kind}: {taken} bytes of managed memory in {looks} looks")
        if [len(lines) for lines in said] != [int(one) for one in managed_jobs]:
            pytest.fail(f"{kind}: weft said {said}")
        found[kind] = {"managed": taken, "said": said, "notes": notes}
    tells(found)


# PyTorch maps physical memory into one growing range instead of allocating blocks.
SEGMENTS = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def test_segments(folder, tells):
    """Expandable segments."""
    place = folder / "reference"
    place.mkdir()
    device = jobs.Device(place, log=place / "log")
    finish(start(place, device, "job", SEGMENTS))
    device.wait_gone()
    device = jobs.Device(folder, log=folder / "log")
    with broker_for(folder, device) as broker:
        job = start(folder, device, "job", managed(jobs.preload(broker.variables()) | SEGMENTS))
        finish(job)
        last = last_words(broker, (job,))[job.pid]
    device.wait_gone()
    same(kernels(place / "log"), folder / "log", job.pid)
    # What is planned for others is what the device has but this (`Thread::beside` in the broker's memory thread).
    plain = last["memory_peak"] - last["managed"]
    if plain < JOB // 2:
        pytest.fail(f"{plain} bytes counted as device memory, of a job that holds some {JOB}")
    tells({"counted": plain, "unmanaged": last["unmanaged"], "said": [line for line in job.stderr().splitlines() if line.startswith("weft")]})
