"""Cases of weft under Slurm that take minutes: `scripts/cluster slurm --long`.

Slurm itself waits before it considers a node lost, and before it restarts a requeued job. A PyTorch
service and two users' training need their own time on the simulated GPU.
"""

import json
import signal

from . import cases, jobs, paths, show, slurm, slurm_cases
from .scene import BOUND

# A requeued job's wait, s; Slurm's own default is two minutes. MOVES_S: longest time until a lost
# node's job begins elsewhere. It includes that wait and SlurmdTimeout (15 s), which slurmctld
# checks about every 100 s.
REQUEUE_S = 20
MOVES_S = 400
# Pause of a client between its bursts, us: it runs for minutes, and only needs to show progress.
PAUSE_US = 20_000

# The demo's service and training, and the slow-down of the simulated GPU relative to a real one.
DILATION = 20
REQUESTS, WARM_UP, HOST_MS = 100, 5, 5
# Starting PyTorch three times on two cores, s.
STARTS_S = 240


def node_is_lost(play):
    """A node is lost with all its processes: its batch job is requeued and ends well elsewhere."""
    cluster = play.cluster
    moves = play.work("ann", "--gpu-mem=10G", "--requeue", pause=PAUSE_US)
    name = play.client(moves[0])["node"]
    lost = next(node for node in cluster.nodes if node.name == name)
    other = next(node for node in cluster.nodes if node is not lost)
    stays = play.work("bea", "--gpu-mem=10G", "-w", other.name, pause=PAUSE_US)
    play.client(stays[0])
    pids = processes_of(cluster, moves)
    assert len(pids) >= 2, f"no step and no client of it in {cluster.processes()}"
    lost.slurmd.kill()
    cluster.must(["kill", "-9", *map(str, pids)])
    lost.broker.kill()
    lost.keeper.kill()
    play.progresses(stays[0])

    def elsewhere():
        rows = [row for row in play.clients() if row["gang"].endswith(f"slurm-{moves[0]}")]
        return rows and rows[0]["node"] != lost.name

    there = jobs.wait_until(elsewhere, MOVES_S, step=0.5)
    assert there, f"{cluster.job(moves[0])}\n{cluster.explain()}"
    told = cluster.job(moves[0])
    assert (told["JobState"], told["Restarts"]) == ("RUNNING", "1"), told
    play.progresses(moves[0], stays[0])
    device = lost.run / "simgpu" / f"{lost.name}.sock"
    assert jobs.wait_until(lambda: not device.exists(), BOUND), "the lost node's device stays"
    lost.start()
    cluster.wait_nodes()
    play.finish(moves, stays)


def processes_of(cluster, job):
    """The processes of a job's step and of its client."""
    number, file = job
    words = (f"slurmstepd: [{number}.", str(file))
    return [
        pid for pid, line in cluster.processes().items() if any(word in line for word in words)
    ]


def torch_service_beside_training(folder):
    """An unmodified PyTorch service and two users' training on one GPU, only by sbatch."""
    if not paths.python("torch").exists():
        raise cases.Skip("there is no PyTorch (scripts/setup torch)")
    config = (paths.ROOT / "scripts" / "workloads" / "durations.toml").read_text()
    options = [*slurm.BROKER_OPTIONS, "--dilation", str(DILATION)]
    sizes = {"nodes": 1, "gpus": 1, "dilation": DILATION}
    # A user may not read the folder of this run's Python.
    more = {
        "python": paths.python("torch").resolve().parents[1],
        "site": paths.site_packages("torch").resolve(),
        "workloads": paths.ROOT / "scripts" / "workloads",
    }
    given = {"broker_options": options, "config": config, "more": more}
    with slurm.Cluster(folder, **given, **sizes) as cluster:
        return TorchPlay(cluster).play()


class TorchPlay(slurm_cases.Play):
    """A service and two users' training, in PyTorch."""

    def __init__(self, cluster):
        super().__init__(cluster, slurm.python())
        self.place = cluster.bin

    def submit(self, user, words, *options):
        home = self.cluster.folder / "home" / user
        script = "\n".join(
            [
                "export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1",
                f"export PYTHONHOME={self.place}/python PYTHONPATH={self.place}/site",
                f"export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:{self.place}/python/lib",
                f"cd {self.place}/workloads",
                f"exec {self.place}/python/bin/python3 {' '.join(map(str, words))}",
            ]
        )
        return self.cluster.sbatch(user, script, f"--output={home}/slurm-%j.out", *options)

    def serve(self, name):
        """Submits the service. Returns its number and the file with its requests' times."""
        file = self.cluster.folder / "home" / "service" / f"{name}.json"
        words = ["service.py", "--requests", REQUESTS, "--warm-up", WARM_UP, "--times", file]
        words += ["--host-ms", HOST_MS * DILATION, "--batch", 4]
        return self.submit("service", words, "--gpu-mem=8G", "--gpu-priority=high"), file

    def train(self, user):
        """Submits a training that runs until it is asked to end."""
        home = self.cluster.folder / "home" / user
        words = ["training.py", "--seconds", 3600, "--times", home / "training.json"]
        words += ["--ready", home / "ready"]
        return self.submit(user, words, "--gpu-mem=8G", "--gpu-priority=low"), home

    def play(self):
        cluster = self.cluster
        number, file = self.serve("alone")
        self.ended(number)
        alone = json.loads(file.read_text())["latencies"]
        training = [self.train(user) for user in ("ann", "bea")]
        for number, home in training:
            ready = jobs.wait_until((home / "ready").exists, STARTS_S, step=0.5)
            assert ready, f"job {number} does not train\n{self.said(number)}\n{cluster.explain()}"
        service, file = self.serve("beside")

        def ranked():
            # A gang's name has its user in front.
            modes = {row["gang"].rpartition("-")[2]: row["mode"] for row in self.clients()}
            wanted = {str(number): "background" for number, _ in training}
            return modes == {**wanted, str(service): "foreground"}

        both = jobs.wait_until(ranked, STARTS_S, step=0.5)
        assert both, f"{self.clients()}\n{self.said(service)}"
        self.progresses(*(number for number, _ in training))
        self.ended(service)
        beside = json.loads(file.read_text())["latencies"]
        assert len(alone) == len(beside) == REQUESTS
        steps = []
        for number, home in training:
            cluster.must(["scancel", "--batch", f"--signal={signal.SIGTERM.name[3:]}", number])
            self.ended(number)
            steps.append(len(json.loads((home / "training.json").read_text())["ends"]))
        assert all(steps), steps
        self.clean()
        parts = (("p50", 0.5), ("p99", 0.99))
        ratios = [
            f"{name} {show.quantile(beside, part) / show.quantile(alone, part):.3f}x of alone"
            for name, part in parts
        ]
        return f"requests: {', '.join(ratios)}; training steps: {steps[0]} and {steps[1]}"

    def said(self, number):
        users = ("ann", "bea", "service")
        return "".join(self.cluster.output(user, number) for user in users)[-2000:]

    def ended(self, number):
        state = self.cluster.wait_state(number, "COMPLETED", "FAILED", "CANCELLED", bound=STARTS_S)
        assert state == "COMPLETED", f"job {number} is {state}\n{self.said(number)}"


# Cases that run on the cluster of the other cases, and cases with their own cluster.
SHARED = [node_is_lost]
OWN = [torch_service_beside_training]
