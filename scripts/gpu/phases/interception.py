# SPDX-License-Identifier: MIT OR Apache-2.0
"""Real clients on the real driver, without weft and with it: weft must see every launch and change
nothing.

First comes the driver itself: the findings of `weft doctor`, and the driver's exported functions
against our table. Then come the clients of tests/clients, several at a time, since this phase
measures no times.

Each client runs twice without weft. The second run shares the device with a busy job, since
libraries may choose algorithms by the load. Data that differ between these two runs do not count
against weft. Then the client runs once in each role under weft. If data differ there, a third run
without weft follows: the first two may have agreed by chance. Under weft a client must
  * end well and print the same bytes,
  * leave the same result, including the hashes of its data,
  * have a name for 99 of 100 launches, no trouble counted, and no line of weft on stderr.

On a real GPU no client runs on managed memory (safety.py). On the simulated GPU those clients run
too. Background jobs defer launches whatever private tables of the driver they have
(`WEFT_QUEUE=always`). Their data show whether any call overtakes deferred launches
(interposer/src/deferred/tables.rs).

Further cases: the cost of an update of a graph; whether the profiler still ties kernels to
operators and sees as many kernels as weft sees launches; whether `CUDA_LAUNCH_BLOCKING` changes
only the queue; and the end of a background job, many times.
"""

import concurrent.futures
import contextlib
import functools
import json
import os
import statistics
import subprocess
import threading
import time

from harness import elf, jobs, paths

from .. import clients as table_of_clients
from .. import machine, results, safety
from ..phase import Failure, NoTime, Skip, ended_clients, failed, settled
from ..workload import Orders

PROGRAMS = paths.CLIENTS / "programs"
OBSERVE = paths.ROOT / "scripts" / "gpu" / "observe"
TABLE = paths.ROOT / "interposer" / "symbols" / "driver-api.tsv"

# (priority of the client, priority of the other job, that job's pattern), as in
# tests/clients/test_matrix.py.
BESIDE = {
    "foreground": (1, 7, ["--burst", "16", "--pause", "300"]),
    "background": (6, 0, ["--burst", "8", "--pause", "3000"]),
}

# Clients that query the free memory, or take all of it: no other client runs at the same time. The
# first set runs before the other clients, the second set after them.
ALONE_BEFORE = {"patterns"}
ALONE_AFTER = {"torch-oom", "jax", "jax-tuning", "tensorflow", "vllm", "vllm-compiled", "nccl"}

# Most valuable first, in case time runs short. The others follow in the order of clients.toml.
FIRST = [
    "cudarc",
    "patterns",
    "torch-train",
    "torch-graphs",
    "torch-elementwise",
    "triton",
    "cupy",
    "torch-conv",
    "torch-attention",
]

# With --quick: one client with our own kernels, one with PyTorch.
QUICK = ["cudarc", "torch-elementwise"]

# Seconds that a client's run may take; clients.toml sets more for some clients.
BOUND = 120.0

# Processes that begin and end in the case `exits`, and their time in seconds.
EXITS, QUICK_EXITS, EXITS_SECONDS = 50, 3, 45.0

# The share of launches that may have no name. Priorities still hold for them; profiles miss those
# kernels.
UNNAMED_SHARE = 0.01

# Updates of a graph: (order for weft-bench-launch, updates in a part, name of the figure); parts.
UPDATES = [("update", 64, "graph-update"), ("relaunch", 16, "graph-relaunch")]
UPDATE_PARTS, QUICK_UPDATE_PARTS = 9, 1

# The program that runs under the profiler, and its runs: (name, role, variables).
PROFILED = paths.ROOT / "scripts" / "gpu" / "profiled.py"
PROFILED_AS = [("bare", None, {}), ("background job, queue off", "background", {"WEFT_QUEUE": "off"}), ("background job, queue on", "background", {"WEFT_QUEUE": "always"})]

# The client whose launches block, and the variable that makes them block.
BLOCKS, QUICK_BLOCKS, BLOCKING = "torch-train", "torch-elementwise", {"CUDA_LAUNCH_BLOCKING": "1"}

# Further variables of a role.
MORE = {"background": {"WEFT_QUEUE": "always"}}

# The most clients at a time on a real GPU, and the cores that one client needs. Each short wait
# lasts up to a turn of every other client.
MOST_AT_ONCE, CORES_EACH = 5, 2.0

# First word of weft's own lines. The client and its libraries may print other lines.
OURS = "weft"


def run(phase):
    phase.case("doctor", doctor, phase, need=3)
    phase.case("symbols", symbols, phase, need=3)
    clients(phase)
    phase.case("graph updates", graph_updates, phase, need=8)
    phase.case("exits", exits, phase, need=6)


def doctor(phase):
    """Runs `weft doctor`, as a user would first. On a real machine weft must find the driver by
    itself.
    """
    folder = phase.place("doctor")
    device = phase.device(folder)
    environment = {**jobs.clean_environment(), **device.environment(), **device.weft_environment()}
    environment.update(WEFT_SOCKET=str(folder / "b.sock"), WEFT_PROFILE_DIR=str(folder), WEFT_AUTOSTART="0")
    done = subprocess.run(
        [paths.WEFT, "doctor", "--json"],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    try:
        rows = json.loads(done.stdout)
    except ValueError as error:
        raise Failure(f"weft doctor ended with {done.returncode} and no JSON", results.tail(done.stderr)) from error
    phase.fact("doctor", rows)
    rows = rows.get("rows", rows) if isinstance(rows, dict) else rows
    bad = [row for row in rows if isinstance(row, dict) and str(row.get("verdict", row.get("state", ""))).lower() == "fail"]
    if bad:
        raise Failure("weft doctor found faults", [json.dumps(row) for row in bad])


def our_symbols():
    lines = [line.split("\t") for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    return {line[0] for line in lines if len(line) > 1}


def symbols(phase):
    """Compares the driver's functions with our table, both ways."""
    library = phase.facts["driver"].get("library")
    if not library:
        raise Skip("the path of the driver's library is not known")
    exported = {name for name in elf.Elf(library).exports() if name.startswith("cu") and name[2:3].isupper()}
    ours = our_symbols()
    lacking, absent = sorted(exported - ours), sorted(ours - exported)
    phase.value("symbols.driver", len(exported), "functions", how=f"dynamic symbols of {library}")
    phase.value("symbols.table_lacks", len(lacking), "functions", how="exported by the driver, not in driver-api.tsv")
    phase.value("symbols.driver_lacks", len(absent), "functions", how="in driver-api.tsv, not exported by the driver")
    phase.fact("symbols", {"table_lacks": lacking, "driver_lacks": absent})
    if not exported:
        raise Failure(f"{library} exports no function of the driver API")


def bundled(name):
    """The path of a program; raises Skip if the bundle lacks it."""
    program = paths.BUILT / name
    if not program.exists():
        raise Skip(f"{name} is not in the bundle")
    return program


def graph_updates(phase):
    """The cost of an update of a graph of 1,500 kernels, and of an update with a launch and a wait,
    with weft and without, in turn.
    """
    program = bundled("weft-bench-launch")
    folder = phase.place("updates")
    device = phase.device(folder)
    parts = QUICK_UPDATE_PARTS if phase.quick else UPDATE_PARTS
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(phase.broker(folder, device, trace=False))
        processes = {}
        for name, variables in (("bare", {}), ("weft", jobs.preload(broker.variables()))):
            processes[name] = Orders([program], phase.environment(device, variables), folder, name)
            stack.callback(processes[name].close)
            if processes[name].hear(60) != "ready":
                raise processes[name].failure("did not start")
        for what, count, key in UPDATES:
            taken = {name: [] for name in processes}
            for _ in range(parts):
                for name, process in processes.items():
                    process.ask(f"{what} {max(count // 8, 1)} 1", 60)
                    taken[name].append(float(process.ask(f"{what} {count} 1", 60).split()[0]) / 1e3)
            for name, values in taken.items():
                phase.sample(f"{key}.{name}", values, "us", how=f"weft-bench-launch {what}, 1,500 kernels, parts of {count}, in turn")
            ratio = statistics.median(weft / bare for weft, bare in zip(taken["weft"], taken["bare"]))
            phase.value(f"{key}.ratio", ratio, "times", n=parts, how="with weft, relative to without")


def profiler(phase):
    """Counts the kernels that torch.profiler sees, and those that it ties to an operator. With the
    queue on, deferred kernels are known to have no operator.
    """
    without = machine.missing_imports(phase.python, PROFILED)
    if without:
        raise Skip(f"no Python package {', '.join(without)}")
    wrong, tied = [], 0.0
    for name, role, variables in PROFILED_AS:
        folder = phase.place("profiled")
        device = phase.device(folder)
        with contextlib.ExitStack() as stack:
            more = {}
            if role:
                broker = stack.enter_context(phase.broker(folder, device))
                priority = stack.enter_context(beside(phase, role, device, broker, folder))
                more = {**jobs.preload(broker.variables(), priority=priority), **variables}
            job = jobs.Job(profiled_command(phase, folder), environment=phase.environment(device, more), folder=folder, name="profiled")
            phase.finish(job, BOUND, f"profiled.py, {name}")
            seen = json.loads((folder / "result.json").read_text())
            launches = ended_clients(settled(broker, job.pid)).get(job.pid, {}).get("launches") if role else None
        if not role and not seen["kernels"]:
            raise Skip(f"the profiler sees {seen['ops']} operators and no kernels here")
        phase.value(f"profiler.{name}.kernels", seen["kernels"], "kernels", n=1, how="torch.profiler, scripts/gpu/profiled.py")
        phase.value(f"profiler.{name}.with_op", seen["with_op"], "kernels", n=1, how="of those, tied to an operator by the call that launched them")
        phase.fact(f"profiler: {name}", {**seen, "launches_seen_by_weft": launches})
        if role:
            phase.value(f"profiler.{name}.launches", launches or 0, "launches", n=1, how="seen by weft in the same process")
            if not launches or launches < seen["kernels"]:
                wrong.append(f"{name}: the profiler saw {seen['kernels']} kernels and weft {launches} launches")
        if not role:
            tied = seen["with_op"] / seen["kernels"]
        # A kernel or two may differ between runs.
        if "off" in name and seen["with_op"] < (tied - 0.02) * seen["kernels"]:
            wrong.append(f"{name}: {seen['with_op']} of {seen['kernels']} kernels are tied to an operator, without weft {tied:.0%}")
    if wrong:
        raise Failure("; ".join(wrong))


def profiled_command(phase, folder):
    return [phase.python, PROFILED, folder / "result.json", *(["--without-device"] if phase.simulated else [])]


def blocked(phase):
    name = QUICK_BLOCKS if phase.quick else BLOCKS
    return Client(name, table_of_clients.tables()[name], phase)


def blocking(phase):
    """Runs a background job with CUDA_LAUNCH_BLOCKING. It must give the same data as without weft,
    and no launch may be deferred.
    """
    client = blocked(phase)
    why = client.missing()
    if why:
        raise Skip(why)
    gathered = Gathered()
    reference = bare(client, phase.place("blocking"), BLOCKING)
    under_weft(client, "background", reference, gathered, {**BLOCKING, "WEFT_QUEUE": ""})
    phase.value("blocking.compared", gathered.compared, "hashes", n=1, how=f"{client.name} as background job with CUDA_LAUNCH_BLOCKING=1, data on which two runs without weft agree")
    phase.value("blocking.left_behind", gathered.left_behind, "launches", n=1, how="the same run")
    if gathered.left_behind:
        raise Failure(f"{gathered.left_behind} launches were deferred, though each must return only when its kernel has ended")


def exits(phase):
    """Starts a background job that works and ends, many times. Each must end well, although the
    driver is taken down while weft's threads run.
    """
    program = bundled("weft-test-client")
    folder = phase.place("exits")
    device = phase.device(folder)
    bad, tried = [], 0
    begin = time.monotonic()
    with phase.broker(folder, device, trace=False) as broker, beside(phase, "background", device, broker, folder) as priority:
        variables = jobs.preload(broker.variables(), priority=priority)
        wanted = QUICK_EXITS if phase.quick else phase.options.get("exits", EXITS)
        while tried < wanted and phase.left() > 4 and time.monotonic() - begin < EXITS_SECONDS:
            job = jobs.Job([program, folder / "result.json"], environment=phase.environment(device, variables), folder=folder, name=f"exit{tried}")
            code = job.wait(max(1.0, min(BOUND, phase.left() - 2)))
            if job.timed_out and phase.left() < 3:
                break
            tried += 1
            if code != 0:
                bad.append(job.explain(4))
        status = settled(broker, job.pid) if tried else {}
    if not tried:
        raise NoTime("no process began")
    seen = [entry for entry in ended_clients(status).values() if "weft-test-companion" not in entry["command"]]
    phase.value("exits.tried", tried, "processes", how="weft-test-client as background job, started one after another")
    phase.value("exits.bad", len(bad), "processes", n=tried, how="those that ended by a signal or with an error, or did not end")
    if bad:
        raise Failure(f"{len(bad)} of {tried} processes did not end well", bad[:3])
    if not seen:
        raise Failure("the broker saw none of them: the figure does not measure this")


class Client:
    """One entry of clients.toml on this machine."""

    def __init__(self, name, table, phase):
        self.name, self.phase, self.table = name, phase, table
        self.native = not table["venv"]
        self.program = paths.BUILT / table["program"] if self.native else PROGRAMS / table["program"]
        self.roles = [*table.get("also", []), *table.get("roles", ["alone"])]
        self.bound = float(table.get("bound", BOUND))
        self.libraries = machine.cuda_libraries(phase.python) if table.get("cuda_libraries") else []

    def missing(self):
        """The reason why the client cannot run here, or None."""
        if self.native:
            return None if self.program.exists() else f"{self.program.name} is not in the bundle"
        without = machine.missing_imports(self.phase.python, self.program)
        return f"no Python package {', '.join(without)}" if without else None

    def command(self, result):
        head = [self.program] if self.native else [self.phase.python, self.program]
        return [*head, result, *self.table.get("arguments", [])]

    def environment(self, device, seen, extra=()):
        environment = self.phase.environment(device, {}, self.libraries)
        environment.update(self.table.get("env", {}))
        # Our path first, then the caller's: it holds packages that were carried along.
        python_path = os.pathsep.join([str(OBSERVE), *filter(None, [environment.get("PYTHONPATH")])])
        environment.update(
            CLIENT_HASHES="1",
            OBSERVE_FOLDER=str(seen),
            PYTHONPATH=python_path,
            XLA_PYTHON_CLIENT_PREALLOCATE="false",
            **dict(extra),
        )
        return environment

    def wanted_roles(self):
        """The requested roles under weft. If there are none, the client does not run."""
        roles = self.roles[:1] if self.phase.quick and not self.native else self.roles
        return [role for role in roles if self.phase.wanted(f"{self.name}/{role}")]

    def execute(self, device, folder, name, extra=()):
        """One run. Returns (job, result)."""
        result = folder / f"{name}.json"
        seen = folder / f"{name}.seen"
        seen.mkdir()
        job = jobs.Job(self.command(result), environment=self.environment(device, seen, extra), folder=folder, name=name)
        code = job.wait(max(1.0, min(self.bound, self.phase.left())))
        if code != 0 or not result.exists():
            raise failed(job, f"{self.name}, {name}", self.phase)
        return job, json.loads(result.read_text()), [json.loads(file.read_text()) for file in seen.glob("*.json")]


def chosen(phase):
    """{name: Client} of the clients that can run here, in their order. On a real GPU clients whose
    variables request managed memory from weft are left out.
    """
    tables = table_of_clients.tables()
    tables = {name: table for name, table in tables.items() if not table.get("together")}
    if not phase.simulated:
        tables = {name: table for name, table in tables.items() if not safety.asks_for_managed(table.get("env", {}))}
    if phase.quick:
        order = QUICK
    elif phase.options.get("clients"):
        order = phase.options["clients"]
    else:
        order = sorted(
            tables, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), tables[name].get("set", "ci") != "ci")
        )
    found = {name: Client(name, tables[name], phase) for name in order if name in tables}
    return {name: client for name, client in found.items() if client.wanted_roles()}


def plan(phase):
    """Every process that this phase would start."""
    folder = phase.place("plan")
    device = phase.device(folder)
    broker = phase.broker(folder, device)
    if phase.wanted("doctor"):
        yield "doctor", [paths.WEFT, "doctor", "--json"], {**jobs.clean_environment(), **device.environment()}
    if phase.wanted("exits"):
        variables = jobs.preload(broker.variables(), priority=BESIDE["background"][0])
        yield "exits", [paths.BUILT / "weft-test-client", folder / "result.json"], phase.environment(device, variables)
    if phase.wanted("graph updates"):
        program = [paths.BUILT / "weft-bench-launch"]
        for name, variables in (("bare", {}), ("weft", jobs.preload(broker.variables()))):
            yield f"graph updates: {name}", program, phase.environment(device, variables)
    if phase.wanted("profiler"):
        for name, role, more in PROFILED_AS:
            variables = {**jobs.preload(broker.variables(), priority=BESIDE[role][0]), **more} if role else {}
            yield f"profiler: {name}", profiled_command(phase, folder), phase.environment(device, variables)
    if phase.wanted("blocking"):
        client = blocked(phase)
        for name, variables in (("bare", {}), ("background", jobs.preload(broker.variables(), priority=BESIDE["background"][0]))):
            yield f"blocking: {name}", client.command(folder / "result.json"), client.environment(device, folder, {**variables, **BLOCKING})
    for name, client in chosen(phase).items():
        for run_ in (*BARE, THIRD):
            yield f"{name}: {run_}", client.command(folder / "result.json"), client.environment(device, folder)
        for role in client.wanted_roles():
            priority, other, pattern = BESIDE.get(role, (5, None, ()))
            variables = {**jobs.preload(broker.variables(), priority=priority), **MORE.get(role, {})}
            yield f"{name}/{role}", client.command(folder / "result.json"), client.environment(device, folder, variables)
            if other is not None:
                variables = jobs.preload(broker.variables(), priority=other)
                yield f"{name}/{role}: beside", companion_command(folder, pattern), phase.environment(device, variables)


def clients(phase):
    """Runs all clients, several at a time; then those that need the device for themselves."""
    found = chosen(phase)
    wanted = list(found)
    gathered = Gathered()
    beside = [found[name] for name in wanted if name not in ALONE_BEFORE | ALONE_AFTER]
    for name in wanted:
        if name in ALONE_BEFORE:
            one_client(found[name], gathered)
    cores = os.cpu_count() or 1
    width = min(2, cores) if phase.simulated else max(1, min(MOST_AT_ONCE, int(cores / CORES_EACH)))
    tasks = [functools.partial(one_client, client, gathered) for client in beside]
    # The profiler's kernels against weft's launches: worth as much as a client's data.
    tasks.insert(min(width, len(tasks)), functools.partial(phase.case, "profiler", profiler, phase, need=30))
    tasks.append(functools.partial(phase.case, "blocking", blocking, phase, need=30))
    at_once(tasks, width)
    for name in wanted:
        if name in ALONE_AFTER:
            one_client(found[name], gathered)
    gathered.write(phase)


def at_once(tasks, width):
    """Runs all tasks, `width` at a time, in their order."""
    pool = concurrent.futures.ThreadPoolExecutor(width)
    try:
        # An exception in a thread is a fault of the suite: raise it here.
        for future in [pool.submit(task) for task in tasks]:
            future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class Gathered:
    """The counts over all clients."""

    def __init__(self):
        self.lock = threading.Lock()
        self.launches = self.unnamed = self.left_behind = self.lookups = self.runs = 0
        self.counters = {}
        self.unknown, self.drivers, self.tables = {}, set(), {}
        self.by_chance = {}
        self.compared = self.differing = 0

    def add(self, client, role, seen, last, reference, hashes):
        with self.lock:
            self.runs += 1
            names = ("launches", "graph_launches", "transfers", "unnamed", "left_behind")
            self.counters[f"{client}/{role}"] = {name: sum(entry.get(name, 0) for entry in last) for name in names}
            self.left_behind += self.counters[f"{client}/{role}"]["left_behind"]
            self.compared += len(reference)
            self.differing += sum(hashes.get(name) != value for name, value in reference.items())
            for entry in last:
                self.launches += entry["launches"] + entry["graph_launches"]
                self.unnamed += entry["unnamed"]
            for process in seen:
                self.lookups += process["lookups"]
                self.drivers.add(process["driver"])
                for table in process.get("tables", []):
                    self.tables.setdefault(table, set()).add(client)
                for name in process["unknown_names"]:
                    self.unknown.setdefault(name, set()).add(client)

    def write(self, phase):
        if not self.runs:
            return
        phase.value("launches", self.launches, "launches", n=self.runs, how="all clients under weft")
        phase.value("launches.unnamed", self.unnamed, "launches", n=self.runs, how="all clients under weft")
        phase.value(
            "lookups.ours",
            self.lookups,
            "lookups",
            n=self.runs,
            how="cuGetProcAddress or dlsym returned an entry of weft",
        )
        phase.value(
            "lookups.unhooked", len(self.unknown), "functions", n=self.runs, how="handed out though driver-api.tsv lacks them"
        )
        phase.value("data.compared", self.compared, "hashes", n=self.runs, how="data on which two runs without weft agree")
        phase.value("data.differing", self.differing, "hashes", n=self.runs, how="those that differ under weft")
        # A launch is deferred at the gate only if the layout of its parameters is known. Zero
        # deferred launches thus mean that no layout is known.
        phase.value("launches.left_behind", self.left_behind, "launches", n=self.runs, how="background jobs' launches that weft issued later")
        phase.fact("counters", self.counters)
        phase.fact("unhooked", {name: sorted(clients) for name, clients in sorted(self.unknown.items())})
        phase.fact("drivers", sorted(self.drivers))
        # The driver's private tables by identity, each with the clients that requested it.
        phase.fact("tables", {name: sorted(clients) for name, clients in sorted(self.tables.items())})
        phase.fact("differs_without_weft", self.by_chance)


def one_client(client, gathered):
    """Both runs without weft, then each role."""
    phase = client.phase
    roles = client.wanted_roles()
    names = [f"{client.name}/{role}" for role in roles]
    if not names:
        return
    why = client.missing()
    if why:
        for name in names:
            phase.verdict(name, results.SKIPPED, why)
        return
    if phase.left() < 8:
        for name in names:
            phase.verdict(name, results.LEFT_OUT, f"{max(phase.left(), 0):.0f} s left")
        return
    folder = phase.place(client.name)
    try:
        reference = bare(client, folder)
    except NoTime as why:
        for name in names:
            phase.verdict(name, results.LEFT_OUT, str(why))
        return
    except (Failure, OSError, ValueError, RuntimeError) as error:
        for name in names:
            phase.verdict(name, results.SKIPPED, f"it does not run without weft either: {error}", getattr(error, "tail", None))
        return
    with gathered.lock:
        if reference["by_chance"]:
            gathered.by_chance[client.name] = reference["by_chance"]
    for role, name in zip(roles, names):
        phase.case(name, under_weft, client, role, reference, gathered, need=6)


# Runs without weft, and the further run that follows if data differ under weft.
BARE, THIRD = ("bare1", "bare2"), "bare3"


def bare(client, folder, more=()):
    """Two runs without weft, and the data on which they agree. `more`: further variables of both
    runs.
    """
    runs = []
    for number in BARE:
        place = folder / number
        place.mkdir()
        device = client.phase.device(place)
        with busy(client, device, place) if number == BARE[1] else contextlib.nullcontext():
            job, result, _ = client.execute(device, place, number, more)
        runs.append((job.stdout(), result))
        device.wait_gone()
    (out, first), (_, second) = runs
    hashes, again = first.pop("hashes", {}), second.pop("hashes", {})
    by_chance = sorted(name for name in hashes if hashes[name] != again.get(name))
    return {
        "stdout": out if out == runs[1][0] else None,
        "result": {key: value for key, value in first.items() if second.get(key) == value},
        "hashes": {name: value for name, value in hashes.items() if name not in by_chance},
        "by_chance": by_chance,
        "more": more,
    }


def third(client, reference, gathered):
    """One more run without weft, at most once per client. Returns the names of the data in which it
    differs from the first two.
    """
    if "third" not in reference:
        place = client.phase.place(f"{client.name}-{THIRD}")
        device = client.phase.device(place)
        _, result, _ = client.execute(device, place, THIRD, reference.get("more", ()))
        device.wait_gone()
        hashes = result.get("hashes", {})
        reference["third"] = sorted(name for name, value in reference["hashes"].items() if hashes.get(name) != value)
        reference["by_chance"] = sorted({*reference["by_chance"], *reference["third"]})
        if reference["by_chance"]:
            with gathered.lock:
                gathered.by_chance[client.name] = reference["by_chance"]
    return reference["third"]


def under_weft(client, role, reference, gathered, more=()):
    """One run in a role. Raises Failure with every fault. `more`: further variables of the client.
    """
    phase = client.phase
    folder = phase.place(f"{client.name}-{role}")
    device = phase.device(folder)
    with phase.broker(folder, device) as broker, beside(phase, role, device, broker, folder) as priority:
        variables = {**jobs.preload(broker.variables(), priority=priority), **MORE.get(role, {}), **dict(more)}
        job, result, seen = client.execute(device, folder, "weft", variables)
        status = settled(broker, job.pid)
    companion = {"foreground", "background"} & {role}
    last = [entry for entry in ended_clients(status).values() if "weft-test-companion" not in entry["command"]]
    hashes = result.pop("hashes", {})
    wrong = []
    if reference["stdout"] is not None and job.stdout() != reference["stdout"]:
        wrong.append(f"stdout differs: {job.stdout()[:120]!r}, without weft {reference['stdout'][:120]!r}")
    for key, value in reference["result"].items():
        if result.get(key) != value:
            wrong.append(f"{key} is {result.get(key)!r}, without weft {value!r}")
    differing = [key for key, value in reference["hashes"].items() if hashes.get(key) != value]
    if differing:
        # Sums in no fixed order may agree twice by chance and differ the third time.
        chance = third(client, reference, gathered)
        wrong += [f"data {key!r} differs from the runs without weft, which agree" for key in differing if key not in chance]
    ours = [line for line in job.stderr().splitlines() if line.startswith(OURS)]
    if ours:
        wrong.append("weft wrote to stderr: " + " / ".join(ours[:4]))
    if job.pid not in ended_clients(status):
        wrong.append("the broker never saw the client")
    if not sum(entry["launches"] + entry["graph_launches"] + entry["transfers"] for entry in last):
        wrong.append("weft saw neither a launch nor a copy")
    counts = {what: sum(entry[what] for entry in last) for what in ("troubles", "dropped_messages")}
    unnamed, launches = (sum(entry[what] for entry in last) for what in ("unnamed", "launches"))
    if unnamed > UNNAMED_SHARE * launches:
        counts["unnamed"] = unnamed
    wrong += [f"{what}: {count}" for what, count in counts.items() if count]
    if companion:
        modes = broker.modes(job.pid) or [mode for entry in last for mode in broker.modes(entry["pid"])]
        if role not in modes:
            wrong.append(f"it was {', '.join(modes) or 'not attached'}, never {role}")
    gathered.add(client.name, role, seen, last, {key: value for key, value in reference["hashes"].items() if key not in reference["by_chance"]}, hashes)
    if wrong:
        raise Failure("; ".join(wrong), results.tail(job.stderr(), 10))


def companion_command(folder, pattern):
    program = paths.BUILT / "weft-test-companion"
    return [program, "--while", folder / "keep", "--ready", folder / "ready", "--at-most", "300", *pattern]


def busy(client, device, folder):
    """The job that would run next to a background client, here without weft. None if a client needs
    the device for itself.
    """
    role = "background" if client.name not in ALONE_BEFORE | ALONE_AFTER else None
    return beside(client.phase, role, device, None, folder)


class beside:
    """The job that makes the client a foreground or a background job. Yields the client's priority.
    Without a broker the job runs without weft.
    """

    def __init__(self, phase, role, device, broker, folder):
        self.phase, self.role, self.device, self.broker, self.folder = phase, role, device, broker, folder
        self.job = None

    def __enter__(self):
        if self.role not in BESIDE:
            return 5
        priority, other, pattern = BESIDE[self.role]
        self.keep, ready = self.folder / "keep", self.folder / "ready"
        self.keep.touch()
        command = companion_command(self.folder, pattern)
        if not command[0].exists():
            raise Skip("weft-test-companion is not in the bundle")
        weft = jobs.preload(self.broker.variables(), priority=other) if self.broker else {}
        environment = self.phase.environment(self.device, weft)
        self.job = jobs.Job(command, environment=environment, folder=self.folder, name="beside")
        jobs.wait_until(lambda: ready.exists() or not self.job.running(), min(30, max(self.phase.left(), 1)))
        if not ready.exists():
            self.job.kill()
            raise failed(self.job, "the job that runs with the client", self.phase)
        return priority

    def __exit__(self, *_):
        if self.job:
            self.keep.unlink(missing_ok=True)
            self.job.wait(10)
