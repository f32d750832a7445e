"""The scene of a case: a device, a broker and jobs, in its own folder. Every wait is bounded."""

import json
import subprocess
from pathlib import Path

from . import jobs, paths

CLIENT = paths.BUILT / "weft-test-client"
COMPANION = paths.BUILT / "weft-test-companion"
# Bound of anything that takes a second on an idle machine: two busy cores stretch it.
BOUND = 60.0


def missing():
    """A file that these scenes need and that is not built, or None."""
    absent = [needed for needed in (CLIENT, COMPANION, paths.LIBWEFT, paths.WEFT, paths.SIMGPU_CUDA, paths.SIMGPU_DEVICE) if not needed.exists()]
    return f"{absent[0]} is not built: run scripts/layout" if absent else None


class Scene:
    """A device, a broker and jobs in their own folder."""

    def __init__(self, folder, options, policy=None):
        self.folder = Path(folder)
        self.options = options
        self.device = jobs.Device(self.folder)
        self.broker = jobs.Broker(self.folder, self.device, policy=policy)
        self.running = self.folder / "running"
        self.running.touch()
        self.jobs = []
        self.number = 0

    def open(self):
        """Does nothing: a case starts its broker itself."""

    def close(self):
        self.running.unlink(missing_ok=True)
        for job in self.jobs:
            job.kill()
        self.broker.stop()

    def environment(self, **preload):
        variables = jobs.preload(self.broker.variables(), **preload)
        return {**jobs.clean_environment(), **self.device.environment(), **variables}

    def job(self, command, name=None, *, more=None, limits=None, **preload):
        self.number += 1
        name = name or f"job{self.number}"
        environment = {**self.environment(**preload), **(more or {})}
        job = jobs.Job(command, environment=environment, folder=self.folder, name=name, limits=limits)
        self.jobs.append(job)
        return job

    def client(self, name=None, **options):
        """The checking client: its results are wrong if an operation is lost or late."""
        self.number += 1
        name = name or f"client{self.number}"
        return self.job([CLIENT, self.folder / f"{name}.json"], name, **options)

    def companion(self, name, *, pause=500, more=None, **options):
        """A job that launches until the scene ends."""
        ready = self.folder / f"{name}.ready"
        command = [COMPANION, "--while", self.running, "--ready", ready, "--result", self.folder / f"{name}.json", "--pause", str(pause)]
        job = self.job(command, name, more=more, **options)
        assert jobs.wait_until(lambda: ready.exists() or not job.running(), BOUND), f"{name} did not get ready\n{job.explain()}"
        assert job.running(), f"{name} ended\n{job.explain()}"
        return job

    def finish(self, job, code=0):
        got = job.wait(BOUND)
        assert not job.timed_out, f"{job.name} hangs\n{job.explain()}"
        assert got == code, f"{job.name}: exit {got}, not {code}\n{job.explain()}"

    def finish_companions(self, *companions):
        self.running.unlink()
        for job in companions:
            self.finish(job)
            assert json.loads((self.folder / f"{job.name}.json").read_text())["launches"] > 0
            assert job.stdout() == b"", f"{job.name}: something wrote to its stdout: {job.stdout()[:200]}"

    def status(self):
        seen = self.broker.status()
        assert seen is not None, "weft status has no answer\n" + self.broker.job.explain()
        return seen

    def row(self, job):
        return next((row for row in self.status()["clients"] if row["pid"] == job.pid), None)

    def attached(self, *wanted):
        """Waits until all these jobs are attached."""
        pids = {job.pid for job in wanted}

        def there():
            seen = self.broker.status()
            return seen is not None and pids <= {row["pid"] for row in seen["clients"]}

        assert jobs.wait_until(there, BOUND, step=0.1), f"not attached: {[job.name for job in wanted if self.row(job) is None]}"

    def progresses(self, job):
        """Checks that it still launches, by its counter in the broker."""
        before = self.row(job)["launches"]
        assert jobs.wait_until(lambda: (self.row(job) or {"launches": 0})["launches"] > before, BOUND, step=0.1), f"{job.name} stands still"


def says(job, *words):
    """Checks that one line of its stderr has all these words."""
    found = any(all(word.lower() in line.lower() for word in words) for line in job.stderr().splitlines())
    assert found, f"no line with {words}\n{job.explain()}"


def weft(scene, *arguments, bound=BOUND, more=None):
    return weft_in({**jobs.clean_environment(), **scene.device.environment(), **scene.broker.variables(), **(more or {})}, *arguments, bound=bound)


def weft_in(environment, *arguments, bound=BOUND):
    """Runs a command of weft in that environment."""
    return subprocess.run(
        [str(paths.WEFT), *map(str, arguments)],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=bound,
        check=False,
    )
