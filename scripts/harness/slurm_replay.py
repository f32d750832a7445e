"""A public trace on a Slurm of simulated GPUs, under four ways to assign GPUs to jobs.

  scripts/cluster slurm --replay               four nodes of two GPUs, 40 jobs
  scripts/cluster slurm --replay --nodes 8 --gpus 4 --jobs 200 --check

The jobs come from the middle of the trace (Alibaba's openb, of 2023), without those that request
more than one GPU. QoS LS is a service, BE a batch job. Both are clients of the driver
(tests/cluster/replayed.py), so plugin, library and broker really run. The trace's data, and the
assumptions:

* Run times keep their proportions between a third and five times the median. Arrivals keep theirs;
  they are spread so that the requested GPU shares are `--load` times the available ones.
* `gpu_milli` is the part of a GPU's time that a batch job uses by itself. A service's requests use
  40 % of its share. Requests come in a closed loop, at random times.
* The trace has no data on memory. A service takes more than half of a GPU, so that no two services
  share one. A batch job takes less than half, in proportion to its share.

Completion is from submission to the end, in wall time. A service's slow-down is the 0.99 quantile
of its requests' times, relative to the exclusive arrangement, in which each job has a whole GPU.
"""

import contextlib
import csv
import heapq
import json
import math
import os
import random
import sys
import time
from pathlib import Path
from typing import NamedTuple

from . import jobs, paths, show, slurm

FOLDER, PODS = "shared/data/openb", "openb_pod_list_default.csv"
PROGRAM = paths.ROOT / "tests" / "cluster" / "replayed.py"
KERNELS = paths.ROOT / "tests/simgpu/driver/src/kernels/simgpu.ptx"

# Device time of a kernel, and launches of a request and of a burst. A batch kernel that delays a
# request costs less than 2 % of it.
SERVICE_NS, BATCH_NS = 200_000, 150_000
REQUEST_KERNELS, BURST_KERNELS = 40, 16
# Load of a service as a part of its requested share: the lab's.
SERVICE_LOAD = 0.4
# Run times are cut to these multiples of the median: a run must end.
SHORTEST, LONGEST = 1 / 3, 5
# GPU memory, shards of a GiB: of a service, of a batch job that requests a whole GPU, and of the
# smallest.
SERVICE_SHARDS, BATCH_SHARDS, LEAST_SHARDS = 41, 37, 3
# A job declares this much less to weft than its shards, and takes less than that: its context needs
# memory.
CONTEXT_GIB = 1
# Cores per GPU: more than the number of jobs that fit on it.
CORES = 32
# Slurm's time limit, minutes. No job reaches it.
LIMIT_MIN = 30
# A requeued job's wait, s: shortened from Slurm's default like the run times.
REQUEUE_S = 10
FAST, BATCH = "serve", "train"
# The most requests and bursts in a profile; expected and longest time for it, s.
PROFILED_REQUESTS, PROFILED_BURSTS, PROFILED_S, PROFILE_S = 40, 150, 100, 300
# Processes of the cluster that run all the time, by their name.
DAEMONS = ("simgpu-device", "weft", "slurmctld", "slurmd", "munged")
# Seconds between two progress lines, and between two queries of Slurm's queue.
PROGRESS_S, QUEUE_S = 10, 5

AIM_BATCH, AIM_P99 = 2.0, 1.05

# Keeps a context on each GPU of a node. The device then lives and counts all the time.
KEEPER = """
import ctypes, sys, time
cuda, count = ctypes.CDLL(sys.argv[1]), ctypes.c_int()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
for number in range(count.value):
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), number) == 0
time.sleep(1e6)
"""


class TraceJob(NamedTuple):
    """A job of the trace: whether a service, part of a GPU, seconds of arrival and of run time."""

    number: int
    service: bool
    share: float
    arrival_s: float
    run_s: float

    @property
    def user(self):
        return "service" if self.service else ("ann", "bea")[self.number % 2]

    @property
    def shards(self):
        own = max(LEAST_SHARDS, math.ceil(BATCH_SHARDS * self.share))
        return SERVICE_SHARDS if self.service else own


class Arrangement(NamedTuple):
    """A way to assign GPUs to jobs."""

    name: str
    shards: bool = False
    weft: bool = False
    preempts: bool = False

    def options(self, job, profiles):
        """The job's options for sbatch. `profiles`: whether a service -> a profile's file."""
        words = ["-p", FAST if job.service else BATCH, f"--time={LIMIT_MIN}"]
        words.append(f"--gres=shard:{job.shards}" if self.shards else "--gres=gpu:1")
        if self.weft:
            priority = "high" if job.service else "low"
            words += [f"--gpu-priority={priority}", f"--gpu-mem={job.shards - CONTEXT_GIB}G"]
            words += [f"--gpu-profile={profiles[job.service]}"] if profiles else []
        return words


ARRANGEMENTS = (
    Arrangement("exclusive"),
    Arrangement("weft", shards=True, weft=True),
    Arrangement("shards", shards=True),
    Arrangement("requeue", preempts=True),
)


def say(text):
    print(text, file=sys.stderr, flush=True)


def trace_file(named):
    """The trace's file, in the folder `named` or in a folder above this repository; or None."""
    folders = [Path(named)] if named else [parent / FOLDER for parent in paths.ROOT.parents]
    found = [folder / PODS for folder in folders if (folder / PODS).exists()]
    return found[0] if found else None


def read_trace(file, count, gpus, load, mean_s):
    """The middle `count` jobs with at most one GPU, in wall seconds of the replay."""
    with open(file, newline="") as text:
        rows = [row for row in csv.DictReader(text) if usable(row)]
    rows.sort(key=lambda row: float(row["creation_time"]))
    begin = max(0, (len(rows) - count) // 2)
    rows = rows[begin : begin + count]
    told = [float(row["deletion_time"]) - float(row["scheduled_time"]) for row in rows]
    median = sorted(told)[len(told) // 2]
    cut = [min(max(each, median * SHORTEST), median * LONGEST) for each in told]
    runs = [each * mean_s * len(cut) / sum(cut) for each in cut]
    shares = [int(row["gpu_milli"]) / 1000 for row in rows]
    arrivals = [float(row["creation_time"]) for row in rows]
    asked = sum(share * run for share, run in zip(shares, runs, strict=True))
    factor = asked / (gpus * load) / max(arrivals[-1] - arrivals[0], 1.0)
    return [
        TraceJob(
            number, row["qos"] == "LS", shares[number], (at - arrivals[0]) * factor, runs[number]
        )
        for number, (row, at) in enumerate(zip(rows, arrivals, strict=True))
    ]


def usable(row):
    """Whether the row is a service or batch job on one GPU that ran and ended."""
    one = row["num_gpu"] == "1" and row["qos"] in ("LS", "BE") and int(row["gpu_milli"]) > 0
    return one and row["scheduled_time"] != "" and row["deletion_time"] != ""


def device_config(mode):
    """Configuration of the simulated devices. Kernel times vary as in the demo."""
    rules = (
        f'[[kernel]]\nname = "simgpu_fill*"\ngrid = [{grid}, 1, 1]\nns = {ns}\n'
        for grid, ns in ((2, SERVICE_NS), (1, BATCH_NS))
    )
    return f'[device]\nmode = "{mode}"\njitter = 0.03\n' + "".join(rules)


class ReplayCluster(slurm.Cluster):
    """A cluster for one arrangement, whose devices count their work from the beginning."""

    KEEPER = KEEPER

    def __init__(self, folder, arrangement, given, plugin):
        names = f"n[1-{given.nodes}]" if given.nodes > 1 else "n1"
        tier, how = (10, "REQUEUE") if arrangement.preempts else (1, "OFF")
        ends = "MaxTime=INFINITE State=UP"
        conf = [
            f"SelectTypeParameters={'CR_CPU' if given.packed else 'CR_CORE'},CR_LLN",
            # A job that does not fit must not delay other jobs.
            "PriorityType=priority/multifactor",
            "PriorityDecayHalfLife=0",
            "PriorityUsageResetPeriod=NONE",
            "SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2"
            ",bf_min_prio_reserve=1000000,default_queue_depth=1000",
            f"PartitionName={FAST} Nodes={names} PriorityTier={tier} PreemptMode=OFF {ends}",
            f"PartitionName={BATCH} Nodes={names} PriorityTier=1 PreemptMode={how} {ends}",
        ]
        if arrangement.preempts:
            conf += ["PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE"]
        super().__init__(
            folder,
            nodes=given.nodes,
            gpus=given.gpus,
            plugin=plugin,
            plugstack=None if arrangement.weft else "# none",
            broker_options=[*slurm.BROKER_OPTIONS, "--dilation", str(given.dilation)],
            conf=conf,
            dilation=given.dilation,
            cpus=given.gpus * CORES,
            spread=not given.packed,
            requeue_s=REQUEUE_S if arrangement.preempts else slurm.REQUEUE_S,
            config=device_config(given.mode),
            more={file.name: file for file in (PROGRAM, KERNELS)},
        )

    def busy_ns(self):
        """Device time in which the GPUs worked since they began, in total."""
        total = 0
        for node in self.nodes:
            for gpu in range(self.gpus):
                # The driver's names of the sockets.
                socket = node.run / "simgpu" / f"{node.name}.sock{f'.{gpu}' if gpu else ''}"
                told = self.must([self.bin / "simgpu-device", "status", "--socket", socket])
                total += json.loads(told)["compute_ns"]
        return total


class Replay:
    """A run of all jobs under one arrangement."""

    def __init__(self, cluster, arrangement, trace, given):
        self.cluster, self.arrangement, self.trace = cluster, arrangement, trace
        self.given = given
        self.python = slurm.python()
        self.submitted, self.numbers, self.results = {}, {}, {}
        self.least_free = self.free = free_gib()

    def result(self, job):
        return self.cluster.folder / "home" / job.user / f"job{job.number}"

    def script(self, job):
        """The job's script: enough work for its run time on its own GPU."""
        if job.service:
            request_s, gap_s = self.request_s, self.gap_s(job)
            # The same times between requests in every arrangement, enough to fill the run time.
            chance, left, count = random.Random(job.number), job.run_s, 0
            while left > 0:
                left -= request_s + chance.expovariate(1 / gap_s)
                count += 1
        else:
            count = max(1, round(job.run_s * job.share / self.burst_s))
        return "exec " + " ".join(self.command(job, count, self.result(job)))

    @property
    def request_s(self):
        return REQUEST_KERNELS * SERVICE_NS / 1e9 * self.given.dilation

    @property
    def burst_s(self):
        return BURST_KERNELS * BATCH_NS / 1e9 * self.given.dilation

    def gap_s(self, job):
        """Mean time between two requests, or after a burst."""
        if job.service:
            return self.request_s * (1 / (SERVICE_LOAD * job.share) - 1)
        return self.burst_s * (1 / job.share - 1)

    def command(self, job, count, result):
        """The program with `count` requests or bursts."""
        memory = (job.shards - 2 * CONTEXT_GIB) << 30
        words = [self.python, "-I", "-S", self.cluster.bin / PROGRAM.name]
        words += ["service" if job.service else "batch", result]
        words += ["--image", self.cluster.bin / KERNELS.name, "--memory", memory]
        words += ["--gap-s", self.gap_s(job)]
        if job.service:
            words += ["--requests", count, "--kernels", REQUEST_KERNELS, "--seed", job.number]
        else:
            words += ["--bursts", count, "--kernels", BURST_KERNELS]
        return [str(word) for word in words]

    def profile(self):
        """Profiles both programs once, each on its own GPU, as their users would."""
        node, cluster, running = self.cluster.nodes[0], self.cluster, {}
        for service in (True, False):
            file = cluster.bin / ("service.profile" if service else "batch.profile")
            job = TraceJob(0, service, 1.0, 0.0, 0.0)
            most = PROFILED_REQUESTS if service else PROFILED_BURSTS
            each_s = (self.request_s if service else self.burst_s) + self.gap_s(job)
            count = min(most, max(1, round(PROFILED_S / each_s)))
            command = [cluster.bin / "weft", "profile", "--name", file.stem, "--out", file, "--"]
            variables = {
                **cluster.device_variables(node.name),
                "LD_LIBRARY_PATH": cluster.bin / "lib",
                "WEFT_CUDA_LIBRARY": cluster.driver,
                "WEFT_SOCKET": "/run/weft/broker.sock",
                "WEFT_PROFILE_DIR": cluster.folder / "profiles",
                "CUDA_VISIBLE_DEVICES": "0" if service else str(cluster.gpus - 1),
            }
            command += self.command(job, count, cluster.folder / file.stem)
            running[service] = (node.daemon(file.stem, command, variables), file)
        for job, file in running.values():
            if job.wait(PROFILE_S):
                raise RuntimeError(f"{file.stem} is not there\n{job.explain()}")
            file.chmod(0o644)
        return {service: file for service, (_, file) in running.items()}

    def run(self):
        """Submits all jobs and waits for them. Returns the measurements as a table of plain values.
        """
        profiles = self.profile() if self.arrangement.weft and self.given.profiled else {}
        busy, daemons = self.cluster.busy_ns(), daemons_core_seconds()
        cores, begin = core_seconds(), time.monotonic()
        self.said = self.asked = begin
        for job in self.trace:
            while (left := begin + job.arrival_s - time.monotonic()) > 0:
                time.sleep(min(left, 1.0))
                self.progress(begin)
            self.submitted[job] = time.monotonic()
            options = self.arrangement.options(job, profiles)
            self.numbers[job] = self.cluster.sbatch(job.user, self.script(job), *options)
        bound = begin + self.given.at_most
        while self.running() and time.monotonic() < bound:
            time.sleep(0.5)
            self.progress(begin)
        span = time.monotonic() - begin
        used = [after - before for after, before in zip(core_seconds(), cores, strict=True)]
        own = daemons_core_seconds()
        own = {name: round(own[name] - daemons[name], 1) for name in own}
        told = {"core_s": {**own, "jobs and others": round(used[0] - sum(own.values()), 1)}}
        gpus = len(self.cluster.nodes) * self.cluster.gpus
        busy_s = (self.cluster.busy_ns() - busy) * self.given.dilation / 1e9
        told |= {"cores_busy": used[0] / max(sum(used), 1e-9), "span_s": span}
        told["memory_gib"] = self.free - self.least_free
        told["unused_profiles"] = self.unused_profiles() if profiles else 0
        for job in [job for job in self.trace if not self.ended(job)][:3]:
            number = self.numbers[job]
            said = self.cluster.output(job.user, number)
            say(f"not ended: {self.cluster.job(number)}\n{said}")
        return {**self.measures(), **told, "gpu_busy": busy_s / (span * gpus)}

    def unused_profiles(self):
        """The number of jobs whose profile a broker could not use, by the brokers' logs."""
        logs = [node.broker.stderr() for node in self.cluster.nodes]
        lines = [line for log in logs for line in log.splitlines() if " warn: process " in line]
        for line in lines[:3]:
            say(line)
        return len(lines)

    def ended(self, job):
        """The lines of the job's runs, if it has ended well; else None."""
        if job not in self.results:
            lines = jobs.lines_of(self.result(job))
            if not lines or lines[-1]["event"] != "end":
                return None
            self.results[job] = lines
        return self.results[job]

    def running(self):
        """Whether Slurm still has jobs, from its queue some seconds ago."""
        if all(self.ended(job) for job in self.trace):
            return False
        if time.monotonic() - self.asked < QUEUE_S:
            return True
        self.asked = time.monotonic()
        return bool(self.cluster.must(["squeue", "-h", "-o", "%i"]).strip())

    def progress(self, begin):
        now = time.monotonic()
        if now - self.said < PROGRESS_S:
            return
        self.said = now
        self.least_free = min(self.least_free, free_gib())
        ended = sum(self.ended(job) is not None for job in self.submitted)
        begun = sum(self.result(job).exists() for job in self.submitted)
        text = f"{len(self.submitted)} submitted, {begun} begun, {ended} ended"
        say(f"{self.arrangement.name}: {now - begin:.0f} s: {text}")

    def measures(self):
        ended = {job: lines for job in self.trace if (lines := self.ended(job))}
        told = {"jobs": len(self.trace), "not_ended": len(self.trace) - len(ended)}
        told["runs_lost"] = sum(
            sum(line["event"] == "begin" for line in lines) - 1 for lines in ended.values()
        )
        for name, service in (("service", True), ("batch", False)):
            own = {job: lines for job, lines in ended.items() if job.service == service}
            took = [lines[-1]["at"] - self.submitted[job] for job, lines in own.items()]
            waited = [lines[0]["at"] - self.submitted[job] for job, lines in own.items()]
            told[name] = {
                "jobs": len(own),
                "mean_s": sum(took) / max(len(took), 1),
                "p95_s": show.quantile(took, 0.95) if took else None,
                "waited_mean_s": sum(waited) / max(len(waited), 1),
                "run_mean_s": sum(job.run_s for job in own) / max(len(own), 1),
            }
        requests = [each for lines in ended.values() for each in lines[-1]["latencies"]]
        told["requests"] = len(requests)
        # One list per service, in order: the data of a p99.
        told["request_s"] = [
            [round(each, 5) for each in lines[-1]["latencies"]]
            for job, lines in ended.items()
            if job.service
        ]
        for name, part in (("p50", 0.5), ("p99", 0.99)):
            told[f"request_{name}_s"] = show.quantile(requests, part) if requests else None
        return told


def core_seconds():
    """The seconds that the machine's cores worked since it began, and the seconds that they were
    idle or worked for others.

    Nice processes make way, so their work counts as others'.
    """
    with open("/proc/stat") as file:
        fields = [int(word) / os.sysconf("SC_CLK_TCK") for word in file.readline().split()[1:9]]
    _, nice, _, idle, waits, *_ = fields
    left = nice + idle + waits
    return sum(fields) - left, left


def daemons_core_seconds():
    """Core seconds of the processes that run all the time, by their name."""
    told = dict.fromkeys(DAEMONS, 0.0)
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = file.read_text().partition("(")[2].rpartition(")")
            if name in told:
                fields = rest.split()
                told[name] += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return told


def free_gib():
    """Available memory of the machine, GiB."""
    with open("/proc/meminfo") as file:
        told = dict(line.split(":") for line in file)
    return int(told["MemAvailable"].split()[0]) / (1 << 20)


def exclusive_s(trace, gpus):
    """Mean completion of batch jobs, each with a whole GPU, first come first served."""
    free, took = [0.0] * gpus, []
    for job in trace:
        end = max(heapq.heappop(free), job.arrival_s) + job.run_s
        heapq.heappush(free, end)
        took += [] if job.service else [end - job.arrival_s]
    return sum(took) / max(len(took), 1)


def options(parser):
    """Adds the replay's own options."""
    add = parser.add_argument
    add("--replay", action="store_true", help="the trace, under four arrangements")
    add("--openb", help=f"the trace's folder; default: {FOLDER} in a folder above")
    add("--jobs", type=int, default=40, help="jobs of the trace")
    add("--mean-s", type=float, default=12, help="mean run time of a job, wall")
    add("--load", type=float, default=1.3, help="requested GPU shares, relative to the available ones")
    add("--dilation", type=float, default=24, help="wall seconds per device second")
    add("--packed", action="store_true", help="gres.conf names no cores: shards fill GPU after GPU")
    modes = ("timeslice", "mps")
    add("--mode", choices=modes, default=modes[0], help="how GPUs are shared")
    add("--only", nargs="+", choices=[each.name for each in ARRANGEMENTS])
    add("--profiled", action="store_true", help="both programs are profiled once before the run, for weft")
    add("--at-most", type=float, default=900, help="longest time of an arrangement, seconds")
    add("--json", help="also write the figures to this file")


def main(given):
    """Replays the trace. Returns the exit code: 1 if a job is lost, or, under --check, an aim is
    missed.
    """
    file = trace_file(given.openb)
    if file is None:
        say(f"cluster: no {PODS} in {given.openb or FOLDER} (--openb names its folder)")
        return 1
    gpus = given.nodes * given.gpus
    trace = read_trace(file, given.jobs, gpus, given.load, given.mean_s)
    services = sum(job.service for job in trace)
    span = f"{trace[-1].arrival_s:.0f} s"
    say(f"{len(trace)} jobs ({services} services) over {span} on {gpus} simulated GPUs")
    batch = [job.run_s for job in trace if not job.service]
    whole = exclusive_s(trace, gpus) / max(sum(batch) / max(len(batch), 1), 1e-9)
    say(f"batch jobs that never waited would complete {whole:.2f}x sooner than on exclusive GPUs")
    show.warn_if_busy()
    plugin = slurm.build_plugin()
    figures = {}
    for arrangement in ARRANGEMENTS:
        if given.only and arrangement.name not in given.only:
            continue
        with jobs.workspace(given.keep) as folder:
            with ReplayCluster(folder, arrangement, given, plugin) as cluster:
                figures[arrangement.name] = Replay(cluster, arrangement, trace, given).run()
        if given.json:
            write(given, figures)
    print(table(figures))
    missed = missed_aims(figures)
    for line in missed:
        print(f"missed: {line}")
    lost = [name for name, told in figures.items() if told["not_ended"]]
    return 1 if lost or (missed and given.check) else 0


def write(given, figures):
    told = {name: str(value) for name, value in vars(given).items()}
    whole = {"options": told, "cores": os.cpu_count(), "arrangements": figures}
    with open(given.json, "w") as out:
        json.dump(whole, out, indent=1)


def table(figures):
    """The figures as a table."""
    alone = figures.get("exclusive", {}).get("request_p99_s")
    headings = [
        "arrangement", "batch mean s", "p95 s", "service mean s", "p95 s", "request p50 s", "p99 s",
        "p99 of alone", "GPU busy", "all s", "runs lost", "not ended", "cores busy", "memory GiB",
    ]  # fmt: skip
    rows = []
    for name, told in figures.items():
        ratio = told["request_p99_s"] / alone if alone and told["request_p99_s"] else None
        kinds = (told["batch"], told["service"])
        seconds = [kind[part] for kind in kinds for part in ("mean_s", "p95_s")]
        rows.append(
            [
                name,
                *(plain(each, 1) for each in seconds),
                *(plain(told[f"request_{part}_s"], 4) for part in ("p50", "p99")),
                plain(ratio, 3),
                plain(told["gpu_busy"], 3),
                plain(told["span_s"], 0),
                told["runs_lost"],
                told["not_ended"],
                plain(told["cores_busy"], 2),
                plain(told["memory_gib"], 1),
            ]
        )
    return show.table(headings, rows)


def plain(value, digits):
    return "-" if value is None else f"{value:.{digits}f}"


def missed_aims(figures):
    """The missed aims, a line each."""
    counts = {name: told["not_ended"] for name, told in figures.items()}
    missed = [f"{name}: {count} jobs did not end" for name, count in counts.items() if count]
    unused = figures.get("weft", {}).get("unused_profiles", 0)
    missed += [f"weft: {unused} jobs were served without their profile"] if unused else []
    if not {"exclusive", "weft"} <= set(figures):
        return missed
    alone, shared = figures["exclusive"], figures["weft"]
    gain = alone["batch"]["mean_s"] / max(shared["batch"]["mean_s"], 1e-9)
    if gain < AIM_BATCH:
        # The bound of every arrangement at this load: no wait, and no job slower.
        most = alone["batch"]["mean_s"] / max(alone["batch"]["run_mean_s"], 1e-9)
        told = f"aim {AIM_BATCH}x; without wait and slow-down {most:.2f}x"
        missed.append(f"batch jobs complete {gain:.2f}x sooner than exclusive, {told}")
    if alone["request_p99_s"] and shared["request_p99_s"]:
        slower = shared["request_p99_s"] / alone["request_p99_s"]
        if slower > AIM_P99:
            missed.append(f"requests' p99 is {slower:.3f}x of alone, aim {AIM_P99}x")
    return missed
