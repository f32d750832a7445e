#!/usr/bin/env python3
"""Several people on one GPU: jobs of different users under one shared broker, live on a simulated GPU.

  tests/admission/users.py               all cases (half a minute); they need root, who alone can start jobs of other users: without it they are skipped
  tests/admission/users.py priority      the cases with that word in their name

The users are numbers that nobody has on this machine. Each case has a device of 8 GiB and a broker of its own, and everything that a job loads lies in the case's folder, where they may read.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from harness import cases, jobs, paths  # noqa: E402

HOLDS = Path(__file__).resolve().parent / "holds.py"
# A wait fails when for so long nothing has happened in the scene: nobody came, began, took memory, said a line or ended. How long all of it takes is the machine's business.
BOUND = 60.0
# But not even a scene in which something happens all the time is waited for longer.
LONGEST = 20 * BOUND
MEMORY = 8 << 30
ANN, BEA, SERVICE = 61001, 61002, 61000


def becomes(uid):
    """What a child does before it is the command: it is this user from then on."""

    def drop():
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)

    return drop


@functools.cache
def python():
    """An interpreter that everybody may start; the one of this run may lie in root's home. None: there is none."""
    for program in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        command = [program, "-c", "import argparse, ctypes, json"]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=BOUND, check=False, preexec_fn=becomes(ANN), cwd="/")
        except OSError:
            continue
        if done.returncode == 0:
            return program
    return None


class Scene:
    """A device, a shared broker and jobs of several users in a folder that all may enter."""

    def __init__(self, folder, options, policy, *, broker=(), service=False):
        self.folder = Path(folder)
        self.folder.chmod(0o755)
        self.policy, self.arguments = policy, broker
        self.owner = SERVICE if service else 0
        self.bin = self.folder / "bin"
        (self.bin / "lib").mkdir(parents=True)
        for file, name in (
            (paths.WEFT, "weft"),
            (paths.LIBWEFT, "libweft.so"),
            (paths.SIMGPU_CUDA, "lib/libcuda.so.1"),
            (paths.SIMGPU_DEVICE, "simgpu-device"),
            (HOLDS, "holds.py"),
        ):
            shutil.copy(Path(file).resolve(), self.bin / name)
            (self.bin / name).chmod(0o755)
        self.place = self.folder / "broker"
        self.place.mkdir(mode=0o755)
        os.chown(self.place, self.owner, self.owner)
        self.socket = self.place / "broker.sock"
        for uid in (ANN, BEA):
            (self.folder / str(uid)).mkdir(mode=0o700)
            os.chown(self.folder / str(uid), uid, uid)
        (self.folder / "device").mkdir()
        (self.folder / "device").chmod(0o777)
        self.jobs, self.brokers = [], 0

    def open(self):
        self.start()

    def start(self):
        self.brokers += 1
        words = ["broker", "--shared", "--socket", self.socket, *(["--policy", self.policy] if self.policy else []), *self.arguments]
        self.broker = jobs.Job([self.bin / "weft", *words], environment={**jobs.clean_environment(), "WEFT_LOG": "info"}, folder=self.folder, name=f"broker{self.brokers}", limits=becomes(self.owner))
        assert jobs.wait_until(lambda: self.query() or not self.broker.running(), BOUND) and self.broker.running(), self.broker.explain()

    def close(self):
        for job in self.jobs:
            job.kill()
        self.broker.terminate()

    def environment(self, uid):
        return {
            **jobs.clean_environment(),
            "HOME": str(self.folder / str(uid)),
            "XDG_RUNTIME_DIR": str(self.folder / str(uid)),
            "WEFT_PROFILE_DIR": str(self.folder / str(uid) / "profiles"),
            "WEFT_SOCKET": str(self.socket),
            "WEFT_CUDA_LIBRARY": str(self.bin / "lib/libcuda.so.1"),
            "SIMGPU_SOCKET": str(self.folder / "device/device.sock"),
            "SIMGPU_DEVICE_BIN": str(self.bin / "simgpu-device"),
            "SIMGPU_MEMORY": str(MEMORY),
            "SIMGPU_USERS": "all",
            "LD_LIBRARY_PATH": str(self.bin / "lib"),
        }

    def job(self, uid, name, *takes, weft=(), preload=False, **variables):
        """Starts one. It stays until `release(name)`. `preload`: without weft run."""
        command = [python(), self.bin / "holds.py", self.file(uid, name), "--while", self.folder / f"{name}.stay"]
        (self.folder / f"{name}.stay").touch()
        for take in takes:
            command += ["--take", take]
        environment = {**self.environment(uid), **variables}
        if preload:
            environment["LD_PRELOAD"] = str(self.bin / "libweft.so")
        else:
            command = [self.bin / "weft", "run", *weft, "--", *command]
        job = jobs.Job(command, environment=environment, folder=self.folder, name=name, limits=becomes(uid), cwd="/")
        job.uid = uid
        self.jobs.append(job)
        return job

    def file(self, uid, name):
        return self.folder / str(uid) / f"{name}.json"

    def events(self, job):
        return [line["event"] for line in jobs.lines_of(self.file(job.uid, job.name))]

    def begun(self, job):
        return next(line["at"] for line in jobs.lines_of(self.file(job.uid, job.name)) if line["event"] == "begun")

    def release(self, job):
        (self.folder / f"{job.name}.stay").unlink(missing_ok=True)

    def finish(self, job):
        self.release(job)
        self.comes_true(lambda: not job.running())
        code = job.wait(0.1)
        assert not job.timed_out and code == 0, job.explain()

    def weft(self, uid, *words, code=0):
        """A command of weft's as this user types it."""
        command = [str(self.bin / "weft"), *map(str, words)]
        done = subprocess.run(command, env=self.environment(uid), stdin=subprocess.DEVNULL, capture_output=True, timeout=BOUND, text=True, check=False, preexec_fn=becomes(uid), cwd="/")
        assert done.returncode == code, f"user {uid}, weft {' '.join(words)}: {done}"
        return done

    def query(self, what="queue"):
        done = subprocess.run([str(self.bin / "weft"), what, "--json"], env=self.environment(BEA), stdin=subprocess.DEVNULL, capture_output=True, timeout=BOUND, check=False, preexec_fn=becomes(BEA), cwd="/")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def until(self, what, condition):
        said = lambda: "\n".join(f"{job.name}: {self.events(job)} {job.stderr()[-600:]}" for job in self.jobs)  # noqa: E731
        assert self.comes_true(condition), f"{what}: nothing has happened for {BOUND:.0f} s\n{json.dumps(self.query(), indent=1)}\n{said()}"

    def happened(self):
        """Anything that differs from what it was when something has happened in between."""

        def size(path):
            try:
                return path.stat().st_size
            except OSError:
                return 0

        files = lambda job: (job.stderr_path, *([self.file(job.uid, job.name)] if hasattr(job, "uid") else []))  # noqa: E731
        return [(job.process.poll(), *map(size, files(job))) for job in [*self.jobs, self.broker]]

    def comes_true(self, condition):
        """Waits for it for as long as things happen."""
        return jobs.wait_while(condition, self.happened, BOUND, LONGEST)

    def row(self, kind, job):
        return next((row for row in (self.query() or {kind: []})[kind] if row["pid"] == job.pid), None)

    def holder(self, uid, name, memory, **more):
        """A job that has its memory."""
        job = self.job(uid, name, memory, weft=["--memory", memory], **more)
        self.until(f"{name} has its memory", lambda: "took" in self.events(job))
        return job

    def waiter(self, uid, name, memory, **more):
        job = self.job(uid, name, memory, weft=["--memory", memory], **more)
        self.until(f"{name} waits", lambda: self.row("waiting", job))
        return job


case = cases.Cases("users", Scene)


def shares_fairly(scene):
    first = scene.holder(ANN, "first", "6GiB")
    again = scene.waiter(ANN, "again", "5GiB")
    # It says that it is somebody's who has had nothing yet, and does not come before those who came earlier for that.
    liar = scene.waiter(ANN, "liar", "5GiB", WEFT_USER=str(BEA))
    other = scene.waiter(BEA, "other", "5GiB")
    small = scene.holder(BEA, "small", "1GiB")
    uids = {row["pid"]: row["uid"] for row in scene.query("status")["clients"]}
    for job in (first, again, liar, other, small):
        assert uids[job.pid] == job.uid, f"{job.name} is user {job.uid}'s, status says {uids}"
    labels = {row["pid"]: row["user"] for kind in ("waiting", "running") for row in scene.query()[kind]}
    assert labels[liar.pid] == str(ANN) and labels[other.pid] == str(BEA), labels
    table = scene.weft(BEA, "status").stdout
    assert f"{ANN}/" in table and f"{BEA}/" in table, table
    for job in (first, other, again, liar, small):
        scene.finish(job)
    order = sorted((other, again, liar), key=scene.begun)
    assert order == [other, again, liar], [job.name for job in order]
    for job in (first, again, liar, other, small):
        assert "none" not in scene.events(job), f"{job.name}: {scene.events(job)}"


@case
def two_users_share_a_device_fairly(scene):
    shares_fairly(scene)


@case.where(service=True)
def two_users_share_a_device_under_a_service_account(scene):
    shares_fairly(scene)
    assert "may do that" in scene.weft(ANN, "stop", code=1).stderr
    scene.weft(SERVICE, "stop")
    assert scene.broker.wait(BOUND) == 0


@case
def nobody_changes_what_is_anothers(scene):
    job = scene.holder(ANN, "job", "2GiB")
    row = next(row for row in scene.query("status")["clients"] if row["pid"] == job.pid)
    for how in (("--pid", job.pid), ("--client", row["client"])):
        said = scene.weft(BEA, "set", *map(str, how), "--priority", "9", code=1).stderr
        assert f"user {ANN}'s" in said, said
    assert "may do that" in scene.weft(BEA, "set", "--user", str(BEA), "--weight", "100", code=1).stderr
    assert "may do that" in scene.weft(BEA, "stop", code=1).stderr
    scene.weft(ANN, "set", "--pid", str(job.pid), "--priority", "7")
    seen = next(row["priority"] for row in scene.query("status")["clients"] if row["pid"] == job.pid)
    assert seen == 7, seen
    scene.weft(0, "set", "--user", str(BEA), "--weight", "3")
    assert scene.query()["weights"] == [{"user": str(BEA), "weight": 3}], scene.query()["weights"]
    scene.finish(job)


@case.where(broker=("--priority-of", f"{BEA}=1", "--weight-of", f"{ANN}=4"))
def priority_is_what_the_owner_allows(scene):
    ann = scene.holder(ANN, "ann", "1GiB", WEFT_PRIORITY="0")
    bea = scene.holder(BEA, "bea", "1GiB", WEFT_PRIORITY="1")
    seen = {row["pid"]: row["priority"] for row in scene.query("status")["clients"]}
    assert (seen[ann.pid], seen[bea.pid]) == (5, 1), seen
    assert {row["priority"] for row in scene.query()["running"]} == {5, 1}, scene.query()
    scene.until("it is told", lambda: "priority 0 is more than the owner" in ann.stderr())
    assert "owner" not in bea.stderr(), bea.stderr()
    assert "priority 5 at most" in scene.weft(ANN, "set", "--pid", str(ann.pid), "--priority", "4", code=1).stderr
    assert scene.query()["weights"] == [{"user": str(ANN), "weight": 4}]
    scene.finish(ann)
    scene.finish(bea)


@case
def a_name_in_common_is_no_job_in_common(scene):
    # Processes of one job share its memory: who calls his job as another's is called gets nothing of it.
    ann = scene.job(ANN, "ann", "4GiB", preload=True, WEFT_GANG="one", WEFT_MEMORY="6GiB")
    scene.until("ann has its memory", lambda: "took" in scene.events(ann))
    second = scene.job(ANN, "second", "1GiB", preload=True, WEFT_GANG="one", WEFT_MEMORY="6GiB")
    scene.until("her second process has some of that", lambda: "took" in scene.events(second))
    bea = scene.job(BEA, "bea", "1GiB", preload=True, WEFT_GANG="one", WEFT_MEMORY="6GiB")
    scene.until("bea's job waits", lambda: scene.row("waiting", bea))
    seen = scene.query()
    assert [len(row["clients"]) for row in seen["running"]] == [2], seen
    for job in (ann, second, bea):
        scene.finish(job)


@case
def a_profile_is_its_users_own(scene):
    silent = scene.job(ANN, "silent", "2GiB")
    scene.until("it has its memory", lambda: "took" in scene.events(silent))
    scene.finish(silent)
    said = scene.weft(BEA, "profile", "keep", "--name", "stolen", str(silent.pid), code=1).stderr
    assert "nothing was learnt" in said, said
    scene.weft(ANN, "profile", "keep", "--name", "hers", str(silent.pid))
    file = scene.folder / str(ANN) / "profiles/hers.profile"
    assert file.stat().st_uid == ANN
    # The folder is hers alone; the broker gets the profile from her job, and not from another's.
    ann = scene.job(ANN, "ann", "2GiB", weft=["--profile", "hers"])
    scene.until("ann's job has its memory", lambda: "took" in scene.events(ann))
    bea = scene.job(BEA, "bea", "1GiB", weft=["--profile", str(file.with_suffix(""))])
    scene.until("bea's job has its memory", lambda: "took" in scene.events(bea))
    seen = {row["pid"]: row for row in scene.query("status")["clients"]}
    assert seen[ann.pid]["profile_trouble"] is None and "cannot be read" in seen[bea.pid]["profile_trouble"], seen
    shares = {row["pid"]: row["share"] for row in scene.query()["running"]}
    # What she kept, and a context; of bea's job nothing is known, so that it grew into what it took.
    assert 2 << 30 <= shares[ann.pid] < 3 << 30, shares
    # Samples are a private broker's matter.
    trace = scene.job(BEA, "sampled", "1GiB", preload=True, WEFT_MODE="profile", WEFT_PROFILE="/etc/weft-users-test")
    scene.until("it runs", lambda: "took" in scene.events(trace))
    for job in (ann, bea, trace):
        scene.finish(job)
    assert not Path("/etc/weft-users-test.profile").exists()


@case
def a_broker_that_is_begun_anew_knows_them_all(scene):
    holder = scene.holder(ANN, "holder", "6GiB")
    waiters = [scene.waiter(uid, f"waiter{at}", "5GiB") for at, uid in enumerate((ANN, BEA, BEA))]
    order = [row["pid"] for row in scene.query()["waiting"]]
    scene.broker.kill()
    # Its socket is there still: nobody starts a broker of his own meanwhile, and a job runs as without weft.
    lone = scene.job(BEA, "lone", "1GiB", weft=["--memory", "1GiB"])
    scene.until("it runs", lambda: "took" in scene.events(lone))
    assert "shared broker" in lone.stderr(), lone.stderr()
    assert not (scene.folder / str(BEA) / "weft/broker.sock").exists()
    scene.start()
    assert [row["pid"] for row in scene.query()["waiting"]] == order
    scene.until("all are back", lambda: all(row["clients"] for kind in ("waiting", "running") for row in scene.query()[kind]) and scene.row("running", lone))
    assert [row["pid"] for row in scene.query()["waiting"]] == order
    for job in waiters:
        scene.release(job)
    for job in (lone, holder, *waiters):
        scene.finish(job)
    begun = [job.pid for job in sorted(waiters, key=scene.begun)]
    assert begun == order, f"{order} waited, {begun} began"
    assert all("none" not in scene.events(job) for job in waiters)
    seen = scene.query()
    assert (seen["running"], seen["waiting"]) == ([], []), seen


@case.where(broker=("--group", str(BEA)))
def a_group_alone_is_served(scene):
    bea = scene.holder(BEA, "bea", "1GiB")
    ann = scene.job(ANN, "ann", "1GiB", weft=["--memory", "1GiB"])
    scene.until("it runs without", lambda: "took" in scene.events(ann))
    assert "not open to this user" in ann.stderr(), ann.stderr()
    assert [row["uid"] for row in scene.query("status")["clients"]] == [BEA]
    scene.finish(ann)
    scene.finish(bea)


@case
def a_strangers_socket_is_not_used(scene):
    # Anybody may make folders in one like /tmp, so bea's is not a place that the machine's owner gave.
    place = scene.folder / "device/beas"
    place.mkdir(mode=0o755)
    os.chown(place, BEA, BEA)
    socket = place / "broker.sock"
    words = [scene.bin / "weft", "broker", "--shared", "--socket", socket]
    trap = jobs.Job(words, environment=scene.environment(BEA), folder=scene.folder, name="trap", limits=becomes(BEA), cwd="/")
    scene.jobs.append(trap)
    trap.uid = BEA
    assert jobs.wait_until(socket.exists, BOUND), trap.explain()
    ann = scene.job(ANN, "ann", "1GiB", weft=["--memory", "1GiB"], WEFT_SOCKET=str(socket))
    scene.until("it runs without", lambda: "took" in scene.events(ann))
    assert "belongs to another user" in ann.stderr(), ann.stderr()
    scene.finish(ann)


def main():
    options = cases.parser(__doc__).parse_args()
    if os.geteuid() != 0:
        print("users: skipped: only root can start jobs of several users", file=sys.stderr)
        print("0 passed, 0 failed")
        return 0
    if python() is None:
        print("users: skipped: no Python here that other users may start", file=sys.stderr)
        print("0 passed, 0 failed")
        return 0
    return case.run(options)


if __name__ == "__main__":
    sys.exit(main())
