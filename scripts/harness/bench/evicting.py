# SPDX-License-Identifier: MIT OR Apache-2.0
"""Movable memory that leaves for a service and comes back, on one simulated GPU.

Sizes are a 64th of those of an A100 with 40 GiB. A second of the device takes many of this machine:
the simulated link takes most of a move's time, and the copies of real bytes little. The rate of the
link is measured in the same run, by the job's own copies.
"""

import statistics
import time

from fixtures import compiled

from .. import jobs, paths

PROGRAM = paths.ROOT / "tests" / "regressions" / "programs" / "movable_bench.c"
MIB, GIB = 1 << 20, 1 << 30
# The A100's memory and that of the service, GiB, and the divisor of both.
DEVICE_GIB, SERVICE_GIB, SCALE = 40, 30, 64
# Seconds a second of the device.
DILATION = 128
# Memory of a context, and of small things of a job.
CONTEXT, SPARE = 8 * MIB, 8 * MIB
# Bound that no run reaches, s.
BOUND = 120.0
# Time without a call after which the model server's memory leaves.
IDLE = "500ms"
# Sizes of allocations, MiB, and how many of each a process makes.
TAKEN_MIB, TAKEN = (2, 64), 400


class Stage:
    """A device with room for three jobs' contexts, and a broker."""

    def __init__(self, folder, scale=SCALE, dilation=DILATION):
        self.folder, self.scale = folder, scale
        self.program = compiled.program(folder, PROGRAM)
        memory = DEVICE_GIB * GIB // scale + 3 * (CONTEXT + SPARE)
        config = folder / "device.toml"
        config.write_text(f"[device]\ncontext_memory = {CONTEXT}\n")
        self.device = jobs.Device(folder, config=config, dilation=dilation, memory=memory)
        self.broker = jobs.Broker(folder, self.device)
        self.jobs = []

    def __enter__(self):
        self.broker.start()
        return self

    def __exit__(self, *_):
        for job in self.jobs:
            job.kill()
        self.broker.stop()

    def mib(self, gib):
        """An A100's GiB on this device, in whole blocks of 64 MiB."""
        return max(64, gib * 1024 // self.scale // 64 * 64)

    def start(self, name, role, mib, *words, priority, **more):
        ready = self.folder / f"{name}.ready"
        preload = jobs.preload(self.broker.variables(), priority=priority)
        mine = {**jobs.clean_environment(), **self.device.environment(), **preload}
        command = [self.program, role, ready, mib, *words]
        mine |= {"WEFT_BACKING": "movable", **more}
        job = jobs.Job(command, environment=mine, folder=self.folder, name=name)
        self.jobs.append(job)
        return job

    def stands(self, job):
        ready = self.folder / f"{job.name}.ready"
        self.must(job, lambda: ready.exists() or not job.running())
        if not job.running():
            raise RuntimeError(job.explain())

    def must(self, job, holds):
        if not jobs.wait_until(holds, BOUND):
            raise RuntimeError(f"{job.name} hangs\n{job.explain()}")

    def ends(self, job):
        """Words that it printed, by name."""
        if job.wait(BOUND):
            raise RuntimeError(f"{job.stdout()!r}\n{job.explain()}")
        return self.words(job)

    def words(self, job):
        given = job.stdout().decode().split()
        return dict(zip(given[::2], given[1::2], strict=True))

    def eviction(self, job):
        rows = (self.broker.status() or {"clients": []})["clients"]
        return next((row["eviction"] for row in rows if row["pid"] == job.pid), None) or {}

    def taken(self, rounds):
        """Microseconds that an allocation and its free take in plain and in movable memory, by
        size: medians of a process, and of the rounds their median. Both kinds have a process in
        each round."""
        found = {}
        for mib in TAKEN_MIB:
            times = {"device": [], "movable": []}
            for number in range(rounds):
                for backing, kept in times.items():
                    job = self.start(f"{backing}{mib}-{number}", "takes", mib, TAKEN, priority=7, WEFT_BACKING=backing)
                    kept.append({word: float(figure) for word, figure in self.ends(job).items()})
            own = {}
            for word in ("taken_us", "freed_us"):
                plain, movable = ([each[word] for each in times[backing]] for backing in times)
                more = statistics.median(there - here for here, there in zip(plain, movable, strict=True))
                own[word] = {"plain": statistics.median(plain), "movable": statistics.median(movable), "more": more}
            found[str(mib)] = own
        return found

    def server(self):
        """A model server of 30 GiB is idle, leaves, and answers a request. Returns the rates of the
        link, bytes/s, the bytes that moved, and the seconds of each request."""
        running = self.folder / "server.running"
        running.touch()
        job = self.start("server", "server", self.mib(SERVICE_GIB), running, priority=0, WEFT_EVICT_IDLE=IDLE)
        self.stands(job)
        wakes = []
        for number in range(1, 4):
            self.must(job, lambda: self.eviction(job).get("state") == "evicted")
            moved = self.eviction(job)["bytes"]
            (self.folder / "server.ready.go").touch()
            self.must(job, lambda number=number: job.stdout().count(b"wake") == number or not job.running())
            wakes.append(float(self.words(job)["wake"]) / 1e3)
        told = self.eviction(job)
        running.unlink()
        words = self.ends(job)
        rates = {way: float(words[way]) * 1e3 for way in ("to_host", "to_device")}
        return {**rates, "bytes": moved, "wakes_s": wakes, "wakes": told["wakes"]}

    def room(self, rounds):
        """Two background jobs hold all memory, and a service of 30 GiB starts. Returns their hashes
        without it and with it, the bytes that moved, and the seconds until the service's first
        answer."""
        each = DEVICE_GIB // 2
        more = {"WEFT_MEMORY": f"{self.mib(each)}MiB"}
        alone = []
        for number in range(2):
            job = self.start(f"alone{number}", "batch", self.mib(each), rounds + number, priority=7, **more)
            alone.append(self.ends(job)["hash"])
        batch = []
        for number in range(2):
            batch.append(self.start(f"batch{number}", "batch", self.mib(each), rounds + number, priority=7, **more))
        for job in batch:
            self.stands(job)
        begun = time.monotonic()
        own = {"WEFT_MEMORY": f"{self.mib(SERVICE_GIB)}MiB", "WEFT_BACKING": "device"}
        service = self.start("service", "service", self.mib(SERVICE_GIB), priority=0, **own)
        self.stands(service)
        away = [self.eviction(job).get("bytes", 0) for job in batch]
        (self.folder / "service.ready.go").touch()
        words = self.ends(service)
        waited = [job.stderr().count("moves to the host") for job in batch]
        then = [self.ends(job)["hash"] for job in batch]
        first, admitted = (float(words[word]) / 1e3 - begun for word in ("answered", "context"))
        found = {"alone": alone, "then": then, "bytes": sum(away), "moved": away, "lines": waited}
        return {**found, "first_s": first, "admitted_s": admitted}
