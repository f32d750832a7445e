# SPDX-License-Identifier: MIT OR Apache-2.0
"""Jobs that together exceed the device, on managed memory: real PyTorch on the simulated GPU.

  pytest tests/clients/test_memory.py                              every case
  pytest tests/clients/test_memory.py -k together --json F         two training jobs, with
                                                                   and without weft's planning;
                                                                   the ratio
  pytest tests/clients/test_memory.py -k together --arms weft --traces target/memory
                                       with a trace for the Perfetto UI: moves, and curves of the
                                       memory that each job touches, has on the device, and had
                                       brought in by faults

Two jobs of one priority, and a broker with no options but the policy: the default one, or
--policy.

Cases:
  alone       a job that fits, on device memory and on managed memory: the same operations, and
              the cost of managed memory
  together    two training jobs whose sum exceeds the device: both finish, the same operations
              reach the device as from each job on its own on a device that holds it, and neither
              the device nor the host ever holds more than it has. Measured: a step of both under
              the driver's demand paging, under demand paging in weft's turns (every prefetch
              refused), under weft, and under weft with the profile that a run of stage 1 made
              (--arms names some of them)
  short       the same with fewer steps, under demand paging and weft: several times less comes in
              by faults under weft than under demand paging, and a good part of the memory that
              comes in is moved ahead
  tight       the same at 200 %: one job takes all the memory that weft plans with. The bytes are
              reported and not bounded
  link        a device whose link is three times slower than weft assumes: weft measures the
              link's rate, and turns are long enough for the moves in them
  killed      one of the two is killed while its memory moves; the other continues and finishes
  broker      the broker is killed while memory moves; both finish
  larger      one job of 150 % of the device that declares it (--memory) and uses a part of it a
              step: it runs, without and with a broker, and beyond the declared size it gets
              CUDA's own out-of-memory error; a job that declares nothing gets that error when the
              device is full
  host        the host has too little memory for both: the later one gets CUDA's own out-of-memory
              error, the other finishes
  refused     the driver refuses every prefetch: both finish by demand paging, and it is counted;
              weft's estimate of the bytes that came in by faults is near the device's ledger, and
              the broker's trace has the curves of it
  auto        jobs that leave their kind of memory open (--backing auto): of two that take 150 %
              together the first has device memory and the second begins at once on managed
              memory; two that fit, and one without a broker, have device memory; all of them do
              the same on the device as on their own
  unsupported managed memory is not supported: the job runs on device memory and weft reports
              it once
  segments    PyTorch's expandable segments (virtual memory management) on managed backing: they
              stay device memory, the job runs as without weft, and its memory counts as taken of
              the device
"""

import contextlib
import json
import shutil
import time

import pytest
from harness import devicelog, jobs, paths
from harness.bench import perfetto

pytestmark = [
    pytest.mark.skipif(not paths.python("torch").exists(), reason="no .venv-torch: scripts/setup torch"),
    pytest.mark.timeout(1200),
]

MIB = 1 << 20
# Memory of a job of three layers: weights, gradients, two moments and the optimizer's temporaries
# of 64 MiB a layer, and activations (torch.cuda.max_memory_reserved: 990 MiB).
LAYERS, JOB = 3, 3 * 320 * MIB + 32 * MIB
# A simulated context takes 400 MiB of the device, by the calibration.
CONTEXT = 400 * MIB
STEPS = 12
# For speed: the counted steps, and those before them, in which the optimizer takes its memory and
# the job's period is learnt.
LONG, WARM = 70, 20
# For bytes.
SHORT = 34
BOUND = 150.0


@pytest.fixture(scope="module")
def figures(request):
    """Results of the cases, by case, for --json."""
    found = {}
    yield found
    if request.config.option.json:
        request.config.option.json.write_text(json.dumps(found, indent=1) + "\n")


@pytest.fixture
def tells(request, figures, record_property):
    """Takes a case's results."""

    def take(found):
        figures[request.node.name.removeprefix("test_")] = found
        record_property("told", json.dumps(found))

    return take


@pytest.fixture
def percent(request):
    """The demand of both jobs in per cent of the device's room."""
    return request.config.option.percent


@pytest.fixture(autouse=True)
def chosen(request):
    """The options --policy and --traces."""
    global POLICY, TRACE  # noqa: PLW0603
    POLICY, TRACE = request.config.option.policy, request.config.option.traces


def device_for(percent):
    """Bytes of a device whose room two jobs fill to this percentage."""
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


# weft's own operations: moves of memory, and marks of background jobs.
OWN = frozenset({"event", "prefetch"})


def same(reference, log, pid):
    differences = devicelog.compare(reference, kernels(log, pid), OWN)
    if differences:
        pytest.fail("what reaches the device differs: " + "; ".join(differences[:3]))


def managed(extra=None):
    return {"WEFT_BACKING": "managed", **(extra or {})}


def without_broker(device):
    """weft's managed memory without a broker to plan: the stock driver's demand paging."""
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


# Results of :func:`reference`, by the number of steps. Most of such a run imports PyTorch.
REFERENCES = {}


def reference(folder, steps=STEPS):
    """The job's operations on a device that holds it. Played once for each number of steps."""
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
    """Seconds for a step of the job that :func:`reference` ran: the machine's part of a step."""
    took = sorted(end - begin for begin, end in REFERENCES[steps][1][WARM:])
    return took[len(took) // 2]


# The device's counts of managed memory, for each of its clients.
LEDGER = ("faults", "faulted", "created", "prefetched", "returned", "evicted")

# The counts that a trace draws together with weft's own curves.
CURVES = ("resident", "faulted")

# weft's own figure of faults is an estimate; it is off by less than this factor, plus this part
# of the bytes that were moved ahead.
NEAR, LATE = 3, 0.5


def watch(device, running, memory, host=None, curves=None):
    """Looks at the device while the jobs run. Returns the most bytes that device and host held at
    any time (the ledger keeps that), and each job's last figures by pid. With `curves`, a list, the
    points that a trace draws are appended to it: (device time, pid, {name: bytes})."""
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
    """weft's figure of bytes that came in by faults is about the device's ledger's. If few bytes
    did, weft need not have seen it: first touches before it knew the job. Weft takes a part of the
    bytes that were moved ahead for faulted: those that were there before weft knew."""
    for pid, estimate in estimates.items():
        truth = ledger[pid]["faulted"] + ledger[pid]["created"]
        late = ledger[pid]["prefetched"] * LATE
        if not (truth - 2 * JOB) / NEAR <= estimate <= NEAR * truth + 2 * JOB + late:
            pytest.fail(f"weft says that {estimate} bytes came to {pid} by faults, the ledger {truth}")


def curves_of(folder, broker, ended, names):
    """The broker's trace has each job's memory, as it was in the end and never less than before,
    and a trace for the Perfetto UI draws all of it."""
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


# The options --policy and --traces.
POLICY = TRACE = None


def broker_for(place, device):
    return jobs.Broker(place, device, policy=POLICY)


# Longest wait for the learnt state of a pair of jobs. On a busy machine a minute was not enough.
LEARNT_S = 180


def long_turns(broker):
    """How many turns equals took whose memory does not fit together."""
    status = broker.status()
    return 0 if status is None else sum(device["core"]["counters"]["long_turns"] for device in status["broker"]["devices"])


def took_turns(broker):
    """Equals whose memory does not fit together took long turns."""
    turns = long_turns(broker)
    if not turns:
        pytest.fail("no long turns")
    return turns


def together_rate(place):
    """Seconds for a step of each of the two, while both were running: from when they met behind
    their warm-up until the first of them ended."""
    both = [times(place, name)[WARM:] for name in ("one", "two")]
    begin, end = max(steps[0][0] for steps in both), min(steps[-1][1] for steps in both)
    # A step that the first one's end cuts counts as far as it was.
    done = sum(max(0.0, min(to, end) - max(at, begin)) / (to - at) for steps in both for at, to in steps)
    return 2 * (end - begin) / done


# Demand paging under the device's own slices (no broker); in weft's turns with every prefetch
# refused; weft; weft with a profile.
ARMS = ("demand", "turns", "weft", "profile")

# The memory of both jobs at their peak and their optimizers' copies, and no more.
HOST = 2 * JOB * 3 // 2


def learn(place):
    """Stage 1: the job's profile, from a run without other jobs on a device that holds it. Returns
    the folder of profiles."""
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
    """Both jobs, one way. Returns seconds for a step, the most bytes held, each job's figures of
    the device's and of weft's, and the two jobs."""
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


# weft's figures of its moves, and of the link.
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
        # A step of one job by itself on a device that holds it, and a step of both as a ratio to
        # two such steps.
        "alone_ms": round(1e3 * alone, 2),
        "of_two_alone": {kind: round(seconds / (2 * alone), 3) for kind, seconds in rates.items()},
        # Speed as a multiple of demand paging without weft.
        "faster": {kind: round(rates["demand"] / seconds, 3) for kind, seconds in rates.items() if "demand" in rates},
        **{what: {kind: entry[what] for kind, entry in found.items()} for what in ("most", "moved", "ledger", "long_turns")},
    }


def test_together(folder, percent, request, tells):
    arms = request.config.option.arms or ARMS
    assert set(arms) <= set(ARMS), f"--arms: {arms}, there are {ARMS}"
    tells(together(folder, percent, arms))


# Under weft, the bytes that come in by faults are fewer by at least this factor than under demand
# paging. Some of them come in while weft learns the jobs, and on a busy machine late moves add to
# them: there the factors 15, 5 and 2.7 were seen.
LESS = 1.5
# The most bytes that come in by faults, as a multiple of those moved ahead: 0.9 on a quiet
# machine, 1.1 and 1.7 on busy ones.
BESIDE = 3


# Per cent of the device's room, in the case that compares bytes: at more, most of the faults in
# so short a run come from the jobs' first steps, which weft cannot foresee.
COMPARED = 150


def test_short(folder, tells):
    """The bytes of `together`, in a short run. A step's time is no measure on a machine with other
    load."""
    found = together(folder, COMPARED, ("demand", "weft"), SHORT)
    total = lambda kind, key: sum(entry[key] for entry in found["ledger"][kind].values())  # noqa: E731
    faulted, ahead, demand = total("weft", "faulted"), total("weft", "prefetched"), total("demand", "faulted")
    if not (faulted < BESIDE * ahead and LESS * faulted < demand):
        pytest.fail(f"{faulted} bytes came in by faults, {ahead} ahead, and under demand paging {demand} by faults: {found}")
    tells({key: found[key] for key in ("step_ms", "moved", "ledger", "long_turns")})


# Per cent at which one of the two takes all the memory that weft plans with.
TIGHT = 200


def test_tight(folder, tells):
    """`short` with turns that have no room for all that a job uses. The bytes that come in by
    faults are reported and not bounded: they scatter by a factor of two."""
    found = together(folder, TIGHT, ("demand", "weft"), SHORT)
    tells({key: found[key] for key in ("step_ms", "moved", "ledger", "long_turns")})


# Bytes a microsecond that weft assumes of a link that it has not measured, and how much slower
# the one of `link` is.
GRANTED, SLOWER = 22_200, 3


def test_link(folder, tells):
    """A slower link than weft assumes."""
    rate = GRANTED // SLOWER
    keys = [f"prefetch_{ways}_bytes_per_us = {{ value = {value}, source = \"estimate: this test\" }}" for ways, value in (("to_device", rate), ("to_host", rate), ("both_ways", 2 * rate))]
    calibration = folder / "slow.toml"
    calibration.write_text("\n".join(['gpu = "a slow link"', 'base = "a100-like"', "", "[values]", *keys, ""]))
    device = jobs.Device(folder, log=folder / "log", memory=device_for(COMPARED))
    device.settings["SIMGPU_CALIBRATION"] = str(calibration)
    lengths, seen = [], []
    near_it = lambda measured: rate * 1e6 * 0.8 <= measured <= rate * 1e6 * 1.25  # noqa: E731

    def measured():
        """Turns count from the time when the figure is right. The driver has to make room for each
        of the first moves, and it takes some turns until those are few."""
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
    # Memory that does not fit leaves and comes in each turn, so a turn has to be long enough for
    # both. By the figures of the faster link it would not be.
    moves = 2 * (2 * JOB - device_for(COMPARED) + 2 * CONTEXT) * 1000 // rate
    if max(lengths) < moves:
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
        if not jobs.wait_until(lambda: long_turns(broker), LEARNT_S, 0.2):
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


# The blocks of a job that is larger than its device, and bytes of each.
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
    # Without a declared size it gets only the device's memory, and fails with an error.
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
    """The broker's last figures of ended jobs, by process: it notices their ends a moment later."""
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
    # One job's peak (its optimizer works on copies of a part), which leaves too little for
    # another.
    device.settings["SIMGPU_HOST_MEMORY"] = str(JOB * 3 // 2)
    with broker_for(folder, device) as broker:
        extra = managed(jobs.preload(broker.variables()))
        # Enough steps that it still runs when the second one wants memory, however busy the
        # machine; it is killed then.
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


# The size that each of two jobs declares, and the percentage at which it is too much for both,
# whatever --percent is.
SAID, TOO_SMALL = JOB + 8 * MIB, 150


def test_auto(folder, tells):
    """The kind of a job's memory is decided as it begins."""
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
            # The first one continues when the second one has begun and done a step: so that it
            # ran all that time.
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
    # The plan for others excludes this memory from the device's (`Thread::beside` in the broker's
    # memory thread).
    plain = last["memory_peak"] - last["managed"]
    if plain < JOB // 2:
        pytest.fail(f"{plain} bytes counted as device memory, of a job that holds some {JOB}")
    tells({"counted": plain, "unmanaged": last["unmanaged"], "said": [line for line in job.stderr().splitlines() if line.startswith("weft")]})
