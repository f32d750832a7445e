# SPDX-License-Identifier: MIT OR Apache-2.0
"""The client matrix: real CUDA clients on the simulated GPU, without weft and with it, by role.

  pytest tests/clients/test_matrix.py -n 2 --dist worksteal        two clients at a time
  pytest tests/clients/test_matrix.py --set all --model h100 -k "torch_train/background job or jax"
  pytest tests/clients/test_matrix.py --bare                       only each client without weft

A case is a client in one role (alone, foreground job, background job, or unqueued: a background
job with WEFT_QUEUE=off, whose host waits at the gate). Each case has a device, a broker and
profiles of its own. It passes when

  * the client ends well, with and without weft, and prints the same bytes to stdout,
  * the device saw the same operations in the same order per stream (harness/devicelog.py lists
    what it normalises, with the reasons),
  * weft counted every launch that reached the device and knew every kernel's name,
  * weft printed nothing on stderr.

Clients with `moved` in clients.toml also have their memory moved to the host and back, five times
or more, at moments that --seed decides, and when they are idle:

  pytest tests/clients/test_matrix.py --set all -k moved --seed 7

Each range then has the same hash before and after (SIMGPU_MOVES).

A client whose environment is not set up is skipped. Each worker that plays a client runs it once
without weft: `worksteal` leaves neighbours to one worker.
"""

import json
import random
import time
import tomllib

import pytest
from fixtures import moves
from harness import devicelog, jobs, paths

HERE = paths.CLIENTS

# A run takes 3 to 25 s on two idle cores; this leaves room for busy ones and still ends.
DEFAULT_BOUND = 120.0

# weft's own operations on the device while it schedules: event records that show the end of a
# background job's work. None is allowed for a job without other jobs.
OWN_OPERATIONS = {"alone": frozenset(), "moved": frozenset({"copy"})} | dict.fromkeys(("foreground", "background", "unqueued"), frozenset({"event"}))

# weft's operations for jobs on managed memory: their memory is brought to the device ahead of its
# use.
OWN_MOVES = frozenset({"prefetch", "event"})

# (priority of the client, priority and pattern of the companion job)
BESIDE = {
    "foreground": (1, 7, ["--burst", "16", "--pause", "300"]),
    "background": (6, 0, ["--burst", "8", "--pause", "3000"]),
}
BESIDE["unqueued"] = BESIDE["background"]

# If a dead handle does not end the client (harness/jobs.py), it is at once another object's: weft
# must drop its data of a handle when the handle goes. A real driver does both.
HANDLES = {"background": {"SIMGPU_DEAD_HANDLES": "reuse"}}

# A role's variables for weft in addition to its priority, and the mode that the broker then gives
# it, if that has another name.
ASKS = {"unqueued": {"WEFT_QUEUE": "off"}, "moved": {"WEFT_BACKING": "movable", "WEFT_EVICT_IDLE": "100ms"}}
# A role's variables also without weft: hashes of the data (programs/client.py), and a device whose
# memory the host can hold twice (engines take a part of it).
DATA = {"moved": {"CLIENT_HASHES": "1", "SIMGPU_MEMORY": str(4 << 30)}}
MODE = {"unqueued": "background", "moved": "alone"}

# Runs in which a client's memory moves often enough.
RUNS = 6

# A line about a move of idle memory.
IDLE = "until a call needed it"


# The library that a client maps once it asks for the device.
DRIVER = paths.SIMGPU_CUDA.resolve().name

STAYED = "the device process stayed after its last client left"


class Client:
    """One entry of clients.toml."""

    def __init__(self, name, table):
        self.name = name
        self.venv = table["venv"]
        self.program = table["program"]
        self.roles = table.get("roles", ["alone"])
        self.also = table.get("also", [])
        self.set = table.get("set", "ci")
        self.moved = table.get("moved")
        self.together = table.get("together", False)
        self.env = table.get("env", {})
        self.arguments = table.get("arguments", [])
        self.cuda_libraries = table.get("cuda_libraries", False)
        self.warm = table.get("warm", False)
        self.bound = table.get("bound", DEFAULT_BOUND)
        self.order = table.get("order", "same")
        self.fails = table.get("fails", False)
        self.references = {}

    def own(self, role):
        """Kinds of operations on the device that may be weft's."""
        managed = self.env.get("WEFT_BACKING") == "managed"
        return OWN_OPERATIONS[role] | (OWN_MOVES if managed else frozenset())

    def missing(self):
        """Why it cannot run here, or None."""
        if self.venv and not paths.whole(self.venv):
            return f"no whole .venv-{self.venv}: scripts/setup {self.venv}"
        if not self.venv and not (paths.BUILT / self.program).exists():
            return f"{self.program} is not built: scripts/layout"
        return None

    def command(self, result):
        if not self.venv:
            return [paths.BUILT / self.program, result, *self.arguments]
        return [paths.python(self.venv), HERE / "programs" / self.program, result, *self.arguments]

    def libraries(self):
        return paths.nvidia_libraries(self.venv) if self.cuda_libraries else []


def caches(folder):
    """Folders for the clients' compiled code: one place for all runs, so that two runs of a client
    do the same work."""
    names = ["TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUPY_CACHE_DIR", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME"]
    return {name: str(folder / name.lower().removesuffix("_dir")) for name in names}


class Run:
    """One finished run of a client."""

    def __init__(self, job, code, records, result):
        self.job, self.code, self.records, self.result = job, code, records, result
        self.stdout = job.stdout()
        self.stderr = job.stderr()


def uses_driver(job):
    """Whether a job has loaded the simulated driver."""
    try:
        with open(f"/proc/{job.pid}/maps") as file:
            return DRIVER in file.read()
    except OSError:
        return False


def execute(client, device, folder, extra, name, begun=None, meanwhile=None):
    """Runs the client once on `device`. `begun`: a file, made once it has loaded the driver.
    `meanwhile` is called with the job."""
    result = folder / f"{name}.json"
    environment = {
        **jobs.clean_environment(),
        **caches(paths.TARGET / "client-caches"),
        **device.environment(client.libraries()),
        # Sets of strings must be walked in the same order in both runs; two cores are shared with
        # the device.
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        **client.env,
        **extra,
    }
    job = jobs.Job(client.command(result), environment=environment, folder=folder, name=name, cwd=folder)
    if begun:
        # Before that a Python client imports, for most of its time: a busy device disturbs nothing.
        came = lambda: not client.venv or uses_driver(job) or not job.running()  # noqa: E731
        jobs.wait_until(came, client.bound, step=0.05)
        begun.touch()
    if meanwhile:
        meanwhile(job)
    code = job.wait(client.bound)
    assert code == 0, job.explain()
    assert result.exists(), f"{name}: no result was written\n{job.explain()}"
    return job, code, json.loads(result.read_text())


def run_bare(client, role, folder):
    """The reference: without weft. Made once a client, and once more with a role's variables."""
    more = DATA.get(role, {})
    if bool(more) not in client.references:
        log = folder / "bare.log"
        device = jobs.Device(folder, log=log)
        if client.warm:
            # Gone before the next run, which would else meet a device that keeps no log.
            warm = jobs.Device(folder)
            execute(client, warm, folder, more, "warm")
            assert warm.wait_gone(), STAYED
        job, code, result = execute(client, device, folder, more, "bare")
        assert device.wait_gone(), STAYED
        run = client.references[bool(more)] = Run(job, code, devicelog.read(log), result)
        assert run.records, "the device saw nothing of the client"
    return client.references[bool(more)]


def wait_until_detached(broker, pid, bound=30.0):
    """The broker's last word on all processes, once it knows that `pid` ended."""
    end = time.monotonic() + bound
    while True:
        status = broker.status()
        if status and all(client["pid"] != pid for client in status["clients"]):
            return status
        still = "still lists" if status else "gives no status of"
        assert time.monotonic() < end, f"the broker {still} {pid} {bound:.0f} s after it ended"
        time.sleep(0.05)


def run_under_weft(client, role, folder, policy, meanwhile=None):
    """With weft, in a role. Returns the run and the broker's figures. `meanwhile` is called with
    the broker and the job."""
    log = folder / "weft.log"
    device = jobs.Device(folder, log=log)
    beside = None
    with jobs.Broker(folder, device, policy=policy) as broker:
        priority = 5
        keep, begun = folder / "keep", folder / "begun"
        try:
            if role in BESIDE:
                priority, other, pattern = BESIDE[role]
                keep.touch()
                ready = folder / "ready"
                environment = {
                    **jobs.clean_environment(),
                    **device.environment(),
                    **jobs.preload(broker.variables(), priority=other),
                }
                files = ["--while", keep, "--ready", ready, "--from", begun]
                command = [paths.BUILT / "weft-test-companion", *files, *pattern]
                beside = jobs.Job(command, environment=environment, folder=folder, name="beside")
                came = jobs.wait_until(lambda: ready.exists() or not beside.running(), 30)
                assert came and beside.running(), "the job beside it did not start\n" + beside.explain()
            preload = jobs.preload(broker.variables(), priority=priority) | ASKS.get(role, {}) | HANDLES.get(role, {}) | DATA.get(role, {})
            begun = begun if beside else None
            during = meanwhile and (lambda job: meanwhile(broker, job))
            job, code, result = execute(client, device, folder, preload, "weft", begun, during)
            status = wait_until_detached(broker, job.pid)
        finally:
            if beside:
                keep.unlink(missing_ok=True)
                beside_code = beside.wait(20)
    # The broker has ended: its trace is whole.
    modes = broker.modes(job.pid) or [mode for entry in status["ended"] for mode in broker.modes(entry["last"]["pid"])]
    assert not beside or beside_code == 0, beside.explain()
    assert device.wait_gone(), STAYED
    records = devicelog.read(log, without=beside.pid if beside else None)
    return Run(job, code, records, result), status, modes


def check(client, role, bare, weft, status, modes):
    """Fails with all that is wrong."""
    wrong = []
    if bare.stdout != weft.stdout:
        wrong.append(f"stdout differs: {bare.stdout[:200]!r} without weft, {weft.stdout[:200]!r} with it")
    if bare.result != weft.result:
        wrong.append(f"results differ: {bare.result} without weft, {weft.result} with it")
    ours = [line for line in weft.stderr.splitlines() if line.startswith("weft") and (role != "moved" or IDLE not in line)]
    if ours:
        wrong.append("weft wrote to stderr: " + " / ".join(ours[:5]))

    if client.order == "same":
        differences = devicelog.compare(
            devicelog.streams(bare.records), devicelog.streams(weft.records), client.own(role)
        )
        wrong += differences[:5]
        if len(differences) > 5:
            wrong.append(f"and {len(differences) - 5} more differences")
    elif client.order == "counts":
        mine, theirs = devicelog.counts(bare.records), devicelog.counts(weft.records)
        for kind in sorted(set(mine) | set(theirs)):
            if mine[kind] != theirs[kind] and kind not in client.own(role):
                wrong.append(f"{mine[kind]} {kind} operations without weft, {theirs[kind]} with it")
    wrong += check_counters(weft, status, client.fails)
    # A client of several processes has more than one job.
    company = len(status["ended"]) > 1
    mode = MODE.get(role, role)
    if mode not in modes or (mode == "alone" and not company and set(modes) != {"alone"}):
        wrong.append(f"it was {', '.join(modes) or 'not attached'}, never {mode}")
    left = sum(entry["last"]["left_behind"] for entry in status["ended"])
    if role == "unqueued" and left:
        wrong.append(f"{left} launches were left behind at the gate, with the queue off")
    assert not wrong, "\n".join(wrong)


def check_counters(weft, status, fails):
    """`fails`: the driver refuses launches in the end, which weft counts before it asks."""
    wrong = []
    ended = {entry["last"]["pid"]: entry for entry in status["ended"]}
    for pid in {record["pid"] for record in weft.records}:
        seen = devicelog.counts(weft.records, {pid})
        entry = ended.get(pid)
        if entry is None:
            wrong.append(f"process {pid} used the device and the broker never saw it")
            continue
        last = entry["last"]
        on_device = seen["kernel"]
        counted = last["launches"] - last["captured"]
        if counted < on_device or counted > on_device and not fails:
            wrong.append(
                f"weft counted {last['launches']} launches, {last['captured']} of them into captures; "
                f"{on_device} kernels reached the device"
            )
        # Not waits_expired: on a busy machine a wait may reach its bound.
        for what in ("unnamed", "troubles", "dropped_messages"):
            if last[what]:
                wrong.append(f"{what}: {last[what]}")
        if entry["ending"] == "detached":
            wrong.append("the broker let the client go: its lane made no sense")
    return wrong


def pytest_generate_tests(metafunc):
    options = metafunc.config.option
    with open(HERE / "clients.toml", "rb") as file:
        clients = [Client(name, table) for name, table in tomllib.load(file).items()]
    cases = []
    for client in clients:
        if options.model:
            client.env = {**client.env, "SIMGPU_MODEL": options.model}
        # If all are played, each is by itself.
        if not client.together if options.set == "all" else client.set == "ci":
            marks = [pytest.mark.timeout(5 * client.bound)]
            roles = client.roles + (client.also if options.set == "all" else [])
            roles = [*roles, "moved"] if client.moved in ("ci", options.set) else roles
            roles = ["bare"] if options.bare else roles
            cases += [pytest.param(client, role, id=f"{client.name}/{role}", marks=marks) for role in roles]
    metafunc.parametrize("client, role", cases)


def check_moved(client, bare, folder, policy, seed, record):
    """Plays the client until its memory has moved often enough."""
    chance = random.Random(f"{seed} {client.name}")
    span = (max(record["end"] for record in bare.records) - min(record["t"] for record in bare.records)) / 1e9
    made = ranges = 0
    for run in range(RUNS):
        place = folder / f"{run}"
        place.mkdir()
        counts, file = [], place / "moves"

        def moving(broker, job):
            counts.append(moves.play(broker.socket, job, chance, span / moves.TIMES))  # noqa: B023

        client.env = {**client.env, "SIMGPU_MOVES": str(file)}
        check(client, "moved", bare, *run_under_weft(client, "moved", place, policy, moving))
        count, wrong, _ = moves.seen(file)
        assert not wrong, f"seed {seed}: ranges are not what they were before they left: {wrong[:5]}"
        made, ranges = made + sum(counts), ranges + count
        if made >= moves.TIMES:
            break
    assert made >= moves.TIMES and ranges > 0, f"seed {seed}: {made} moves of {ranges} ranges in {run + 1} runs"
    record("told", f"seed {seed}: {made} moves by order, {ranges} ranges, {run + 1} runs")


def test_client(client, role, folder, policy, request, record_property):
    why = client.missing()
    if why:
        pytest.skip(why)
    bare_folder, weft_folder = folder / "b", folder / "w"
    bare_folder.mkdir()
    weft_folder.mkdir()
    bare = run_bare(client, role, bare_folder)
    if role == "moved":
        check_moved(client, bare, weft_folder, policy, request.config.option.seed, record_property)
    elif role != "bare":
        check(client, role, bare, *run_under_weft(client, role, weft_folder, policy))
