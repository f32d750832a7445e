# SPDX-License-Identifier: MIT OR Apache-2.0
"""Jobs and brokers killed at random steps of moves of memory.

A crowd of jobs compares its memory with a copy or with the values written there, all the time
(tests/regressions/programs/movable.c, and movable_ordered.c, which takes and frees it in stream
order). The memory is movable; with SOAK_CHECKPOINT=1 some of it is plain and moves by the driver's
checkpoint. Several such crowds have a device and a broker each. A strike orders one of them to
leave the device or to return, or starts a more important job that needs the memory of others.
At a random moment of the move it kills
that job, the broker, or both. Invariants after each strike:

* the broker, or the next one, knows no dead job: neither as client nor in its book;
* all others return to the device, continue, and hold no more host memory than before;

and in the end of a round each job has the contents that it should have, and the device has its
memory back.
"""

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

import stage
from fixtures import compiled, moves
from harness import jobs

PROGRAMS = stage.ROOT / "tests" / "regressions" / "programs"
MIB = 1 << 20
# Movable memory of a job, and its need: with the small memory, without the context.
MOVED, NEED = 24, 32
CONTEXT = 8
# Plain memory of a job beyond that: the driver takes whole pieces of 2 MiB. The broker counts it as
# part of the context.
PIECES = 12
CROWD = 3
# Crowds at a time. They wait most of the time.
CROWDS = 5
# A round has a device of its own, seconds.
ROUND = 60.0
# A service needs the memory of two of the crowd.
SERVICE = 2 * NEED
# Longest random moment, seconds: moves take up to that long at this dilation.
LONGEST = 0.5
DILATION = 2
# Host memory that a job may have in addition after its first return, bytes.
SPARE = 8 * MIB


class Mover:
    """A job whose memory moves."""

    def __init__(self, job, ready, running, backing):
        self.job, self.ready, self.running, self.host = job, ready, running, None
        # The simulated driver's own copy, whose memory the allocator keeps.
        self.spare = SPARE + (MOVED * MIB if backing == "device" else 0)


class Round:
    """A device, a broker and the crowd."""

    def __init__(self, folder, number, figures, rng, policy):
        self.folder = folder / f"round{number}"
        self.folder.mkdir()
        self.programs = [compiled.program(self.folder, PROGRAMS / name) for name in ("movable.c", "movable_ordered.c")]
        config = self.folder / "device.toml"
        config.write_text(f"[device]\ncontext_memory = {CONTEXT * MIB}\n")
        by_driver = os.environ.get("SOAK_CHECKPOINT") == "1"
        # Room for the crowd and for the contexts of those that come.
        memory = (CROWD * (NEED + CONTEXT + (PIECES if by_driver else 0)) + 3 * CONTEXT) * MIB
        self.device = jobs.Device(self.folder, config=config, dilation=DILATION, memory=memory)
        self.device.settings["SIMGPU_MOVES"] = str(self.folder / "moves")
        self.broker = jobs.Broker(self.folder, self.device, policy=policy, trace=False)
        self.number, self.figures, self.rng = number, figures, rng
        self.backings = ["movable"]
        if by_driver:
            self.backings.append("device")
            moves.allow_checkpoint(self.broker, self.device, rng.choice(("580", "595", "610")))
        self.crowd, self.count, self.what, self.wrong = [], 0, "", 0
        self.all = {}

    def trouble(self, kind, what, *those):
        explained = [one.job.explain() for one in those] or [self.broker.job.explain(40)]
        self.figures.trouble(kind, f"round {self.number}, {self.what}: {what}\n" + "\n".join(explained))

    def start(self, priority, mib, need):
        self.count += 1
        ready, running = (self.folder / f"{self.count}.{end}" for end in ("ready", "running"))
        running.touch()
        backing = self.rng.choice(self.backings)
        more = {"WEFT_BACKING": backing, "WEFT_MEMORY": f"{need}MiB", "WEFT_LOG": "error", "WEFT_WAIT": "60"}
        environment = {**jobs.clean_environment(), **self.device.environment(), **jobs.preload(self.broker.variables(), priority=priority), **more}
        plain, ordered = self.programs
        # As much memory, in blocks of at most 6 MiB.
        commands = [[plain, ready, running, mib], [ordered, "random", ready, running, mib // 6, 3]]
        # A service needs its memory for sure.
        command = self.rng.choice(commands) if mib == MOVED else commands[0]
        job = jobs.Job(command, environment=environment, folder=self.folder, name=f"{self.count}.job")
        self.figures.starts += 1
        self.all[job.pid] = Mover(job, ready, running, backing)
        return self.all[job.pid]

    def fill(self):
        """Replaces the jobs that are gone."""
        while len(self.crowd) < CROWD:
            self.crowd.append(self.start(self.rng.randrange(5, 10), MOVED, NEED))
        for one in self.crowd:
            there = jobs.wait_until(lambda one=one: one.ready.exists() or not one.job.running(), stage.BOUND)
            if not there or not one.job.running():
                self.trouble("lost" if there else "hung", "a job does not begin", one)

    def clients(self):
        """{pid: row} of the clients with movable memory. Empty without a broker."""
        try:
            return {row["pid"]: row for row in moves.movable(self.broker.socket).values()}
        except (OSError, ConnectionError, AssertionError):
            return {}

    def kill(self, one):
        one.job.kill()
        self.figures.client_kills += 1
        if one in self.crowd:
            self.crowd.remove(one)

    def kill_broker(self):
        self.broker.kill()
        self.figures.broker_kills += 1
        # A job whose broker is gone returns by itself after 5 s.
        time.sleep(self.rng.choice((0, 0, 0.5, 0.5, 0.5, 6)))
        self.broker.start()

    def strike(self):
        """Kills during one move."""
        rng = self.rng
        kinds = rng.choice((("job",), ("broker",), ("job", "broker"), ("broker", "job")))
        how = rng.choice(("out", "out", "in", "in", "room"))
        self.what = f"strike {self.figures.client_kills + self.figures.broker_kills}, {how}, kills {' and '.join(kinds)}"
        one = rng.choice(self.crowd)
        row = self.clients().get(one.job.pid)
        if row is None:
            return None
        if how == "room":
            one = self.start(0, SERVICE - 8, SERVICE)
            leaving = lambda: any(row["eviction"]["state"] == "leaving" for row in self.clients().values())  # noqa: E731
            jobs.wait_until(lambda: leaving() or not one.job.running(), 3, step=0.002)
        else:
            if how == "in":
                moves.move(self.broker.socket, row["client"], True)
            moves.order(self.broker.socket, row["client"], how == "out")
        time.sleep(rng.uniform(0, LONGEST))
        self.figures.moves += 1
        for kind in kinds:
            if kind == "broker":
                self.kill_broker()
            elif how == "room" and rng.random() < 0.5:
                self.kill(rng.choice(self.crowd))
            else:
                self.kill(one)
        if one not in self.crowd and one.job.running():
            # The service gets what it needs, and ends.
            if not jobs.wait_until(lambda: one.ready.exists() or not one.job.running(), stage.BOUND):
                self.trouble("hung", "a service gets no memory", one)
            self.end(one)
        return how

    def renew(self):
        """Ends those that left for a service: none does so twice in ten minutes."""
        for one in self.crowd:
            self.end(one)
        self.crowd = []

    def settle(self):
        """All that live return and continue, and the broker knows only them."""
        alive = {one.job.pid: one for one in self.crowd}

        def back():
            rows = self.clients()
            for pid in set(rows) & set(alive):
                if rows[pid]["eviction"]["state"] == "evicted":
                    moves.order(self.broker.socket, rows[pid]["client"], False)
            return set(alive) <= {pid for pid, row in rows.items() if row["eviction"]["state"] == "device"}

        if not jobs.wait_until(back, stage.BOUND, 0.05):
            return self.trouble("hung", f"not all are back: {self.clients()}", *self.crowd)
        before = {pid: row["launches"] for pid, row in self.clients().items()}
        continues = lambda: all(pid in before and row["launches"] > before[pid] for pid, row in self.clients().items())  # noqa: E731
        if not jobs.wait_until(continues, stage.BOUND, 0.05):
            self.trouble("hung", f"a job stands still: {before}, {self.clients()}", *self.crowd)
        if not jobs.wait_until(lambda: self.known() <= set(alive), stage.BOUND, 0.05):
            self.trouble("lost", f"dead jobs are known: {self.known() - set(alive)}")
        for pid, one in alive.items():
            one.host = one.host or stage.wire.figure(pid, "RssAnon") << 10
            held = lambda pid=pid, one=one: (stage.wire.figure(pid, "RssAnon") << 10) < one.host + one.spare  # noqa: E731
            if not jobs.wait_until(held, 10, 0.05):
                self.trouble("lost", f"host memory is held: {one.host} bytes before, {stage.wire.figure(pid, 'RssAnon')} KiB now", one)

    def look(self):
        """Each range came back as it left."""
        count, wrong, _ = moves.seen(self.folder / "moves")
        if len(wrong) > self.wrong:
            those = {int(line.split()[0]) for line in wrong[self.wrong :]}
            self.trouble("lost", f"{len(wrong) - self.wrong} ranges have other contents: {wrong[self.wrong :]}", *(self.all[pid] for pid in those))
            self.wrong = len(wrong)
        return count

    def known(self):
        """Processes that the broker knows."""
        status, queue = stage.asked(self.broker.socket, "status"), stage.asked(self.broker.socket, "queue")
        return {row["pid"] for row in [*status["clients"], *queue["running"], *queue["waiting"]]}

    def end(self, one):
        """It ends, with the contents that it should have."""
        one.running.unlink(missing_ok=True)
        code = one.job.wait(stage.BOUND)
        if code != 0 or b"all as it should be" not in one.job.stdout():
            self.trouble("hung" if one.job.timed_out else "lost", f"exit {code}, {one.job.stdout()!r}", one)
        else:
            self.figures.ended += 1

    def play(self, seconds):
        try:
            self.broker.start()
            clock = stage.Clock(seconds)
            while clock.left():
                self.fill()
                how = self.strike()
                self.settle()
                self.look()
                if how == "room":
                    self.renew()
            self.what = "the end"
            for one in self.crowd:
                self.end(one)
            if not jobs.wait_until(lambda: not self.known(), stage.BOUND, 0.05):
                self.trouble("lost", f"dead jobs are known: {self.known()}")
            if not self.device.wait_gone(30):
                self.trouble("hung", "the device stays after its last client")
            return self.look()
        finally:
            for one in self.crowd:
                one.job.kill()
            self.broker.stop()


def play(folder, options, seconds, seed, figures, progress):
    """The part. `options.policy`: the broker's."""
    before = len(figures.troubles)
    clock = stage.Clock(seconds)
    number = ranges = 0

    def one(number):
        """A round, with figures of its own: rounds are threads."""
        own = stage.Figures()
        rng = random.Random(f"{seed}-{number}")
        moved = Round(folder, number, own, rng, options.policy).play(max(3.0, min(ROUND, clock.left())))
        return own, moved

    with ThreadPoolExecutor(CROWDS) as threads:
        while clock.left() > 3 or number == 0:
            for own, moved in threads.map(one, range(number + 1, number + CROWDS + 1)):
                figures.add(own)
                ranges += moved or 0
            number += CROWDS
            progress(f"round {number}: {figures.line()}")
    figures.settle(before)
    assert ranges, "nothing moved: nothing was tested"
    return f"{figures.moves} strikes, {ranges} ranges moved"
