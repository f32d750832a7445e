#!/usr/bin/env python3
"""Admission, live: jobs that do not fit together on a simulated GPU, under weft run and without it.

  tests/admission/run.py                 all cases (about two minutes; the two with PyTorch take most of it)
  tests/admission/run.py --torch 3       three of the ten jobs are PyTorch's, the others take memory by the driver API
  tests/admission/run.py --no-torch      all ten take memory by the driver API
  tests/admission/run.py --queued 200    so many jobs in the queue at once (default 50)
  tests/admission/run.py killed          the cases with that word in their name

Each case has a device of 8 GiB and a broker of its own. A case fails with a line that says what was seen; every wait is bounded.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from harness import cases, jobs, paths  # noqa: E402

HOLDS = Path(__file__).resolve().parent / "holds.py"
# How long anything may take that takes a second or two on an idle machine.
BOUND = 90.0
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
        """Another broker in the place of the one that runs: with further options, and with NVML to ask or without."""
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
        """Starts one. It stays until `release(name)`. `through`: what starts it; `without`: variables that it is not to have; `more`: further options of holds.py."""
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
        done = subprocess.run([str(paths.WEFT), *words], env=self.broker.environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=20, text=True, check=False)
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

    def until(self, what, condition, bound=BOUND):
        assert jobs.wait_until(condition, bound), f"{what}: not within {bound:.0f} s\n" + json.dumps(self.queue(), indent=1) + "\n" + "\n".join(
            f"{job.name}: {self.events(job.name)} {job.stderr()[-400:]}" for job in self.jobs[-12:]
        )

    def has(self, name, event, count=1):
        return self.events(name).count(event) >= count

    def queue(self):
        done = subprocess.run(
            [str(paths.WEFT), "queue", "--json"], env=self.broker.environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False
        )
        return json.loads(done.stdout) if done.returncode == 0 else None

    def waiting(self):
        return [row["pid"] for row in (self.queue() or {"waiting": []})["waiting"]]

    def waits(self, job):
        self.until(f"{job.name} waits", lambda: job.pid in self.waiting())

    def holder(self, name, memory):
        """A job that said it takes so much, and has it."""
        job = self.job(name, memory, weft=["--memory", memory])
        self.until(f"{name} has its memory", lambda: self.has(name, "took"))
        return job

    def waiter(self, name, memory, stay=True):
        """A job that said it takes so much, and waits for it."""
        job = self.job(name, memory, weft=["--memory", memory], stay=stay)
        self.waits(job)
        return job

    def warm(self):
        """What a context takes is known from now on: until it is, jobs begin one by one."""
        job = self.holder("warm", "1GiB")
        self.until("a context was measured", lambda: (self.device_row() or {"context": 0})["context"] > 0)
        self.release("warm")
        self.finish(job)

    def finish(self, job, code=0):
        got = job.wait(BOUND)
        assert not job.timed_out, f"{job.name} hangs\n{job.explain()}"
        assert got == code, f"{job.name}: exit {got}, not {code}\n{job.explain()}"


case = cases.Cases("admission", Scene)

# Who brings what: name, user, duration, priority, what it says it takes, what it takes in two parts. Only the small one fits beside another; the rest run one by one, and the first
# holds the device until all have come.
LARGE = ("5GiB", "3GiB", "1.5GiB")
TEN = [
    ("first", "ann", "medium", 5, *LARGE),
    ("small-cid", "cid", "short", 5, "1.5GiB", "1GiB", "256MiB"),
    ("long-ann", "ann", "long", 5, *LARGE),
    ("medium-ann", "ann", "medium", 5, *LARGE),
    ("short-ann", "ann", "short", 5, *LARGE),
    ("long-dan", "dan", "long", 5, *LARGE),
    ("short-bea", "bea", "short", 5, *LARGE),
    ("short-cid", "cid", "short", 5, *LARGE),
    ("short-dan", "dan", "short", 5, *LARGE),
    ("important", "ann", "long", 0, *LARGE),
]
# More important ones first; then shorter ones before longer ones; of those the user who had least of late (ann had the first, cid has the small one), then who came first.
ORDER = ["first", "small-cid", "important", "short-bea", "short-dan", "short-cid", "short-ann", "medium-ann", "long-dan", "long-ann"]
# Of these some are PyTorch's where not all are: one that holds, one that waits, and the one beside.
WITH_TORCH = ["first", "short-bea", "small-cid"]


def is_torch(scene, name):
    return len(TEN) <= scene.options.torch or name in WITH_TORCH[: scene.options.torch]


@case
def ten_jobs_of_four_users_all_run(scene):
    running = {}
    for name, user, duration, priority, says, *takes in TEN:
        weft = ["--memory", says, "--duration", duration, "--priority", str(priority)]
        running[name] = scene.job(name, *takes, weft=weft, user=user, torch=is_torch(scene, name), stay=name in ("first", "small-cid"))
        scene.go(name)
        if name in ("first", "small-cid"):
            scene.until(f"{name} has its memory", lambda n=name: scene.has(n, "took", 2))
        else:
            scene.waits(running[name])
    table = subprocess.run([str(paths.WEFT), "queue"], env=scene.broker.environment(), capture_output=True, timeout=20, check=True).stdout.decode()
    print(table)
    assert "needs 5." in running["short-bea"].stderr() + table, running["short-bea"].stderr()
    scene.release("first")
    for name in [*(name for name in ORDER if name != "small-cid"), "small-cid"]:
        # The small one stays beside all others.
        scene.release(name)
        scene.finish(running[name])
        assert "none" not in scene.events(name), f"{name} got no memory: {scene.events(name)}"
        assert running[name].stdout() == b"", f"{name}: something wrote to its stdout"
    order = sorted(ORDER, key=lambda name: scene.at(name, "begun"))
    assert order == ORDER, f"they began as {order}, the rule says {ORDER}"
    seen = scene.queue()
    assert (seen["admitted"], seen["waited"], seen["denied"]) == (10, 8, 0), seen


@case
def the_same_ten_without_weft_get_no_memory(scene):
    running = [scene.job(name, *takes, torch=is_torch(scene, name), bare=True) for name, _, _, _, _, *takes in TEN]
    for name, *_ in TEN:
        scene.go(name)
    scene.until("each has its memory or none", lambda: all(scene.has(n, "none") or scene.has(n, "took", 2) for n, *_ in TEN))
    for name, *_ in TEN:
        scene.release(name)
    for job in running:
        job.wait(BOUND)
    without = [name for name, *_ in TEN if scene.has(name, "none")]
    # 8 GiB hold one large one and the small one; two large ones that begin at the same time may both lack their second part.
    assert len(without) >= 8, f"{len(without)} of 10 got no memory"
    print(f"without weft {len(without)} of 10 got no memory")


@case
def a_run_teaches_what_the_job_takes(scene):
    # Nothing is said: let in at once, and it grows.
    first = scene.job("first", "1GiB", "2GiB", weft=[], user="ann", stay=False)
    scene.go("first")
    scene.finish(first)
    # The broker hears of its end a moment after it.
    scene.until("the broker has learnt what the first took", lambda: scene.queue()["learnt"])
    seen = scene.queue()["learnt"]
    assert [(row["pid"], row["peak"], row["duration"], row["user"]) for row in seen] == [(first.pid, 3 << 30, "short", "ann")], seen
    done = scene.weft("profile", "keep", "--name", "taught")
    assert "3.0" in done.stderr and "--profile taught" in done.stderr, done
    # Said now by its profile: it begins when there are 3 GiB, and what it is told of the device is that.
    holder = scene.holder("holder", "6GiB")
    again = scene.job("again", "1GiB", "2GiB", weft=["--profile", "taught"], stay=False)
    scene.go("again")
    scene.waits(again)
    row = scene.queue()["waiting"][0]
    assert row["duration"] == "short" and row["needs"] >= 3 << 30, row
    scene.release("holder")
    scene.finish(holder)
    scene.finish(again)
    assert "none" not in scene.events("again")
    # What had said what it takes teaches nothing.
    assert len(scene.queue()["learnt"]) == 1, scene.queue()["learnt"]
    unknown = scene.weft("profile", "keep", "1", "--name", "taught", code=1)
    assert "nothing was learnt of a job of process 1" in unknown.stderr, unknown


@case
def a_heavier_user_goes_more_often(scene):
    scene.weft("set", "--user", "ann", "--weight", "3")
    holder = scene.job("holder", "6GiB", weft=["--memory", "6GiB"], user="eve")
    scene.until("the holder has its memory", lambda: scene.has("holder", "took"))
    # All alike. Each had nothing of late, so who came first goes first; then who had least for his weight.
    names = ["ann1", "bob1", "ann2", "bob2", "ann3", "bob3"]
    running = {}
    for name in names:
        weft = ["--memory", "6GiB", "--duration", "short"]
        running[name] = scene.job(name, "5GiB", weft=weft, user=name[:3], stay=False, seconds=0.5)
        scene.waits(running[name])
    assert scene.queue()["weights"] == [{"user": "ann", "weight": 3}], scene.queue()
    # The weight outlives the broker.
    scene.broker.kill()
    scene.broker.start()
    assert scene.queue()["weights"] == [{"user": "ann", "weight": 3}], scene.queue()
    scene.release("holder")
    scene.finish(holder)
    for job in running.values():
        scene.finish(job)
    order = sorted(names, key=lambda name: scene.at(name, "begun"))
    # ann1 and bob1 first; then ann, who had a third for her weight, has both of hers before bob's second.
    assert order == ["ann1", "bob1", "ann2", "ann3", "bob2", "bob3"], order


@case
def a_job_that_can_never_fit_is_told_so_at_once(scene):
    job = scene.job("huge", "1GiB", weft=["--memory", "20GiB"])
    scene.finish(job, 3)
    assert "can never run here" in job.stderr() and "bytes" in job.stderr(), job.stderr()


@case
def who_will_not_wait_does_not(scene):
    holder = scene.holder("holder", "6GiB")
    # What it had in its buffers is not lost: it ends by itself.
    hasty = scene.job("hasty", "3GiB", weft=["--memory", "3GiB", "--no-wait"], more=["--print", "of before"], without=("PYTHONUNBUFFERED",))
    scene.finish(hasty, 75)
    assert hasty.stdout() == b"of before", hasty.explain()
    assert scene.events("hasty") == ["asks", "none"] and "--no-wait" in hasty.stderr(), hasty.explain()
    # One that would go on without a device is ended, what it had in the C library's buffers written.
    stubborn = scene.job("stubborn", "3GiB", weft=["--memory", "3GiB", "--no-wait"], more=["--print", "of before", "--stubborn"], without=("PYTHONUNBUFFERED",))
    scene.until("the stubborn one was told that there is none", lambda: scene.has("stubborn", "none"))
    scene.until("nobody waits", lambda: scene.waiting() == [])
    scene.finish(stubborn, 75)
    assert stubborn.stdout() == b"of before", stubborn.explain()
    for wrong in (["--wait", "-3"], ["--wait=1.5"], ["--wait", "soon"]):
        told = scene.weft("run", *wrong, "--", "/bin/true", code=2).stderr.splitlines()
        assert "--wait" in told[0] and "a whole number of seconds" in told[0], told
    patient = scene.job("patient", "3GiB", weft=["--memory", "3GiB", "--wait", "1"])
    scene.finish(patient, 3)
    assert "within 1 s" in patient.stderr(), patient.stderr()
    tired = scene.waiter("tired", "3GiB")
    os.kill(tired.pid, signal.SIGINT)
    tired.wait(BOUND)
    # Python's own handler: KeyboardInterrupt.
    assert not tired.timed_out and "KeyboardInterrupt" in tired.stderr(), tired.explain()
    scene.until("nobody waits", lambda: scene.waiting() == [])
    small = scene.job("small", "500MiB", weft=["--memory", "600MiB"], stay=False)
    scene.finish(small)
    scene.release("holder")
    scene.finish(holder)


@case
def odd_surroundings_change_nothing(scene):
    holder = scene.holder("holder", "6GiB")
    # As from a cron job or a script in the background: Ctrl-C is ignored from before, nothing to read from, no home.
    shell = ["/bin/sh", "-c", "trap '' INT; exec \"$@\" <&-", "sh"]
    odd = scene.job("odd", "3GiB", weft=["--memory", "3GiB"], through=shell, without=("HOME", "XDG_RUNTIME_DIR", "TERM"), stay=False)
    scene.waits(odd)
    os.kill(odd.pid, signal.SIGINT)
    asked = scene.job("asked", "3GiB", weft=["--memory", "3GiB"], through=shell, without=("HOME", "XDG_RUNTIME_DIR", "TERM"), stay=False)
    scene.waits(asked)
    # Asked to end it ends, as it would without weft.
    os.kill(asked.pid, signal.SIGTERM)
    scene.finish(asked, -signal.SIGTERM)
    scene.until("one waits", lambda: scene.waiting() == [odd.pid])
    scene.release("holder")
    scene.finish(holder)
    scene.finish(odd)


@case
def a_broker_that_is_stuck_keeps_nobody_waiting(scene):
    holder = scene.holder("holder", "6GiB")
    waiter = scene.job("waiter", "1GiB", weft=["--memory", "3GiB"], stay=False)
    scene.waits(waiter)
    os.kill(scene.broker.job.pid, signal.SIGSTOP)
    try:
        # It goes on as without weft, where 1 of 2 GiB is free.
        scene.finish(waiter)
        assert "keeps no queue any more" in waiter.stderr(), waiter.stderr()
    finally:
        os.kill(scene.broker.job.pid, signal.SIGCONT)
    scene.release("holder")
    scene.finish(holder)


@case
def a_job_killed_while_it_waits_is_forgotten(scene):
    holder = scene.holder("holder", "6GiB")
    waiter = scene.waiter("waiter", "5GiB")
    other = scene.waiter("other", "5GiB", stay=False)
    waiter.kill()
    scene.until("one waits", lambda: scene.waiting() == [other.pid])
    scene.release("holder")
    scene.finish(holder)
    scene.finish(other)


class Standstill:
    """The longest that this machine held up a thread which does nothing but sleep: by so much anything may be late that weft does."""

    def __enter__(self):
        self.longest = 0.0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        return self

    def watch(self):
        before = time.monotonic()
        while not self.over.wait(0.01):
            now = time.monotonic()
            self.longest = max(self.longest, now - before - 0.01)
            before = now

    def __exit__(self, *_):
        self.over.set()
        self.thread.join(10)


@case
def memory_of_a_killed_job_is_free_within_a_second(scene):
    """From the kill to the moment at which the broker, by its own clock, gave the memory to others; in the middle of five, and with what the machine itself held up left out."""
    late = []
    for round_ in range(5):
        holder = scene.holder(f"holder{round_}", "6GiB")
        waiter = scene.waiter(f"waiter{round_}", "5GiB", stay=False)
        with Standstill() as standstill:
            killed = time.monotonic_ns()
            os.kill(holder.pid, signal.SIGKILL)
            scene.until("the holder's memory is others'", lambda pid=holder.pid: any(row["pid"] == pid for row in scene.queue()["freed"]))
        row = next(row for row in scene.queue()["freed"] if row["pid"] == holder.pid)
        assert row["share"] >= 6 << 30, row
        seconds = (row["at"] - killed) / 1e9
        assert seconds > 0, f"freed {seconds} s after the kill"
        # The driver has it again as well: the waiter takes it.
        scene.finish(waiter)
        assert scene.events(f"waiter{round_}") == ["asks", "begun", "took", "ended"], scene.events(f"waiter{round_}")
        taken = (scene.at(f"waiter{round_}", "took") - killed) / 1e9
        print(f"after the kill: {seconds:.3f} s until the memory is others', {taken:.3f} s until the waiter has it (the machine held up a thread for {standstill.longest:.3f} s)")
        late.append(seconds - standstill.longest)
        holder.wait(BOUND)
    assert sorted(late)[2] < 1.0, f"the middle of {late} is no less than a second"


@case
def a_suspended_waiter_holds_up_nobody(scene):
    holder = scene.holder("holder", "6GiB")
    stopped = scene.waiter("stopped", "5GiB", stay=False)
    other = scene.waiter("other", "5GiB", stay=False)
    os.killpg(stopped.pid, signal.SIGSTOP)
    scene.release("holder")
    scene.finish(holder)
    # It is first, is let in and does not stir: the other one has its turn.
    scene.finish(other)
    assert not scene.has("stopped", "begun")
    row = next(row for row in scene.queue()["waiting"] if row["pid"] == stopped.pid)
    assert "suspended" in row["reason"] and row["begins_s"] is None, row
    # It goes on, before who came later.
    again = scene.holder("again", "6GiB")
    last = scene.waiter("last", "5GiB", stay=False)
    os.killpg(stopped.pid, signal.SIGCONT)
    scene.until("it is there again", lambda: "suspended" not in next(row for row in scene.queue()["waiting"] if row["pid"] == stopped.pid)["reason"])
    assert scene.waiting() == [stopped.pid, last.pid], scene.queue()
    scene.release("again")
    for job in (again, stopped, last):
        scene.finish(job)
    assert scene.at("stopped", "begun") < scene.at("last", "begun")
    assert scene.queue()["denied"] == 0, scene.queue()


@case
def a_second_broker_says_that_there_is_one(scene):
    holder = scene.holder("holder", "6GiB")
    seen = scene.queue()["running"]
    assert [row["pid"] for row in seen] == [holder.pid] and seen[0]["device"] == scene.queue()["devices"][0]["uuid"] != "", seen
    for _ in range(2):
        told = scene.weft("broker", code=1)
        assert str(scene.broker.socket) in told.stderr and len(told.stderr.splitlines()) == 1, told
    # The first one never noticed.
    assert scene.broker.job.running() and [row["pid"] for row in scene.queue()["running"]] == [holder.pid]
    scene.release("holder")
    scene.finish(holder)


@case
def killed_while_it_is_admitted_and_while_it_grows(scene):
    for round_ in range(4):
        holder = scene.holder(f"holder{round_}", "6GiB")
        waiter = scene.waiter(f"waiter{round_}", "5GiB")
        scene.release(f"holder{round_}")
        # Somewhere between the holder's end and the waiter's first memory.
        time.sleep(0.01 * round_)
        waiter.kill()
        scene.finish(holder)
    grower = scene.job("grower", "1GiB", *["64MiB"] * 60, weft=["--memory", "1GiB"])
    scene.go("grower")
    scene.until("it grows", lambda: scene.has("grower", "took", 3))
    grower.kill()
    last = scene.job("last", "7GiB", weft=["--memory", "7GiB"], stay=False)
    scene.finish(last)


@case
def who_outgrows_his_share_gets_what_is_free_and_hurts_nobody(scene):
    grower = scene.job("grower", "2GiB", "1GiB", "3GiB", weft=["--memory", "2GiB"])
    scene.until("it has its memory", lambda: scene.has("grower", "took"))
    free, total = next(line["info"] for line in scene.said("grower") if line["event"] == "begun")
    assert total == 2 << 30 and free <= total, f"it is told of {free} of {total}"
    neighbour = scene.job("neighbour", "1GiB", "2GiB", weft=["--memory", "3GiB"])
    scene.until("the neighbour has its first memory", lambda: scene.has("neighbour", "took"))
    scene.go("grower")
    scene.until("it has grown as far as it can", lambda: scene.has("grower", "none"))
    # 2 of 2 GiB, then 1 that was free; the last 3 are not, though the neighbour has not taken all that is its own.
    assert [line["event"] for line in scene.said("grower") if line["event"] in ("took", "none")] == ["took", "took", "none"]
    scene.go("neighbour")
    scene.until("the neighbour has all of its memory", lambda: scene.has("neighbour", "took", 2))
    for name, job in (("grower", grower), ("neighbour", neighbour)):
        scene.release(name)
        scene.finish(job)
    assert "none" not in scene.events("neighbour")
    assert scene.queue()["denied"] >= 1


@case
def who_outgrew_itself_keeps_what_it_waited(scene):
    """A large job that says too little, waits, and dies of it: started again with more it has waited for as long already; once, and nobody else."""
    holder = scene.holder("holder", "6GiB")

    def large(says, user):
        # The same command line each time.
        job = scene.job("large", "5GiB", "2GiB", weft=["--memory", says], user=user, stay=False)
        scene.waits(job)
        return job

    def seen(job):
        return next(row for row in scene.queue()["waiting"] if row["pid"] == job.pid)

    def before(says, user):
        job = large(says, user)
        row = seen(job)
        job.kill()
        scene.until("nobody waits", lambda: scene.waiting() == [])
        return row["before_s"]

    first = large("5GiB", "bob")
    time.sleep(1.0)
    scene.release("holder")
    scene.finish(holder)
    scene.until("it has its first memory", lambda: scene.has("large", "took"))
    beside = scene.holder("beside", "1.5GiB")
    scene.go("large")
    scene.finish(first)
    assert scene.events("large") == ["asks", "begun", "took", "none", "ended"], scene.events("large")
    assert before("7GiB", "dan") == 0, "it is another user's"
    again = large("7GiB", "bob")
    row = seen(again)
    assert row["waited_s"] >= row["before_s"] >= 1.0, row
    # Over a broker that is killed, too.
    scene.broker.kill()
    scene.broker.start()
    scene.until("it is back", lambda: scene.queue()["waiting"][0]["clients"])
    assert seen(again)["before_s"] == row["before_s"], (row, seen(again))
    again.kill()
    scene.until("nobody waits", lambda: scene.waiting() == [])
    assert before("7GiB", "bob") == 0, "it has had it"
    scene.release("beside")
    scene.finish(beside)


@case
def jobs_that_say_nothing_begin_at_once_and_share_what_is_there(scene):
    scene.warm()
    running = [scene.job(f"quiet{at}", "1GiB", "500MiB", weft=[]) for at in range(4)]
    for at in range(4):
        scene.go(f"quiet{at}")
        scene.until("it has all of its memory", lambda n=f"quiet{at}": scene.has(n, "took", 2))
        scene.release(f"quiet{at}")
    for job in running:
        scene.finish(job)
        assert "weft:" not in job.stderr(), job.stderr()
    assert scene.queue()["waited"] == 0


@case
def a_new_broker_knows_who_holds_what(scene):
    holder = scene.holder("holder", "5GiB")
    waiter = scene.waiter("waiter", "4GiB", stay=False)
    # Stopped, so that neither can come back to the new broker before the newcomer asks.
    for job in (holder, waiter):
        os.killpg(job.pid, signal.SIGSTOP)
    scene.broker.kill()
    scene.broker.start()
    late = scene.waiter("late", "4GiB", stay=False)
    seen = scene.queue()
    assert [row["pid"] for row in seen["running"]] == [holder.pid] and seen["running"][0]["share"] >= 5 << 30, seen
    assert scene.waiting() == [waiter.pid, late.pid], seen
    for job in (holder, waiter):
        os.killpg(job.pid, signal.SIGCONT)
    scene.until("the holder is back", lambda: scene.queue()["running"][0]["clients"])
    assert not scene.has("late", "begun")
    scene.release("holder")
    for job in (holder, waiter, late):
        scene.finish(job)
    # By the wait and not by the restart: the waiter's memory was to be had before the newcomer's.
    assert scene.queue()["admitted"] == 3, scene.queue()


@case
def ranks_of_one_job_are_admitted_as_one(scene):
    shell = f'for r in 0 1; do "{sys.executable}" "{HOLDS}" "{scene.folder}/rank$r.json" --take 2GiB --while "{scene.folder}/ranks.stay" & done; wait'
    (scene.folder / "ranks.stay").touch()
    environment = {**jobs.clean_environment(), **scene.device.environment(), **scene.broker.variables(), "LOCAL_WORLD_SIZE": "2"}
    job = jobs.Job([str(paths.WEFT), "run", "--memory", "4GiB", "--", "/bin/sh", "-c", shell], environment=environment, folder=scene.folder, name="ranks")
    scene.jobs.append(job)
    scene.until("both ranks have their memory", lambda: scene.has("rank0", "took") and scene.has("rank1", "took"))
    running = scene.queue()["running"]
    assert len(running) == 1 and len(running[0]["clients"]) == 2, running
    other = scene.waiter("other", "4GiB", stay=False)
    (scene.folder / "ranks.stay").unlink()
    scene.finish(job)
    scene.finish(other)


@case
def ranks_that_torchrun_starts_are_admitted_as_one(scene):
    if scene.options.torch == 0:
        return "left out: --no-torch"
    holder = scene.holder("holder", "5GiB")
    (scene.folder / "ranks.stay").touch()
    # One result for both: each line says which process it is of.
    ranks = [str(paths.python("torch")), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(HOLDS), str(scene.folder / "ranks.json"),
             "--torch", "--take", "1.5GiB", "--while", str(scene.folder / "ranks.stay")]  # fmt: skip
    environment = {**jobs.clean_environment(), **scene.device.environment(), **scene.broker.variables()}
    job = jobs.Job([str(paths.WEFT), "run", "--memory", "4GiB", "--", *ranks], environment=environment, folder=scene.folder, name="ranks")
    scene.jobs.append(job)
    scene.until("both ranks wait", lambda: [len(row["clients"]) for row in scene.queue()["waiting"]] == [2])
    assert not scene.has("ranks", "begun"), scene.said("ranks")
    scene.release("holder")
    scene.finish(holder)
    scene.until("both ranks have their memory", lambda: scene.has("ranks", "took", 2))
    seen = scene.queue()
    assert [len(row["clients"]) for row in seen["running"]] == [2] and seen["waiting"] == [], seen
    (scene.folder / "ranks.stay").unlink()
    scene.finish(job)
    assert sorted(scene.events("ranks")) == sorted(2 * ["asks", "begun", "took", "ended"]), scene.said("ranks")
    assert len({line["pid"] for line in scene.said("ranks")}) == 2, scene.said("ranks")
    # One job was let in for the holder and one for both ranks.
    assert (scene.queue()["admitted"], scene.queue()["denied"]) == (2, 0), scene.queue()


@case
def many_wait_over_a_restart_and_all_run_once(scene):
    count = scene.options.queued
    holder = scene.holder("holder", "6GiB")
    names = [f"many{at}" for at in range(count)]
    running = [scene.job(name, "2GiB", weft=["--memory", "2GiB", "--duration", "short"], user=f"user{at % 5}", stay=False) for at, name in enumerate(names)]
    scene.until("all wait", lambda: len(scene.waiting()) == count, 4 * BOUND)
    order = scene.waiting()
    assert len(set(order)) == count
    # The broker is killed and another one comes. Nobody is forgotten or let in for that, and everybody has his place.
    scene.broker.kill()
    scene.broker.start()
    assert scene.waiting() == order, f"{order} waited, after the restart {scene.waiting()}"
    back = lambda: all(row["clients"] for row in [*scene.queue()["waiting"], *scene.queue()["running"]])  # noqa: E731
    scene.until("all are back", back, 4 * BOUND)
    assert scene.waiting() == order and not any(scene.has(name, "begun") for name in names), scene.queue()
    scene.release("holder")
    scene.finish(holder)
    for job in running:
        scene.finish(job)
    assert all(scene.events(name) == ["asks", "begun", "took", "ended"] for name in names)
    seen = scene.queue()
    assert (seen["admitted"], seen["waited"], seen["waiting"]) == (count + 1, count, []), seen


@case
def two_large_jobs_on_a_cold_broker_do_not_starve_each_other(scene):
    # Nothing is known of this device: 4 GiB and 4 GiB fit it, their contexts beside them do not.
    assert scene.device_row() is None
    both = [scene.job(f"large{at}", "4GiB", weft=["--memory", "4GiB"]) for at in range(2)]
    scene.until("one has its memory and one waits", lambda: len(scene.waiting()) == 1 and any(scene.has(f"large{at}", "took") for at in range(2)))
    first = next(at for at in range(2) if scene.has(f"large{at}", "took"))
    row = scene.device_row()
    assert row["context"] > 0 and row["foreign"] == 0, row
    scene.release(f"large{first}")
    scene.finish(both[first])
    scene.until("the other one has its memory", lambda: scene.has(f"large{1 - first}", "took"))
    scene.release(f"large{1 - first}")
    scene.finish(both[1 - first])
    assert all("none" not in scene.events(f"large{at}") for at in range(2))
    # What was measured outlives the broker.
    scene.again()
    scene.finish(scene.job("small", "1GiB", weft=["--memory", "1GiB"], stay=False))
    assert scene.device_row()["context"] == row["context"], scene.device_row()


@case
def strangers_come_and_go(scene):
    """Jobs without weft: what they hold is known when somebody is let in, and when he waits."""
    scene.again(nvml=True)
    stranger = scene.job("stranger", "5GiB", bare=True)
    scene.until("the stranger has its memory", lambda: scene.has("stranger", "took"))
    first = scene.job("first", "1GiB", weft=["--memory", "1GiB"], stay=False)
    scene.finish(first)
    waiter = scene.waiter("waiter", "6GiB")
    row = scene.device_row()
    assert row["foreign"] >= 5 << 30 and 0 < row["context"] < 1 << 30, row
    # It leaves, nobody of ours runs, and so nobody of ours can look.
    scene.release("stranger")
    scene.finish(stranger)
    scene.until("the waiter has its memory", lambda: scene.has("waiter", "took"))
    scene.release("waiter")
    scene.finish(waiter)
    # One that comes after everybody has looked is seen before the next one is let in.
    late = scene.job("late", "5GiB", bare=True)
    scene.until("the late one has its memory", lambda: scene.has("late", "took"))
    second = scene.waiter("second", "4GiB", stay=False)
    scene.release("late")
    scene.finish(late)
    scene.finish(second)
    assert "none" not in scene.events("second") + scene.events("waiter")


@case
def jobs_that_say_nothing_wait_for_what_others_have(scene):
    """Together they take more than the device has; whoever comes late for it waits until a neighbour ends, and gets no out of memory."""
    scene.warm()
    torch = scene.options.torch > 0
    names = ["one", "two", "three"]
    running = {name: scene.job(name, "1GiB", "3GiB", weft=[], torch=torch and name != "three") for name in names}
    for name in names:
        scene.until(f"{name} has its first memory", lambda n=name: scene.has(n, "took"))
    scene.go("one")
    scene.until("the first one has all of its memory", lambda: scene.has("one", "took", 2))
    # 4 + 1 + 1 GiB and contexts are taken; each of the others wants 3 more.
    waits = lambda: sorted(row["pid"] for row in scene.queue()["running"] if row["waits_for"])  # noqa: E731
    scene.go("two")
    scene.until("the second one waits", lambda: waits() == [running["two"].pid])
    scene.go("three")
    scene.until("both wait", lambda: waits() == sorted(running[name].pid for name in ("two", "three")))
    for name in names:
        scene.until(f"{name} has all of its memory", lambda n=name: scene.has(n, "took", 2))
        scene.release(name)
        scene.finish(running[name])
        assert "none" not in scene.events(name), f"{name}: {scene.events(name)}"
    assert "which others have" in running["two"].stderr(), running["two"].stderr()
    # What they took is known to the next broker.
    scene.again()
    assert sorted(row["pid"] for row in scene.queue()["learnt"]) == sorted(job.pid for job in running.values()), scene.queue()["learnt"]
    scene.weft("profile", "keep", str(running["two"].pid), "--name", "two")


@case
def who_waits_for_more_in_vain_gets_cudas_own_answer(scene):
    holder = scene.holder("holder", "5GiB")
    grower = scene.job("grower", "1GiB", "4GiB", weft=["--wait", "2"], stay=False)
    scene.go("grower")
    scene.finish(grower)
    assert scene.events("grower") == ["asks", "begun", "took", "none", "ended"], scene.events("grower")
    # It hears once how it goes better the next time.
    assert grower.stderr().count("weft profile keep") == 1, grower.stderr()
    assert scene.queue()["denied"] >= 1, scene.queue()
    # Alone it is told at once that there is no such device; so is who would wait for one that waits for him.
    scene.release("holder")
    scene.finish(holder)
    alone = scene.job("alone", "1GiB", "9GiB", weft=[], stay=False)
    scene.go("alone")
    scene.finish(alone)
    assert scene.events("alone") == ["asks", "begun", "took", "none", "ended"], scene.events("alone")
    assert "weft profile keep" not in alone.stderr(), alone.stderr()
    # Ctrl-C ends a wait for more, too.
    holder = scene.holder("again", "5GiB")
    tired = scene.job("tired", "1GiB", "4GiB", weft=[])
    scene.go("tired")
    scene.until("it waits for more", lambda: any(row["waits_for"] for row in scene.queue()["running"]))
    os.kill(tired.pid, signal.SIGINT)
    tired.wait(BOUND)
    assert not tired.timed_out and "KeyboardInterrupt" in tired.stderr(), tired.explain()
    scene.release("again")
    scene.finish(holder)


@case
def a_managed_job_larger_than_the_device_runs(scene):
    scene.warm()
    for name, says in (("whole", "8GiB"), ("larger", "9GiB")):
        job = scene.job(name, "5GiB", "2GiB", weft=["--backing", "managed", "--memory", says], stay=False)
        scene.go(name)
        scene.finish(job)
        assert scene.events(name) == ["asks", "begun", "took", "took", "ended"], f"{scene.said(name)} {job.explain()}"


@case
def what_is_said_wrongly_is_told_before_the_job_begins(scene):
    environment = scene.broker.environment
    for name, wrong in (("WEFT_MEMORY", "12GIG"), ("WEFT_DURATION", "eternal"), ("WEFT_WAIT", "soon")):
        scene.broker.environment = lambda name=name, wrong=wrong: {**environment(), name: wrong}
        told = scene.weft("run", "--", "/bin/touch", str(scene.folder / "began"), code=2).stderr.splitlines()
        assert len(told) == 1 and name in told[0], told
    scene.broker.environment = environment
    assert not (scene.folder / "began").exists()


@case
def fifo_and_exclusive_order_as_they_say(scene):
    for policy, together in (("fifo", True), ("exclusive", False)):
        scene.again("--admission", policy)
        assert scene.queue()["policy"] == policy, scene.queue()
        holder = scene.holder(f"{policy}-holder", "5GiB")
        large = scene.waiter(f"{policy}-large", "6GiB")
        # It would fit beside the holder and is short, and came later.
        small = scene.job(f"{policy}-small", "500MiB", weft=["--memory", "600MiB", "--duration", "short"])
        scene.waits(small)
        assert scene.waiting() == [large.pid, small.pid], scene.queue()
        scene.release(f"{policy}-holder")
        scene.finish(holder)
        scene.until("the large one has its memory", lambda p=policy: scene.has(f"{p}-large", "took"))
        if together:
            scene.until("the small one runs beside it", lambda p=policy: scene.has(f"{p}-small", "took"))
        else:
            assert scene.waiting() == [small.pid], scene.queue()
        for name, job in ((f"{policy}-large", large), (f"{policy}-small", small)):
            scene.release(name)
            scene.finish(job)
        # Let in together they begin in any order.
        assert together or scene.at(f"{policy}-large", "begun") < scene.at(f"{policy}-small", "begun")


def main():
    options = cases.parser(__doc__)
    options.add_argument("--torch", type=int, default=len(TEN), metavar="N", help="so many of the ten jobs are PyTorch's (0 to 3, or all)")
    options.add_argument("--no-torch", action="store_const", dest="torch", const=0, help="none")
    options.add_argument("--queued", type=int, default=50)
    return case.run(options.parse_args())


if __name__ == "__main__":
    sys.exit(main())
