# SPDX-License-Identifier: MIT OR Apache-2.0
"""Clients and brokers killed, stopped and started at random moments under load.

A crowd of jobs (tests/soak/programs/calls.c) plays random driver calls on one simulated GPU under
one broker, each with a priority of its own: foreground jobs, background jobs, background jobs whose
host waits at the gate. At moments that the seed decides, some are killed, ended by SIGTERM, or
stopped and continued. So is the broker, and another one starts at its socket. Invariants:

* a job that is not killed ends by itself within a bound, with exit code 0 and the same result as
  without weft;
* the device sees the same operations of each of them, stream by stream, as without weft;
* two jobs that run all the time continue (they are asked at the end of each round);
* in the end no client is left at the broker, and no job in its queue.
"""

import json
import os
import random
import signal
import time

import stage
from fixtures.scene import CLIENT, COMPANION
from harness import jobs

# Jobs that are there at once.
CROWD = 16
# A round has a device and a log of its own, seconds.
ROUND = 20.0
# Ended jobs of a round of which the device's log is looked at.
ORDER_OF = 60
# The longest time for which a job or broker is stopped, seconds.
STOPPED = 0.4
# Sequences that jobs play, most of them short: most kills come while one starts or runs, not
# between.
LENGTHS = ((30, 1), (30, 2), (80, 1), (80, 3), (250, 1), (250, 2))


class Client:
    """A job of the crowd."""

    def __init__(self, job, plain, result, what):
        self.job, self.plain, self.result, self.what = job, plain, result, what
        self.kill_at = self.go_on_at = self.end_by = None
        self.killed = False


class Round:
    """A device, a broker and the crowd, for some seconds."""

    def __init__(self, folder, number, plays, figures, rng, policy):
        self.folder = folder / f"round{number}"
        self.folder.mkdir()
        self.programs = folder
        self.number, self.figures, self.rng = number, figures, rng
        self.plays = plays
        self.device = jobs.Device(self.folder, log=self.folder / "device.log")
        self.broker = jobs.Broker(self.folder, self.device, policy=policy, trace=False)
        self.crowd, self.companions = [], []
        self.running = self.folder / "running"
        self.ended = {}
        self.count = 0
        # The broker's state (up, stopped or down), and the time of the next change.
        self.broker_is = "up"
        self.broker_next = 0.0
        self.modes = set()

    def environment(self, priority, more):
        return {**jobs.clean_environment(), **self.device.environment(), **jobs.preload(self.broker.variables(), priority=priority), "WEFT_LOG": "error", **more}

    def start_one(self, now):
        rng = self.rng
        plain = rng.choice(self.plays)
        priority, unqueued, victim = rng.randrange(10), rng.random() < 0.3, rng.random() < 0.75
        self.count += 1
        result = self.folder / f"{self.count}"
        more = {"WEFT_QUEUE": "off"} if unqueued else {}
        what = f"round {self.number}, job {self.count}: {plain.play} at priority {priority}{', unqueued' if unqueued else ''}"
        job = jobs.Job(plain.play.command(self.programs, result), environment=self.environment(priority, more), folder=self.folder, name=f"{self.count}.job")
        self.figures.starts += 1
        client = Client(job, plain, result, what)
        client.end_by = now + stage.BOUND
        if victim:
            # Before it is attached, while it launches, when it has nearly ended.
            client.kill_at = now + rng.choice((0.02, 0.15, 0.6)) * rng.random()
        elif rng.random() < 0.3:
            client.go_on_at = now + rng.random() * STOPPED
            self.send(client, signal.SIGSTOP)
            self.figures.stops += 1
        self.crowd.append(client)

    def send(self, client, number):
        if client.job.process.poll() is None:
            os.kill(client.job.pid, number)
            return True
        return False

    def strike(self, client, now):
        """Its moment has come."""
        rng = self.rng
        client.kill_at = None
        if client.go_on_at is None and rng.random() < 0.25:
            # Stopped first, killed in that state.
            if self.send(client, signal.SIGSTOP):
                self.figures.stops += 1
                client.go_on_at = client.kill_at = now + rng.random() * STOPPED
            return
        client.go_on_at = None
        if self.send(client, rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))):
            # A stopped process gets a SIGTERM when it continues.
            self.send(client, signal.SIGCONT)
            client.killed = True

    def step(self, now):
        for client in self.crowd:
            if client.kill_at is not None and now >= client.kill_at:
                self.strike(client, now)
            elif client.go_on_at is not None and now >= client.go_on_at:
                client.go_on_at = None
                self.send(client, signal.SIGCONT)
        for client in list(self.crowd):
            if client.job.process.poll() is not None:
                self.crowd.remove(client)
                self.over(client)
            elif now > client.end_by:
                self.crowd.remove(client)
                client.job.wait(0)
                self.over(client)

    def over(self, client):
        code = client.job.process.returncode
        if client.killed and code in (-signal.SIGKILL, -signal.SIGTERM) and not client.job.timed_out:
            self.figures.client_kills += 1
        elif stage.judge(self.figures, client.what, client.plain, client.job, client.result):
            if len(self.ended) < ORDER_OF:
                self.ended[client.job.pid] = (client.what, client.plain)
        for path in (client.job.stdout_path, client.job.stderr_path, client.result):
            path.unlink(missing_ok=True)

    def broker_step(self, now, pause):
        """The broker's turn to be killed, stopped, continued or started anew."""
        if now < self.broker_next:
            return
        rng = self.rng
        if self.broker_is == "down":
            self.broker.start()
            self.broker_is = "up"
            self.broker_next = now + pause * (0.3 + 1.4 * rng.random())
        elif self.broker_is == "stopped":
            os.kill(self.broker.job.pid, signal.SIGCONT)
            self.broker_is = "up"
            self.broker_next = now + pause * rng.random()
        else:
            if rng.random() < 0.6:
                self.look()
            if rng.random() < 0.2:
                os.kill(self.broker.job.pid, signal.SIGSTOP)
                self.figures.stops += 1
                self.broker_is = "stopped"
                self.broker_next = now + rng.random() * STOPPED
                return
            alive = self.broker.job.running()
            if not alive:
                self.figures.trouble("lost", f"round {self.number}: the broker ended by itself\n{self.broker.job.explain()}")
            elif rng.random() < 0.2:
                self.broker.job.terminate(stage.BOUND / 2)
                if self.broker.job.timed_out:
                    self.figures.trouble("hung", f"round {self.number}: the broker does not end when it is told to\n{self.broker.job.explain()}")
            else:
                self.broker.kill()
            self.figures.broker_kills += 1
            self.broker_is = "down"
            self.broker_next = now + rng.choice((0.0, 0.0, 0.4)) * rng.random()

    def look(self):
        """Records the crowd's roles: a campaign without background jobs tests little."""
        try:
            seen = stage.asked(self.broker.socket, "status", timeout=5)
        except (OSError, ConnectionError):
            return
        self.modes |= {row["mode"] for row in seen["clients"]}

    def play(self, seconds, pause):
        try:
            self.broker.start()
            self.running.touch()
            for name, priority in (("early", 0), ("late", 7)):
                command = [COMPANION, "--while", self.running, "--result", self.folder / f"{name}.json", "--pause", "3000", "--burst", "4"]
                self.companions.append(jobs.Job(command, environment=self.environment(priority, {}), folder=self.folder, name=name))
            clock = stage.Clock(seconds)
            self.broker_next = time.monotonic() + pause
            while clock.left():
                now = time.monotonic()
                while len(self.crowd) < CROWD:
                    self.start_one(now)
                self.step(now)
                self.broker_step(now, pause)
                time.sleep(0.002)
            self.finish()
        finally:
            for job in [*(client.job for client in self.crowd), *self.companions]:
                job.kill()
            if self.broker_is == "stopped":
                os.kill(self.broker.job.pid, signal.SIGCONT)
            self.broker.stop()

    def finish(self):
        if self.broker_is == "stopped":
            os.kill(self.broker.job.pid, signal.SIGCONT)
        if self.broker_is == "down" or not self.broker.job.running():
            self.broker.start()
        self.broker_is = "up"
        for client in self.crowd:
            client.kill_at = None
            if client.go_on_at is not None:
                client.go_on_at = None
                self.send(client, signal.SIGCONT)
        while self.crowd:
            self.step(time.monotonic())
            time.sleep(0.01)
        self.look()
        # A job that checks all its results finds room and order after the dead ones.
        last = jobs.Job([CLIENT, self.folder / "last.json"], environment=self.environment(5, {}), folder=self.folder, name="last")
        if last.wait(stage.BOUND) != 0:
            self.figures.trouble("hung" if last.timed_out else "lost", f"round {self.number}: the client after all others\n{last.explain()}")
        self.running.unlink()
        for job in self.companions:
            code = job.wait(stage.BOUND)
            if code != 0 or json.loads((self.folder / f"{job.name}.json").read_text())["launches"] == 0:
                self.figures.trouble("hung" if job.timed_out else "lost", f"round {self.number}: the companion {job.name}\n{job.explain()}")
        if not jobs.wait_until(lambda: not self.left(), stage.BOUND / 2, 0.1):
            self.figures.trouble("hung", f"round {self.number}: dead clients are still at the broker or in its queue: {self.left()}; the broker said\n{self.broker.job.explain(60)}")
        if not self.device.wait_gone(30):
            self.figures.trouble("hung", f"round {self.number}: the device stays after its last client")
            return
        stage.judge_order(self.figures, self.device.log, self.ended)
        self.device.log.unlink()

    def left(self):
        """Each client at the broker or job in its queue, a line each."""
        status, queue = stage.asked(self.broker.socket, "status"), stage.asked(self.broker.socket, "queue")
        rows = [("client", row) for row in status["clients"]] + [(kind, row) for kind in ("running", "waiting") for row in queue[kind]]
        lives = {row["pid"] for _, row in rows if os.path.exists(f"/proc/{row['pid']}")}
        return [f"{kind} {'lives' if row['pid'] in lives else 'is dead'}: {row}" for kind, row in rows]


def play(folder, options, seconds, seed, figures, progress):
    """The part. `options.policy`: the broker's."""
    rng = random.Random(seed)
    stage.program(folder)
    plays = [stage.Play(rng.randrange(1 << 31), steps, threads) for steps, threads in LENGTHS for _ in range(3)]
    plains = list(stage.plain_runs(folder, plays, figures).values())
    before = len(figures.troubles)
    clock = stage.Clock(seconds)
    number, modes = 0, set()
    while clock.left() > 3 or number == 0:
        number += 1
        one = Round(folder, number, plains, figures, rng, options.policy)
        one.play(max(3.0, min(ROUND, clock.left())), pause=0.5)
        modes |= one.modes
        progress(f"round {number}: {figures.line()}")
    if not {"foreground", "background"} <= modes:
        figures.trouble("lost", f"nobody was seen as foreground and background job: {modes}: little was tested")
    figures.settle(before)
    return f"{figures.client_kills} clients and {figures.broker_kills} brokers killed, {figures.ended} jobs ended right, modes {sorted(modes)}"
