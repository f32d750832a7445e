"""Compares a policy on a real Slurm with the same policy in the lab, and checks `weft cluster`.

  scripts/cluster slurm --order --check                 40 jobs on four nodes of two GPUs
  scripts/cluster slurm --order --check --jobs 300      and 300
  scripts/cluster slurm --order --policies fifo astraea       only these policies
  scripts/cluster slurm --order --spread                jobs arrive while others run

Jobs are submitted while the partition is down, so that all of them wait. Each requests a GPU,
sleeps for a second or two, and has its own time limit. Users give their jobs random nice values, so
Slurm's own order follows no policy. `weft cluster --policy P` orders the jobs; then the partition
goes up. The order of starts is the order of slurmctld's allocations, from its log. The lab gets the
same jobs. Kendall's tau measures the agreement of the two orders: 1 the same, 0 random, -1
reversed.

Only Slurm knows the GPUs: jobs sleep, so no driver or broker is started.
"""

import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from . import jobs, paths, show, slurm, workspaces
from .scene import BOUND

AIM_TAU = 0.95
# Range of a job's sleep, s.
SHORTEST_S, LONGEST_S = 1.0, 2.0
# Factor of the sleeps for policies whose order depends on the service of earlier jobs. Slurm counts
# times in whole seconds, and a round sees an end up to a second late.
LONGER = {"astraea": 4}
# Users, with their part of the jobs.
PARTS = {"ann": 5, "bea": 3, "service": 2}
# The largest nice value that users give their jobs.
NICE = 5_000
# Seconds between two rounds, and until the first one must have ordered all jobs.
INTERVAL_S, ORDERED_S = 0.3, 60
# A requeued job's wait, s; Slurm's own default is two minutes.
REQUEUE_S = 10
STARTED = re.compile(r"(?:Allocate|Started) JobId=(\d+)")


class OrderNode(slurm.Node):
    """A node without GPUs behind its devices: jobs sleep."""

    def start(self):
        self.start_slurmd()


class OrderCluster(slurm.Cluster):
    """Slurm without weft's plugin."""

    def __init__(self, folder, **given):
        # The queue is examined whenever a job ends. sched/builtin with priority/basic orders by job
        # number, not by priority.
        conf = [
            "SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0"
            ",default_queue_depth=2000",
            "MaxJobCount=20000",
        ]
        given.setdefault("conf", conf)
        super().__init__(folder, plugin=Path(os.devnull), plugstack="# none", **given)
        self.nodes = [OrderNode(self, node.number) for node in self.nodes]

    def partition(self, state):
        self.must(["scontrol", "update", "partition=all", f"state={state}"])

    def started(self):
        """Jobs in the order in which slurmctld allocated for them."""
        log = (self.folder / "logs" / "slurmctld.log").read_text(errors="replace")
        return list(dict.fromkeys(int(number) for number in STARTED.findall(log)))

    def states(self):
        """Every job that Slurm still knows, with its state."""
        told = self.must(["squeue", "-h", "-t", "all", "-o", "%A %T"])
        return {int(number): state for number, state in map(str.split, told.splitlines())}


def queue(cluster):
    """Jobs that wait, in the order in which they would start: number, priority, nice value."""
    told = cluster.must(["squeue", "-h", "-t", "PD", "-o", "%A %Q %y"])
    rows = [tuple(map(int, line.split())) for line in told.splitlines()]
    return sorted(rows, key=lambda row: -row[1])


def nice_values(cluster):
    return {number: nice for number, _, nice in queue(cluster)}


def marks(cluster):
    """Jobs that have weft's mark and have not ended."""
    told = json.loads(cluster.must(["squeue", "--json"]))["jobs"]
    # Slurm shows ended jobs for a while.
    live = [row for row in told if row["job_state"] in ("PENDING", "RUNNING")]
    return [row["job_id"] for row in live if "weft:" in row["admin_comment"]]


class Adaptor:
    """`weft cluster` in a cluster, as root."""

    def __init__(self, cluster, *words):
        cluster.starts += 1
        self.cluster = cluster
        command = [cluster.bin / "weft", "cluster", *words]
        self.words = " ".join(map(str, command))
        self.job = cluster.daemon(f"policy{cluster.starts}", command, {})

    def lines(self):
        return self.job.stdout().decode().splitlines()

    def signal(self, name):
        """Sends a signal to it, and to no other process of the cluster."""
        own = [pid for pid, words in self.cluster.processes().items() if words == self.words]
        assert len(own) == 1, f"{own} are {self.words}"
        self.cluster.must(["kill", f"-{name}", own[0]])

    def end(self):
        """Ends it as a service manager does."""
        self.signal("TERM")
        assert self.job.wait(BOUND) == 0, self.job.explain()
        return self.lines()

    def wait_ordered(self):
        """Waits until a round had nothing to change."""

        def quiet():
            lines = [line for line in self.lines() if " commands, " in line]
            return not self.job.running() or (lines and "; 0 commands, " in lines[-1])

        there = jobs.wait_until(quiet, ORDERED_S, step=0.1)
        assert there and self.job.running(), self.job.explain()


class OrderJob(NamedTuple):
    """A job: its user, seconds that it sleeps, its limit, and its arrival."""

    user: str
    run_s: float
    limit_min: int
    nice: int
    came_s: float


def drawn(count, seed, spread_s, longer=1):
    """`count` random jobs. `spread_s`: the time over which they arrive. `longer`: factor of the
    sleeps.
    """
    chance = random.Random(seed)
    limits = list(range(1, count + 1))
    chance.shuffle(limits)
    users = chance.choices(list(PARTS), list(PARTS.values()), k=count)
    return [
        OrderJob(
            user,
            round(longer * chance.uniform(SHORTEST_S, LONGEST_S), 2),
            limit,
            chance.randrange(NICE),
            spread_s * number / count,
        )
        for number, (user, limit) in enumerate(zip(users, limits, strict=True))
    ]


def tau(first, second):
    """Kendall's tau of two orders of the same items."""
    place = {each: at for at, each in enumerate(second)}
    ranks = [place[each] for each in first]
    pairs = len(ranks) * (len(ranks) - 1) // 2
    agree = sum(
        ranks[later] > rank for at, rank in enumerate(ranks) for later in range(at + 1, len(ranks))
    )
    return 2 * agree / pairs - 1 if pairs else 1.0


def policies():
    """The policies of `weft cluster`."""
    command = [paths.WEFT, "cluster", "--help"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"--policy <.*?\[possible values: (.*?)\]", told, re.DOTALL)
    return found[1].replace(",", " ").split()


def build_lab():
    """The lab's program that says in which order jobs start."""
    command = workspaces.LAB.build("--release", "--quiet")
    subprocess.run(command, cwd=paths.ROOT, stdin=subprocess.DEVNULL, check=True)
    return paths.TARGET / "release" / "weft-cluster-order"


def of_lab(program, policy, nodes, gpus, open_s, rows):
    """The lab's order of these jobs: (number, job, seconds of arrival)."""
    question = {
        "policies": [policy],
        "nodes": nodes,
        "gpus": gpus,
        "open_s": open_s,
        "jobs": [
            {
                "id": number,
                "tenant": slurm.USERS[job.user],
                "gpus": 1,
                "came_s": came_s,
                "run_s": job.run_s,
                "limit_min": job.limit_min,
            }
            for number, job, came_s in rows
        ],
    }
    done = subprocess.run(
        [program], input=json.dumps(question), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the lab has no order: {done.stderr}")
    return json.loads(done.stdout)[policy]


def submit(cluster, job):
    return cluster.sbatch(
        job.user,
        f"exec sleep {job.run_s}",
        "--gres=gpu:1",
        f"--time={job.limit_min}",
        f"--nice={job.nice}",
        "-o",
        os.devnull,
    )


def wait_ended(cluster, numbers, bound):
    """Waits until all these jobs have ended well."""
    numbers = set(numbers)

    def ended():
        states = cluster.states()
        return all(states.get(number) == "COMPLETED" for number in numbers)

    there = jobs.wait_until(ended, bound, step=0.5)
    wrong = {
        number: state
        for number, state in cluster.states().items()
        if number in numbers and state != "COMPLETED"
    }
    assert there, f"not ended well: {dict(list(wrong.items())[:5])}\n{cluster.explain()}"


def play(cluster, program, policy, given):
    """Runs all jobs under a policy. Returns the results as a table of plain values."""
    gpus = len(cluster.nodes) * cluster.gpus
    longer = LONGER.get(policy, 1)
    mean_s = longer * (SHORTEST_S + LONGEST_S) / 2
    spread_s = given.jobs * mean_s / gpus / 2 if given.spread else 0
    wave = drawn(given.jobs, given.seed, spread_s, longer)
    cluster.partition("down")
    words = ["--policy", policy, "--interval", f"{INTERVAL_S}s", "--commands", "2000", "-v"]
    adaptor, rows, begin = None, [], time.monotonic()
    first = wave[: gpus * 2] if given.spread else wave
    for job in first:
        rows.append((submit(cluster, job), job, time.monotonic() - begin))
    own = [number for number, *_ in queue(cluster)]
    # Without the adaptor Slurm uses its own order, which must differ from the lab's.
    if not given.without:
        adaptor = Adaptor(cluster, *words)
        adaptor.wait_ordered()
    open_s = time.monotonic() - begin
    cluster.partition("up")
    for job in wave[len(first) :]:
        while (left := open_s + job.came_s - (time.monotonic() - begin)) > 0:
            time.sleep(left)
        rows.append((submit(cluster, job), job, time.monotonic() - begin))
    numbers = [number for number, *_ in rows]
    wait_ended(cluster, numbers, BOUND + 10 * given.jobs * longer * LONGEST_S / gpus)
    told = {"commands": 0, "failed": 0}
    if adaptor:
        said = adaptor.end()
        told["commands"] = sum(line.startswith("  scontrol ") for line in said)
        told["failed"] = sum(line.startswith("  failed: ") for line in said)
    came = set(numbers)
    there = [number for number in cluster.started() if number in came]
    lab = of_lab(program, policy, len(cluster.nodes), cluster.gpus, open_s, rows)
    at = [number for number in numbers if number in set(own)]
    kept = [number for number in lab if number in set(own)]
    return {
        **told,
        "jobs": len(numbers),
        "tau": tau(there, lab),
        "tau_own": tau(own, kept),
        "tau_arrival": tau(at, kept),
        "span_s": time.monotonic() - begin - open_s,
    }


def crash(cluster, given):
    """Kills the adaptor while jobs wait: no job is lost, held or left behind."""
    wave = drawn(given.jobs, given.seed + 1, 0)
    cluster.partition("down")
    numbers = [submit(cluster, job) for job in wave]
    words = ["--policy", "shortest-remaining", "--interval", f"{INTERVAL_S}s", "--commands", "2000"]
    adaptor = Adaptor(cluster, *words)
    adaptor.wait_ordered()
    cluster.partition("up")
    some = jobs.wait_until(
        lambda: sum(number in numbers for number in cluster.started()) >= given.jobs // 4, BOUND
    )
    assert some, cluster.explain()
    adaptor.signal("KILL")
    adaptor.job.wait(BOUND)
    waits = len(queue(cluster))
    wait_ended(cluster, numbers, BOUND + 10 * given.jobs * LONGEST_S / 8)
    assert waits, "all jobs had started before"
    return f"killed with {waits} of {len(numbers)} jobs waiting; all ended well"


def away(cluster, given):
    """Stops slurmctld and starts it again. At the end all nice values are those that users gave."""
    file = cluster.folder / "controller" / "part_state"
    cluster.partition("down")
    # Waits for a write of this change; an earlier write does not count. Without it the partition
    # would be up again after slurmctld's restart.
    begin = time.time()
    saved = jobs.wait_until(lambda: file.exists() and file.stat().st_mtime > begin, BOUND, step=0.2)
    assert saved, cluster.explain()
    numbers = [submit(cluster, job) for job in drawn(10, given.seed + 2, 0)]
    before = nice_values(cluster)
    words = ["--policy", "shortest-remaining", "--interval", f"{INTERVAL_S}s"]
    adaptor = Adaptor(cluster, *words, "--command-time", "2s")
    adaptor.wait_ordered()
    assert nice_values(cluster) != before and marks(cluster)
    cluster.wait_saved()
    cluster.controller.kill()
    said = jobs.wait_until(lambda: "trying again" in adaptor.job.stderr(), BOUND, step=0.2)
    assert said, adaptor.job.explain()
    cluster.start_controller()
    cluster.wait_nodes()
    back = jobs.wait_until(lambda: "Slurm answers again" in adaptor.lines(), BOUND, step=0.2)
    assert back, adaptor.job.explain()
    adaptor.end()
    assert (nice_values(cluster), marks(cluster)) == (before, []), queue(cluster)
    cluster.partition("up")
    wait_ended(cluster, numbers, BOUND)
    return f"{len(before)} nice values as they were"


def requeue(cluster, given):
    """A short job arrives while long jobs use all GPUs. One of these makes room, and runs again
    later.
    """
    gpus = len(cluster.nodes) * cluster.gpus
    long = OrderJob("ann", 12.0, 60, 0, 0.0)
    cluster.partition("up")
    numbers = [submit(cluster, long) for _ in range(gpus)]
    running = jobs.wait_until(
        lambda: [cluster.states()[number] for number in numbers] == ["RUNNING"] * gpus, BOUND
    )
    assert running, cluster.explain()
    short = submit(cluster, OrderJob("bea", 1.0, 1, 0, 0.0))
    words = ["--policy", "shortest-remaining", "--interval", f"{INTERVAL_S}s"]
    adaptor = Adaptor(cluster, *words, "--pause", "requeue", "-v")
    wait_ended(cluster, [short], BOUND)
    adaptor.end()
    told = [line for line in adaptor.lines() if "scontrol requeue" in line]
    wait_ended(cluster, numbers, 2 * BOUND)
    restarts = [int(cluster.job(number).get("Restarts", 0)) for number in numbers]
    assert (len(told), sorted(restarts)) == (1, [0] * (gpus - 1) + [1]), (told, restarts)
    return told[0].strip()


CASES = (crash, away, requeue)


def policy_orders_the_queue(play):
    """`weft cluster` with jobs and brokers; wrong uses; and the end, when all changes are reverted.
    """
    cluster = play.cluster
    weft = [cluster.bin / "weft", "cluster"]
    runs = play.work("ann", "--gpu-mem=4G")
    play.client(runs[0])
    cluster.must(["scontrol", "update", "partition=all", "state=down"])
    limits = (7, 3, 9, 5)
    numbers = [
        cluster.sbatch("bea", "true", "--gres=shard:1", f"--time={limit}", f"--nice={99 - limit}")
        for limit in limits
    ]
    before = nice_values(cluster)
    shortest = [*weft, "--policy", "shortest-remaining", "--once"]

    def refused(code, words, *command, user=None):
        done = cluster.run([*command], user=user)
        lines = done.stderr.splitlines()
        assert (done.returncode, len(lines)) == (code, 1) and words in lines[0], done

    refused(1, "operator", *shortest, user="ann")
    refused(1, "is not in PATH", "env", "PATH=/nonexistent", *shortest)
    refused(2, "'tiresias'", *weft, "--policy", "tiresas")
    refused(2, "no such partition; there are all", *shortest, "--partition", "gpus")
    told = cluster.must([*shortest, "--dry-run"])
    assert "not carried out" in told and nice_values(cluster) == before, told
    # Each node's broker, as ssh would reach it.
    ask = f"WEFT_SOCKET={cluster.folder}/{{node}}/run/weft/broker.sock {weft[0]} status --json"
    told = cluster.must([*shortest, "--brokers", ask])
    assert "service measured by 1 of 1 brokers" in told and "0 failed" in told, told
    wanted = [number for _, number in sorted(zip(limits, numbers, strict=True))]
    assert [number for number, *_ in queue(cluster)] == wanted, queue(cluster)
    cluster.must([*weft, "--undo"])
    assert (nice_values(cluster), marks(cluster)) == (before, []), queue(cluster)
    cluster.must(["scontrol", "update", "partition=all", "state=up"])
    play.finish(runs, *((number, runs[1]) for number in numbers))


# For tests/cluster: seconds, on the cluster that its other cases use.
SHORT = [policy_orders_the_queue]


def options(parser):
    """Adds the comparison's own options; `--jobs` and `--json` are also the replay's."""
    add = parser.add_argument
    add("--order", action="store_true", help="compare a policy on Slurm with the same one in the lab")
    add("--policies", nargs="+", help="only these; default: all of weft cluster's")
    add("--spread", action="store_true", help="jobs arrive while others run")
    add("--without", action="store_true", help="without weft cluster: Slurm's own order")
    add("--seed", type=int, default=7, help="of the jobs")


def main(given):
    """Compares the orders. Returns the exit code: under --check 1 if an order differs."""
    known = policies()
    wanted = given.policies or known
    unknown = [name for name in wanted if name not in known]
    if unknown:
        print(f"cluster: {unknown[0]}: there are {', '.join(known)}", file=sys.stderr)
        return 2
    show.warn_if_busy()
    program = build_lab()
    figures, missed = {}, []
    with jobs.workspace(given.keep) as folder:
        sizes = {"nodes": given.nodes, "gpus": given.gpus, "requeue_s": REQUEUE_S}
        with OrderCluster(folder, **sizes) as cluster:
            for policy in wanted:
                figures[policy] = play(cluster, program, policy, given)
                print(f"{policy}: tau {figures[policy]['tau']:.4f}", file=sys.stderr, flush=True)
            for case in () if given.without else CASES:
                print(f"{case.__name__}: {case(cluster, given)}", file=sys.stderr, flush=True)
    headings = ["policy", "jobs", "tau", "tau of Slurm's own order", "of arrival"]
    headings += ["commands", "failed", "s"]
    rows = [
        [
            name,
            told["jobs"],
            f"{told['tau']:.4f}",
            f"{told['tau_own']:.4f}",
            f"{told['tau_arrival']:.4f}",
            told["commands"],
            told["failed"],
            f"{told['span_s']:.0f}",
        ]
        for name, told in figures.items()
    ]
    print(show.table(headings, rows))
    if given.json:
        Path(given.json).write_text(json.dumps({"jobs": given.jobs, "policies": figures}, indent=1))
    for name, told in figures.items():
        if told["tau"] < AIM_TAU:
            missed.append(f"{name}: tau {told['tau']:.4f}, aim {AIM_TAU}")
        if told["failed"]:
            missed.append(f"{name}: {told['failed']} commands failed")
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed and given.check else 0
