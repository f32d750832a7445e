# SPDX-License-Identifier: MIT OR Apache-2.0
"""The cost of one hostile user on a shared broker to the three other users.

Ann has the job that matters: it launches in bursts and pauses. Bea and Cat have a job each that
fills its gaps. Cat also starts short jobs, one after the other, that check all their results.
Mallory (tests/soak/hostile.py) attacks the broker in every third phase. In the phase before, he
does the same to another broker that has no clients: the loss of the three in that phase is the
machine's and not this broker's. All jobs have different users, and so has the attacker; only root
can arrange that.

Invariants:
* no job of the three is lost: each ends with exit code 0 and the right result, and none gets the
  warning that it runs as without weft;
* the three lose at most 5 % of their work, by the time that the device spent on their kernels in
  phases with and without the attack, in turn. The device is slow here (a kernel takes some 300 us),
  but a machine that others use moves this figure all the same. It is always reported, and judged
  from 8 phases of each kind on (`--minutes 1 attack` plays them): the check fails if even the upper
  end of the ratio's interval is below 0.95. The attacker and his session take only CPU time that no
  other process wants: weft does not distribute CPU time;
* the broker's memory, descriptors and threads stay bounded, and are given back.
The attacker's priority is the least (9, by the owner's setting): a user with a higher one can take
the device from others by launching, and needs no broker for that.
"""

import os
import random
import statistics
import subprocess
import sys
import time

import hostile
import stage
import wire
from fixtures.scene import COMPANION
from harness import devicelog, jobs, paths

sys.path.insert(0, str(stage.ROOT / "tests" / "admission"))
import users  # noqa: E402

ANN, BEA, CAT, MALLORY = 61001, 61002, 61003, 61004
# Seconds of a phase, and the kinds of phases.
PHASE = 2.5
PHASES = ("quiet", "elsewhere", "attacked")
# The part of their work without the attack that the three keep at least.
KEPT = 0.95
# Phases of each kind from which on that is judged: with fewer, other load on the machine decides.
JUDGED = 8
# Bounds of the attacked broker: bytes, descriptors, threads. 1,024 clients a user of three
# descriptors each are allowed.
MOST_MEMORY, MOST_FILES, MOST_THREADS = 400 << 20, 6000, 200
# The device's memory: the memory that Mallory may rightly ask for must not fill it.
MEMORY = 24 << 30
# A kernel's time, ns.
KERNEL = 300_000


class Scene(users.Scene):
    """The shared broker's scene for four users, on a slow device with a log of its operations."""

    def __init__(self, folder, options):
        rights = [word for uid in (ANN, BEA, CAT) for word in ("--priority-of", f"{uid}=0")]
        super().__init__(folder, options, options.policy, broker=(*rights, *(["--trace", os.environ["SOAK_TRACE"]] if "SOAK_TRACE" in os.environ else []), "--priority-of", f"{MALLORY}=9"))
        for uid in (CAT, MALLORY):
            (self.folder / str(uid)).mkdir(mode=0o700)
            os.chown(self.folder / str(uid), uid, uid)
        # Files that the users start must lie in a folder that they may read.
        stage.copied(self.bin, (COMPANION, "companion"), (stage.KERNELS, "kernels.ptx"))
        command = ["cc", "-O1", "-o", self.bin / "calls", stage.HERE / "programs" / "calls.c", f'-DKERNELS="{self.bin / "kernels.ptx"}"', "-ldl", "-lpthread"]
        subprocess.run([str(part) for part in command], check=True, timeout=stage.BOUND)
        self.config = self.folder / "device/device.toml"
        self.config.write_text(f'[[kernel]]\nname = "simgpu_fill"\ngrid = [1, 1, 1]\nblock = [32, 1, 1]\nns = {KERNEL}\n')
        self.config.chmod(0o644)
        self.log = self.folder / "device/device.log"
        self.running = self.folder / "running"

    def environment(self, uid):
        return {**super().environment(uid), "SIMGPU_LOG": str(self.log), "SIMGPU_CONFIG": str(self.config), "SIMGPU_MEMORY": str(MEMORY), "WEFT_LOG": "warn"}

    def start_as(self, uid, name, command, priority, *weft):
        words = [self.bin / "weft", "run", "--priority", priority, *weft, "--", *command]
        job = jobs.Job(words, environment=self.environment(uid), folder=self.folder, name=name, limits=users.becomes(uid), cwd="/")
        job.uid = uid
        self.jobs.append(job)
        return job

    def companion(self, uid, name, priority, *pattern):
        """A job that launches until the scene ends."""
        ready = self.folder / str(uid) / f"{name}.ready"
        command = [self.bin / "companion", "--while", self.running, "--ready", ready, *pattern]
        job = self.start_as(uid, name, command, priority, "--memory", "1GiB")
        assert jobs.wait_until(lambda: ready.exists() or not job.running(), stage.BOUND) and job.running(), job.explain()
        return job

    def open_elsewhere(self):
        """Another shared broker, used only by the attacker, at the attacker's nice value. The same
        attack there costs the three only the machine's part."""
        place = self.folder / "elsewhere"
        place.mkdir(mode=0o755)
        self.elsewhere = place / "broker.sock"
        words = [self.bin / "weft", "broker", "--shared", "--socket", self.elsewhere, "--priority-of", f"{MALLORY}=9"]
        job = jobs.Job(words, environment={**jobs.clean_environment(), "WEFT_LOG": "info"}, folder=self.folder, name="elsewhere", limits=hostile.stand_back)
        self.jobs.append(job)
        assert jobs.wait_until(self.elsewhere.exists, stage.BOUND) and job.running(), job.explain()
        return job

    def device_time(self):
        """The device's time now; all that ended before is in its log then."""
        command = [str(paths.SIMGPU_DEVICE), "status"]
        done = subprocess.run(command, env=self.environment(0), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=stage.BOUND, check=True)
        return int(stage.json.loads(done.stdout)["now"])


class Short:
    """Cat's short jobs, one after the other."""

    def __init__(self, scene, plains, figures, rng):
        self.scene, self.plains, self.figures, self.rng = scene, plains, figures, rng
        self.job = None
        self.count = self.right = 0

    def step(self):
        """Called often: when one has ended the next one begins."""
        if self.job is not None:
            if self.job.running() and time.monotonic() < self.end_by:
                return
            self.over()
        self.count += 1
        self.plain = self.rng.choice(self.plains)
        self.result = self.scene.folder / str(CAT) / f"short{self.count}"
        self.job = self.scene.start_as(CAT, f"short{self.count}", self.plain.play.command(self.scene.bin, self.result), 6, "--memory", "1GiB")
        self.end_by = time.monotonic() + stage.BOUND
        self.figures.starts += 1

    def over(self):
        self.job.wait(max(0.0, self.end_by - time.monotonic()))
        what = f"short job {self.count} ({self.plain.play}) beside the attack"
        if stage.judge(self.figures, what, self.plain, self.job, self.result):
            self.right += 1
            heard(self.figures, what, self.job)
        self.scene.jobs.remove(self.job)
        self.job = None

    def finish(self):
        """Waits for the last one."""
        if self.job is not None:
            self.over()


def play(folder, options, seconds, seed, figures, progress):
    """The part; nothing if the user is not root."""
    if os.geteuid() != 0:
        return "skipped: only root can start jobs of several users"
    if users.python() is None:
        return "skipped: no Python here that other users may start"
    rng = random.Random(seed)
    before = len(figures.troubles)
    scene = Scene(folder, options)
    (folder / "plain").mkdir()
    plays = [stage.Play(rng.randrange(1 << 31), 25, 1) for _ in range(4)]
    (folder / "plain" / "calls").symlink_to(scene.bin / "calls")
    plains = list(stage.plain_runs(folder / "plain", plays, figures).values())
    attacker = None
    try:
        scene.open()
        scene.running.touch()
        scene.running.chmod(0o644)
        long = {
            "ann": scene.companion(ANN, "ann", 0, "--burst", "4", "--pause", "4000"),
            "bea": scene.companion(BEA, "bea", 5, "--burst", "8"),
            "cat": scene.companion(CAT, "cat", 5, "--burst", "8"),
        }
        device = stage.asked(scene.socket, "queue")["devices"][0]
        short = Short(scene, plains, figures, rng)
        other = scene.open_elsewhere()
        rounds = max(2, round(seconds / PHASE / len(PHASES)))
        spans, most = [], (0, 0, 0)
        quiet = state(scene.broker)
        used = dict.fromkeys(PHASES, 0.0)
        for number in range(len(PHASES) * rounds):
            phase = PHASES[number % len(PHASES)]
            if phase != "quiet":
                socket = scene.socket if phase == "attacked" else scene.elsewhere
                command = [sys.executable, stage.HERE / "hostile.py", socket, MALLORY, device["uuid"], MEMORY, 600, *(options.attack or [])]
                attacker = jobs.Job(command, environment=jobs.clean_environment(), folder=folder, name="mallory")
            begin = scene.device_time()
            cpu = wire.cpu_seconds(scene.broker.pid)
            end = time.monotonic() + PHASE
            while time.monotonic() < end:
                short.step()
                alive(scene, long, figures)
                most = tuple(map(max, most, state(scene.broker)))
                time.sleep(0.02)
            used[phase] += (wire.cpu_seconds(scene.broker.pid) - cpu) / PHASE / rounds
            spans.append((phase, begin, scene.device_time()))
            if phase != "quiet":
                attacker.kill()
                # The leftovers of the attack must go before the next quiet phase, or that one is
                # not quiet.
                attacked = scene.broker if phase == "attacked" else other
                calm = jobs.wait_until(lambda broker=attacked: files(broker) <= quiet[1] + 40, 30, 0.05)
                if not calm:
                    figures.trouble("lost", f"the broker keeps {files(attacked)} descriptors after the attack; it had {quiet[1]}")
            progress(f"phase {number + 1} of {len(PHASES) * rounds}, {phase}: {short.right} short jobs ended right; the broker had {said(most)}")
        short.finish()
        scene.running.unlink()
        for name, job in long.items():
            code = job.wait(stage.BOUND)
            if code != 0:
                figures.trouble("hung" if job.timed_out else "lost", f"{name}'s job\n{job.explain()}")
            else:
                heard(figures, f"{name}'s job", job)
                figures.ended += 1
    finally:
        if attacker:
            attacker.kill()
        scene.close()
    pids = {job.pid for job in long.values()}
    records = [record for record in devicelog.read(scene.log) if record.get("pid") in pids and record.get("op") == "kernel"]
    kept = {name: {against: ratio(records, job.pid, spans, against) for against in ("quiet", "elsewhere")} for name, job in long.items()}
    if most[0] > MOST_MEMORY or most[1] > MOST_FILES or most[2] > MOST_THREADS:
        figures.trouble("lost", f"the broker had {said(most)}")
    for name, of in kept.items():
        middle, _, high = of["quiet"]
        if rounds >= JUDGED and high < KEPT:
            figures.trouble("lost", f"{name} keeps {middle:.3f} of the work under attack, at most {high:.3f}; aim {KEPT}")
    figures.settle(before)
    text = "; ".join(f"{name} {shown(of['quiet'])}, beside the same attack on another broker {shown(of['elsewhere'])}" for name, of in kept.items())
    cores = ", ".join(f"{phase} {share:.2f}" for phase, share in used.items())
    return f"of their work without the attack the three kept: {text}; {short.right} short jobs right; the broker had {said(most)} and took of a core: {cores}"


def shown(ratio):
    """A ratio and its interval in words."""
    return "{:.3f} ({:.3f} to {:.3f})".format(*ratio)


def heard(figures, what, job):
    """A job that lost weft lost something. The line that it waited for memory which another job
    asked for also stands on its stderr, and belongs to the queue."""
    lines = [line for line in job.stderr().splitlines() if "waits for device memory" not in line and " begins" not in line]
    if lines:
        figures.trouble("lost", f"{what} heard from weft: {' / '.join(lines)[:400]}")


def files(broker):
    """A broker's descriptors; more than any bound if it is gone."""
    try:
        return wire.open_files(broker.pid)
    except OSError:
        return sys.maxsize


def state(broker):
    """A broker's memory, descriptors and threads now."""
    try:
        return wire.resident(broker.pid), wire.open_files(broker.pid), wire.threads(broker.pid)
    except (OSError, StopIteration):
        return 0, 0, 0


def said(state):
    """The same in words."""
    return f"{state[0] >> 20} MiB, {state[1]} descriptors and {state[2]} threads at most"


def alive(scene, long, figures):
    """None of the three, nor the broker, ends by itself."""
    assert scene.broker.running(), f"the broker ended\n{scene.broker.explain()}"
    for name, job in long.items():
        assert job.running(), f"{name}'s job ended\n{job.explain()}"


def ratio(records, pid, spans, against):
    """(ratio, low, high). The ratio of two times that the device works on this process in a device
    second: in attacked phases, over that in phases of kind `against`. `low`, `high`: its 95 %
    interval by the phases' scatter."""
    records = [record for record in records if record["pid"] == pid]
    rates = {phase: [devicelog.busy(records, {pid}, begin, end) / (end - begin) for what, begin, end in spans if what == phase] for phase in (against, "attacked")}
    calm, hot = statistics.fmean(rates[against]), statistics.fmean(rates["attacked"])
    if not calm:
        return 0.0, 0.0, 0.0
    # A mean's error, relative; with two phases each the scatter is poorly known, so it is taken
    # at three times.
    error = sum((statistics.stdev(of) / statistics.fmean(of)) ** 2 / len(of) if statistics.fmean(of) else 1.0 for of in rates.values()) ** 0.5
    reach = (3.0 if len(rates["attacked"]) < 5 else 2.0) * error
    middle = hot / calm
    return middle, middle * (1 - reach), middle * (1 + reach)


__all__ = ["hostile", "play"]
