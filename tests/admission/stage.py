# SPDX-License-Identifier: MIT OR Apache-2.0
"""The stage of the live cases of admission: a simulated device of 8 GiB, a broker of its own, and
jobs that take memory, in a folder of their own."""

import json
import subprocess
import sys
from pathlib import Path

from harness import jobs, paths

HOLDS = Path(__file__).resolve().parent / "holds.py"
# A wait fails after this time without an event in the scene: no job came, began, took memory,
# printed a line or ended. The whole duration is the machine's business.
BOUND = 90.0
# But even a scene with events all the time is not waited for longer.
LONGEST = 20 * BOUND
MEMORY = 8 << 30


class Scene:
    """A device, a broker and jobs in a folder of their own."""

    def __init__(self, folder, options, policy):
        self.folder = Path(folder)
        self.options = options
        self.device = jobs.Device(self.folder, memory=MEMORY)
        self.broker = jobs.Broker(self.folder, self.device, policy=policy)
        self.arguments = self.broker.arguments
        self.jobs = []

    def open(self):
        self.broker.start()

    def again(self, *extra, nvml=False):
        """Another broker in the place of the one that runs: with further options, and with NVML to
        ask or without."""
        self.broker.stop()
        self.broker.arguments = [*self.arguments, *extra]
        if nvml:
            device = self.device.environment()
            self.broker.environment = lambda: {**jobs.clean_environment(), **self.broker.variables(), **device}
        self.broker.start()

    def device_row(self):
        return next(iter((self.queue() or {}).get("devices", [])), None)

    def close(self):
        for job in self.jobs:
            job.kill()
        self.broker.stop()

    def job(self, name, *takes, weft=(), user="", torch=False, bare=False, stay=True, seconds=0.0, through=(), without=(), more=()):
        """Starts one. It stays until `release(name)`. `through`: the command that starts it;
        `without`: variables that it is not to have; `more`: further options of holds.py."""
        python = paths.python("torch") if torch else sys.executable
        command = [str(python), str(HOLDS), str(self.folder / f"{name}.json"), "--go", str(self.folder / f"{name}.go"), "--seconds", str(seconds), *more]
        if stay:
            (self.folder / f"{name}.stay").touch()
            command += ["--while", str(self.folder / f"{name}.stay")]
        for take in takes:
            command += ["--take", take]
        if torch:
            command += ["--torch"]
        environment = {**jobs.clean_environment(), **self.device.environment()}
        if not bare:
            environment |= {**self.broker.variables(), "WEFT_USER": user}
            command = [str(paths.WEFT), "run", *weft, "--", *command]
        command = [*through, *command]
        environment = {name: value for name, value in environment.items() if name not in without}
        job = jobs.Job(command, environment=environment, folder=self.folder, name=name)
        self.jobs.append(job)
        return job

    def weft(self, *words, code=0):
        """A command of weft's for people."""
        done = subprocess.run([str(paths.WEFT), *words], env=self.broker.environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=BOUND, text=True, check=False)
        assert done.returncode == code, f"weft {' '.join(words)}: {done}"
        return done

    def said(self, name):
        return jobs.lines_of(self.folder / f"{name}.json")

    def events(self, name):
        return [line["event"] for line in self.said(name)]

    def at(self, name, event):
        return next(line["at"] for line in self.said(name) if line["event"] == event)

    def release(self, name):
        (self.folder / f"{name}.stay").unlink(missing_ok=True)

    def go(self, name):
        (self.folder / f"{name}.go").touch()

    def happened(self):
        """A value that differs from an earlier one when something has happened in between."""
        each = [(job.process.poll(), jobs.size_of(job.stderr_path), jobs.size_of(self.folder / f"{job.name}.json")) for job in self.jobs]
        return [*each, jobs.size_of(self.broker.job.stderr_path)]

    def comes_true(self, condition, bound=BOUND):
        """Waits for it for as long as things happen."""
        return jobs.wait_while(condition, self.happened, bound, LONGEST)

    def until(self, what, condition, bound=BOUND):
        assert self.comes_true(condition, bound), f"{what}: nothing has happened for {bound:.0f} s\n" + self.picture()

    def picture(self, most=12):
        """Text of a failed wait: the jobs that wait for nothing first."""
        queue, waiting = self.queue(), self.waiting()
        jobs_ = sorted(self.jobs, key=lambda job: job.pid in waiting)
        told = [f"{job.name}: {self.events(job.name)} {job.stderr()[-400:]}" for job in jobs_[:most]]
        return "\n".join([f"{len(waiting)} wait", *told, json.dumps(queue, indent=1)[:4000]])

    def has(self, name, event, count=1):
        return self.events(name).count(event) >= count

    def queue(self):
        done = subprocess.run(
            [str(paths.WEFT), "queue", "--json"], env=self.broker.environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=BOUND, check=False
        )
        return json.loads(done.stdout) if done.returncode == 0 else None

    def waiting(self):
        return [row["pid"] for row in (self.queue() or {"waiting": []})["waiting"]]

    def waits(self, job):
        self.until(f"{job.name} waits", lambda: job.pid in self.waiting())

    def holder(self, name, memory):
        """A job that declared this memory, and has it."""
        job = self.job(name, memory, weft=["--memory", memory])
        self.until(f"{name} has its memory", lambda: self.has(name, "took"))
        return job

    def waiter(self, name, memory, stay=True):
        """A job that declared this memory, and waits for it."""
        job = self.job(name, memory, weft=["--memory", memory], stay=stay)
        self.waits(job)
        return job

    def warm(self):
        """A context's size is known from now on: until it is, jobs begin one by one."""
        job = self.holder("warm", "1GiB")
        self.until("a context was measured", lambda: (self.device_row() or {"context": 0})["context"] > 0)
        self.release("warm")
        self.finish(job)

    def finish(self, job, code=0):
        self.comes_true(lambda: not job.running())
        got = job.wait(0.1)
        assert not job.timed_out, f"{job.name} hangs\n{job.explain()}"
        assert got == code, f"{job.name}: exit {got}, not {code}\n{job.explain()}"

    def ends(self, job):
        """Lets one end that stays, and waits until it has, well."""
        self.release(job.name)
        self.finish(job)
