# SPDX-License-Identifier: MIT OR Apache-2.0
"""A service attaches while a batch job runs, on one simulated GPU, many times.

Both are the replay's clients (tests/fixtures/slurm_replay.py), with its kernel times, without
Slurm. A request's time is taken twice: by the service's own clock, and by the device's log. The log
separates the device's work from the effect of busy cores.
"""

import statistics
import sys

from fixtures import slurm_replay

from .. import devicelog, jobs, paths, show

DILATION = 24
# GPU memory of each, bytes, and the amount that each declares to weft: a context needs some.
MEMORY, TOLD = 20 << 30, "22GiB"
REQUEST_S = slurm_replay.REQUEST_KERNELS * slurm_replay.SERVICE_NS / 1e9 * DILATION
# Mean time between requests, s: the replay's for a service that requested a whole GPU.
GAP_S = REQUEST_S * (1 / slurm_replay.SERVICE_LOAD - 1)
# Bound that no run reaches, s.
BOUND = 200.0
ENDLESS = 10**6


class Stage:
    """A device and a broker. `profiled`: both programs are profiled first."""

    def __init__(self, folder, *, profiled):
        self.folder, self.profiled = folder, profiled
        self.log = folder / "device.log"
        config = folder / "device.toml"
        config.write_text(slurm_replay.device_config("timeslice"))
        self.device = jobs.Device(folder, config=config, dilation=DILATION, log=self.log)
        self.device.settings["SIMGPU_DEVICES"] = f"{slurm_replay.slurm.SHARDS}GiB"
        self.broker = jobs.Broker(folder, self.device)
        self.profiles = {}

    def __enter__(self):
        self.broker.start()
        if self.profiled:
            given = {"service": slurm_replay.PROFILED_REQUESTS, "batch": slurm_replay.PROFILED_BURSTS}
            for kind, count in given.items():
                self.profiles[kind] = self.profile(kind, count)
        return self

    def __exit__(self, *_):
        self.broker.stop()

    def command(self, kind, count, name, seed=0):
        words = [sys.executable, "-I", "-S", slurm_replay.PROGRAM, kind, self.folder / name]
        words += ["--image", slurm_replay.KERNELS, "--memory", MEMORY]
        if kind == "service":
            words += ["--requests", count, "--kernels", slurm_replay.REQUEST_KERNELS]
            return [*words, "--gap-s", GAP_S, "--seed", seed]
        return [*words, "--bursts", count, "--kernels", slurm_replay.BURST_KERNELS, "--gap-s", 0]

    def profile(self, kind, count):
        file = self.folder / f"{kind}.profile"
        command = [paths.WEFT, "profile", "--name", kind, "--out", file, "--"]
        command += self.command(kind, count, f"profiled-{kind}")
        mine = {**jobs.clean_environment(), **self.device.environment(), **self.broker.variables()}
        job = jobs.Job(command, environment=mine, folder=self.folder, name=f"profile-{kind}")
        if job.wait(BOUND):
            raise RuntimeError(job.explain())
        return str(file)

    def job(self, kind, count, name, priority, seed=0):
        preload = jobs.preload(
            self.broker.variables(), priority=priority, profile=self.profiles.get(kind)
        )
        mine = {**jobs.clean_environment(), **self.device.environment(), **preload}
        command = self.command(kind, count, name, seed)
        return jobs.Job(
            command, environment={**mine, "WEFT_MEMORY": TOLD}, folder=self.folder, name=name
        )

    def play(self, number, requests, *, beside):
        """Runs one service. Returns its requests' times by its own clock and by the device's log,
        relative to a request without other jobs.
        """
        batch = self.job("batch", ENDLESS, f"batch{number}", 7) if beside else None
        if batch and not jobs.wait_until(lambda: self.launched(batch), BOUND):
            raise RuntimeError(batch.explain())
        service = self.job("service", requests, f"service{number}", 2, seed=number + 1)
        try:
            if service.wait(BOUND):
                raise RuntimeError(service.explain())
            # A status request makes the device write its log out.
            self.device.status()
        finally:
            if batch:
                batch.kill()
        if trouble := [line for line in self.broker.job.stderr().splitlines() if " warn: p" in line]:
            raise RuntimeError(trouble[0])
        (end,) = [line for line in jobs.lines_of(self.folder / service.name) if line["event"] == "end"]
        return [each / REQUEST_S for each in end["latencies"]], self.by_the_log(service)

    def launched(self, job):
        status = self.broker.status() or {"clients": []}
        return any(row["pid"] == job.pid and row["launches"] > 1_000 for row in status["clients"])

    def by_the_log(self, service):
        """For each request the time from its first launch to its last kernel's end."""
        mine = [each for each in devicelog.read(self.log) if each["pid"] == service.pid]
        kernels = [each for each in mine if each["op"] == "kernel"]
        kernels.sort(key=lambda each: each["seq"])
        count = slurm_replay.REQUEST_KERNELS
        each_request = [kernels[at : at + count] for at in range(0, len(kernels), count)]
        alone_ns = REQUEST_S * 1e9 / DILATION
        return [(of[-1]["end"] - of[0]["submitted"]) / alone_ns for of in each_request]


WHAT = ("first_mean", "first_most", "mean", "p99", "most")


def figures(runs):
    """Figures of first requests and of all, by the service's clock and by the device's log."""
    told = {}
    for name, at in (("clock", 0), ("log", 1)):
        first, every = [run[at][0] for run in runs], [each for run in runs for each in run[at]]
        of_first = (statistics.fmean(first), max(first))
        of_all = (statistics.fmean(every), show.quantile(every, 0.99), max(every))
        told[name] = dict(zip(WHAT, of_first + of_all, strict=True))
    return told
