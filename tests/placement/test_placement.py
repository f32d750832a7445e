# SPDX-License-Identifier: MIT OR Apache-2.0
"""Several GPUs: the device of jobs that let weft choose, the independence of jobs on different
devices, and the accounts of jobs that use several.

The machine has simulated GPUs of 16 and 8 GiB (or one that is divided into instances) and a broker
of its own.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness import jobs, paths

JOB = Path(__file__).resolve().parent / "job.py"
# A wait fails after this time without an event in the scene: no job came, printed a line or
# ended. The whole duration is the machine's business.
BOUND = 90.0
# But even a scene with events all the time is not waited for longer.
LONGEST = 20 * BOUND
# The larger one first, so that a job does not land there only because it is the first.
TWO = "16GiB,8GiB"
DIVIDED = "16GiB:6GiB@3+3GiB@1,8GiB"
LARGE, SMALL = "5e1f6d7500004000800073696d670001", "6f1f6d7500004000800073696d670002"
# The part that differs between scenes lies in the middle of a UUID.
IN_THE_MIDDLE = re.compile(r"([0-9a-f]{8})[0-9a-f]{4}4[0-9a-f]{3}[89ab][0-9a-f]{3}(73696d67[0-9a-f]{4})")


def plain(said):
    """JSON with each device called as in any scene."""
    return json.loads(IN_THE_MIDDLE.sub(r"\g<1>000040008000\2", json.dumps(said)))


class Scene:
    """The devices, a broker and jobs in a folder of their own."""

    def __init__(self, folder, _options, policy, devices=TWO):
        self.folder = Path(folder)
        self.device = jobs.Device(self.folder)
        self.device.settings["SIMGPU_DEVICES"] = devices
        self.broker = jobs.Broker(self.folder, self.device, policy=policy)
        self.jobs = []

    def open(self):
        self.broker.start()

    def close(self):
        for job in self.jobs:
            job.kill()
        self.broker.stop()

    def job(self, name, *words, weft=(), bare=False, more=None):
        """Starts one. It stays until `release(name)`."""
        (self.folder / f"{name}.stay").touch()
        command = [sys.executable, str(JOB), str(self.folder / f"{name}.json"), "--while", str(self.folder / f"{name}.stay"), *words]
        environment = {**jobs.clean_environment(), **self.device.environment()}
        if not bare:
            environment |= self.broker.variables()
            command = [str(paths.WEFT), "run", *weft, "--", *command]
        job = jobs.Job(command, environment={**environment, **(more or {})}, folder=self.folder, name=name)
        self.jobs.append(job)
        return job

    def said(self, name, event):
        return plain(next((line for line in jobs.lines_of(self.folder / f"{name}.json") if line["event"] == event), None))

    def lands(self, name, *words, weft=(), more=None):
        """Starts a job that lets weft choose, waits until it has its memory, and returns its
        device."""
        job = self.job(name, *words, weft=["--gpu", "any", *weft], more=more)
        self.until(f"{name} has its memory", lambda: self.said(name, "took"))
        devices = self.said(name, "sees")["devices"]
        assert len(devices) == 1, f"{name} sees {devices}"
        assert job.stdout() == b"", f"{name}: something wrote to its stdout"
        return devices[0]

    def release(self, name):
        (self.folder / f"{name}.stay").unlink(missing_ok=True)

    def ends(self, name):
        self.release(name)
        job = next(job for job in self.jobs if job.name == name)
        self.comes_true(lambda: not job.running())
        code = job.wait(0.1)
        assert not job.timed_out and code == 0, f"{name}: {job.explain()}"

    def ask(self, *words):
        done = subprocess.run([str(paths.WEFT), *words, "--json"], env=self.broker.environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=BOUND, check=False)
        return plain(json.loads(done.stdout)) if done.returncode == 0 else None

    def clients(self, name):
        """The broker's clients of a job's process: one for each of its devices, in the order of
        their attaching."""
        job = next(job for job in self.jobs if job.name == name)
        mine = [client for client in (self.ask("status") or {"clients": []})["clients"] if client["pid"] == job.pid]
        return sorted(mine, key=lambda client: client["client"])

    def client(self, name):
        return next(iter(self.clients(name)), None)

    def happened(self):
        """A value that differs from an earlier one when something has happened in between."""
        each = [(job.process.poll(), jobs.size_of(job.stdout_path), jobs.size_of(job.stderr_path), jobs.size_of(self.folder / f"{job.name}.json")) for job in self.jobs]
        return [*each, jobs.size_of(self.broker.job.stderr_path)]

    def comes_true(self, condition, bound=BOUND):
        """Waits for it for as long as things happen."""
        return jobs.wait_while(condition, self.happened, bound, LONGEST)

    def until(self, what, condition, bound=BOUND):
        assert self.comes_true(condition, bound), f"{what}: nothing has happened for {bound:.0f} s\n{json.dumps(self.ask('queue'), indent=1)}\n" + "\n".join(
            f"{job.name}: {job.stderr()[-600:]}" for job in self.jobs
        )


pytestmark = pytest.mark.scene(make=Scene)


def test_jobs_land_where_least_is_left(scene):
    assert scene.lands("first", "--take", "5GiB", weft=["--memory", "6GiB"]) == SMALL
    assert scene.lands("second", "--take", "5GiB", weft=["--memory", "6GiB"]) == LARGE
    assert scene.lands("third", "--take", "5GiB", weft=["--memory", "6GiB"]) == LARGE
    fourth = scene.job("fourth", "--take", "5GiB", weft=["--gpu", "any", "--memory", "6GiB", "--duration", "short"])
    scene.until("the fourth waits", lambda: fourth.pid in [row["pid"] for row in scene.ask("queue")["waiting"]])
    scene.until("it says why", lambda: "waits for device memory" in fourth.stderr())
    known = {row["uuid"]: row["memory"] for row in scene.ask("queue")["devices"]}
    assert known == {LARGE: 16 << 30, SMALL: 8 << 30}, known
    # It waits on the device that was expected to be free first: one of the three ends there.
    where = scene.said("fourth", "sees")["devices"]
    assert len(where) == 1, where
    scene.ends("first" if where == [SMALL] else "second")
    scene.until("the fourth has its memory", lambda: scene.said("fourth", "took"))
    for name in ("fourth", "third", "second" if where == [SMALL] else "first"):
        scene.ends(name)


def test_nothing_said_goes_where_most_is_left(scene):
    assert scene.lands("unknown", "--take", "64MiB") == LARGE


def test_the_variable_is_respected(scene):
    assert scene.lands("kept", "--take", "64MiB", weft=["--memory", "1GiB"], more={"CUDA_VISIBLE_DEVICES": "0"}) == LARGE
    assert scene.lands("other", "--take", "64MiB", weft=["--memory", "1GiB"], more={"CUDA_VISIBLE_DEVICES": "GPU-6f,7,0"}) == SMALL
    none = scene.job("none", weft=["--gpu", "any"], more={"CUDA_VISIBLE_DEVICES": ""})
    scene.until("it has looked", lambda: scene.said("none", "sees"))
    assert scene.said("none", "sees")["devices"] == []
    assert none.wait(BOUND) == 0
    listed = scene.job("listed", weft=["--gpu", "0", "--memory", "1GiB"])
    scene.until("it has looked", lambda: scene.said("listed", "took"))
    assert scene.said("listed", "sees")["devices"] == [LARGE]
    wrong = scene.job("wrong", weft=["--gpu", "7"])
    assert wrong.wait(BOUND) == 2 and "is not a device" in wrong.stderr(), wrong.stderr()
    large = scene.job("large", weft=["--gpu", "any", "--memory", "17GiB"])
    assert large.wait(BOUND) == 1 and "can never run here" in large.stderr(), large.stderr()
    both = scene.job("both", bare=True)
    scene.until("it has looked", lambda: scene.said("both", "sees"))
    assert scene.said("both", "sees")["devices"] == [LARGE, SMALL], "without weft nothing is chosen"
    del listed


def test_a_place_is_promised_until_the_job_comes_or_dies(scene):
    first = scene.job("first", "--before", str(scene.folder / "go"), weft=["--gpu", "any", "--memory", "6GiB"])
    scene.until("it has looked", lambda: scene.said("first", "sees"))
    assert scene.said("first", "sees")["devices"] == [SMALL]
    # It has no context yet, and no other job gets its room.
    assert scene.lands("second", "--take", "64MiB", weft=["--memory", "6GiB"]) == LARGE
    first.kill()
    assert scene.lands("third", "--take", "64MiB", weft=["--memory", "6GiB"]) == SMALL


@pytest.mark.scene(devices=DIVIDED)
def test_instances_are_devices(scene):
    first = scene.lands("first", "--take", "1GiB", weft=["--memory", "2GiB"])
    assert first not in (LARGE, SMALL), first
    assert scene.said("first", "sees")["memory"] == [3 << 30]
    assert scene.said("first", "sees")["variable"].startswith("MIG-")
    second = scene.lands("second", "--take", "1GiB", weft=["--memory", "5GiB"])
    assert scene.said("second", "sees")["memory"] == [6 << 30] and second != first
    assert scene.lands("third", "--take", "1GiB", weft=["--memory", "5GiB"]) == SMALL
    kept = scene.lands("kept", more={"CUDA_VISIBLE_DEVICES": scene.said("second", "sees")["variable"]})
    assert kept == second


def test_jobs_on_different_devices_do_not_gate_each_other(scene):
    def works(name, device, priority):
        scene.job(name, "--take", "64MiB", "--work", "--device", str(device), weft=["--memory", "1GiB", "--priority", str(priority)])
        scene.until(f"{name} works", lambda: (scene.client(name) or {"transfers": 0})["transfers"] > 500)

    works("here", 0, 0)
    works("there", 1, 9)
    modes = [scene.client(name)["mode"] for name in ("here", "there")]
    assert modes == ["alone", "alone"], modes
    before = {name: scene.client(name) for name in ("here", "there")}
    scene.until("both go on", lambda: all(scene.client(name)["transfers"] > before[name]["transfers"] + 2000 for name in before))
    for name, was in before.items():
        assert scene.client(name)["waits"] == was["waits"], f"{name} waited"
    # On one device they do.
    works("beside", 0, 9)
    modes = [scene.client(name)["mode"] for name in ("here", "there", "beside")]
    assert modes == ["foreground", "alone", "background"], modes
    for name in ("here", "there", "beside"):
        scene.ends(name)


def test_memory_counts_where_it_is_taken(scene):
    both = scene.job("both", "--take", "1GiB", "--also", "1:2GiB")
    scene.until("it has memory on both", lambda: scene.said("both", "also"))
    rows = {row["device"]: row for row in scene.ask("queue")["running"]}
    assert {device: row["held"] for device, row in rows.items()} == {LARGE: 1 << 30, SMALL: 2 << 30}, rows
    assert {row["pid"] for row in rows.values()} == {both.pid}, rows
    took, also = scene.said("both", "took"), scene.said("both", "also")
    assert (took["total"], also["total"]) == (16 << 30, 8 << 30), (took, also)
    # Its memory on the second device is no other job's there, and all the rest of it is.
    free = {row["uuid"]: row["free"] for row in scene.ask("queue")["devices"]}
    beside = scene.job("beside", "--device", "1", "--take", "5GiB", weft=["--memory", "5GiB"])
    scene.until("another has its memory beside it", lambda: scene.said("beside", "took"))
    now = {row["uuid"]: row["free"] for row in scene.ask("queue")["devices"]}
    assert now[LARGE] == free[LARGE] and now[SMALL] <= free[SMALL] - (5 << 30), (free, now)
    late = scene.job("late", "--device", "1", "--take", "1GiB", weft=["--memory", "1GiB", "--no-wait"])
    assert late.wait(BOUND) == 75, late.explain()
    statuses = [client for client in scene.ask("status")["clients"] if client["pid"] == both.pid]
    assert sorted(client["memory"] for client in statuses) == [1 << 30, 2 << 30], statuses
    # A job that grows into a full device learns so, and keeps its memory elsewhere.
    grows = scene.job("grows", "--take", "1GiB", "--also", "1:2GiB", weft=["--wait", "2"])
    scene.until("it is told", lambda: scene.said("grows", "also none"))
    for name in ("grows", "both", "beside"):
        scene.ends(name)
    scene.until("all is given back", lambda: not scene.ask("queue")["running"])
    assert scene.ask("status")["clients"] == []


def test_a_broker_that_follows_finds_a_job_on_both_devices(scene):
    scene.job("both", "--take", "1GiB", "--also", "1:2GiB", "--work")
    scene.until("it has memory on both", lambda: scene.said("both", "also"))

    def rows():
        return {row["device"]: (row["held"], row["share"] >= row["held"], len(row["clients"])) for row in (scene.ask("queue") or {"running": []})["running"]}

    held = {LARGE: (1 << 30, True, 1), SMALL: (2 << 30, True, 1)}
    scene.until("it is known on both", lambda: rows() == held)
    scene.broker.kill()
    scene.broker.start()
    scene.until("it is known on both again", lambda: rows() == held)
    before = [row["transfers"] for row in scene.clients("both")]
    scene.until("it works on both", lambda: all(now["transfers"] > was + 200 for now, was in zip(scene.clients("both"), before, strict=True)))
    scene.ends("both")
    scene.until("all is given back", lambda: not scene.ask("queue")["running"])


def test_launches_count_where_they_go(scene):
    """A job on both devices is the foreground job of the first, and a background job on the second
    while a more important one works there."""

    def works(name, *words, priority, clients=1):
        scene.job(name, "--take", "64MiB", *words, "--work", weft=["--memory", "1GiB", "--priority", str(priority)])
        scene.until(f"{name} works", lambda: [row["transfers"] > 200 for row in scene.clients(name)] == [True] * clients)

    works("both", "--also", "1:64MiB", priority=5, clients=2)
    assert sorted(row["mode"] for row in scene.clients("both")) == ["alone", "alone"], scene.clients("both")
    works("there", "--device", "1", priority=0)
    # One of the two clients of the job on both devices shares its device with the new one.
    assert sorted(row["mode"] for row in scene.clients("both")) == ["alone", "background"], scene.clients("both")
    assert [row["mode"] for row in scene.clients("there")] == ["foreground"]
    works("here", "--device", "0", priority=9)
    assert sorted(row["mode"] for row in scene.clients("both")) == ["background", "foreground"], scene.clients("both")
    before = {name: [row["transfers"] for row in scene.clients(name)] for name in ("both", "there", "here")}
    scene.until(
        "all go on, on every device",
        lambda: all(now["transfers"] > was + 100 for name in before for now, was in zip(scene.clients(name), before[name], strict=True)),
    )
    # No launch goes to the device on which it only holds memory.
    scene.job("only", "--take", "64MiB", "--also", "1:64MiB", "--only", "1", "--work", weft=["--memory", "1GiB", "--priority", "7"])
    scene.until("it works on one", lambda: sum(row["transfers"] for row in scene.clients("only")) > 200)
    assert sorted(row["transfers"] for row in scene.clients("only"))[0] == 0, scene.clients("only")
    for name in ("only", "here", "there", "both"):
        scene.ends(name)


def test_ranks_of_a_job_count_each_on_its_own_device(scene):
    # As torchrun starts them: the second comes when the first has its memory.
    stay = {name: scene.folder / f"{name}.stay" for name in ("first", "second")}
    ranks = [
        f"{sys.executable} {JOB} {scene.folder}/{name}.json --device {device} --take 3GiB --while {stay[name]} --before {before}"
        for device, (name, before) in enumerate({"first": JOB, "second": scene.folder / "go"}.items())
    ]
    for file in stay.values():
        file.touch()
    environment = {**jobs.clean_environment(), **found_by(scene), "LOCAL_WORLD_SIZE": "2"}
    job = jobs.Job([str(paths.WEFT), "run", "--memory", "12GiB", "--", "sh", "-c", f"{ranks[0]} & {ranks[1]} & wait"], environment=environment, folder=scene.folder, name="ranks")
    scene.jobs.append(job)
    scene.until("the first has its memory", lambda: scene.said("first", "took"))
    assert [(row["device"], row["share"] >= 12 << 30) for row in scene.ask("queue")["running"]] == [(LARGE, True)]
    (scene.folder / "go").touch()
    scene.until("so has the second", lambda: scene.said("second", "took"))
    rows = {row["device"]: row for row in scene.ask("queue")["running"]}
    assert set(rows) == {LARGE, SMALL} and rows[LARGE]["pid"] != rows[SMALL]["pid"], rows
    # Half of the declared memory on each, and the contexts.
    for row in rows.values():
        assert 6 << 30 <= row["share"] < 7 << 30 and row["held"] == 3 << 30, rows
    # So another job that would not fit next to both ranks fits next to the first, and one next to
    # the second does not.
    scene.job("large", "--device", "0", "--take", "8GiB", weft=["--memory", "8GiB"])
    scene.until("a large one fits", lambda: scene.said("large", "took"))
    late = scene.job("late", "--device", "1", "--take", "2GiB", weft=["--memory", "2GiB", "--no-wait"])
    assert late.wait(BOUND) == 75, late.explain()
    for file in stay.values():
        file.unlink()
    assert job.wait(BOUND) == 0, job.explain()
    scene.ends("large")
    scene.until("all is given back", lambda: not scene.ask("queue")["running"])


def test_pytorch_is_told_of_each_device_what_it_may_have_there(scene):
    if not paths.python("torch").exists():
        pytest.skip("no .venv-torch: scripts/setup torch")
    beside = scene.job("beside", "--device", "1", "--take", "5GiB", weft=["--memory", "5GiB"])
    scene.until("one has most of the second device", lambda: scene.said("beside", "took"))
    environment = {**jobs.clean_environment(), **found_by(scene)}
    job = jobs.Job([str(paths.WEFT), "run", "--", str(paths.python("torch")), str(JOB.parent / "spread.py")], environment=environment, folder=scene.folder, name="torch")
    scene.jobs.append(job)
    code = job.wait(2 * BOUND)
    assert not job.timed_out and code == 0, job.explain()
    said = json.loads(job.stdout())
    # A model's layers on both, as device_map="auto" lays them; a request beyond the free memory
    # of the second is refused there and only there.
    assert said["free"][0] > 14 << 30 and 1 << 30 < said["free"][1] < 3 << 30, said
    assert said["refused"] == [False, True] and said["after"] == [True, True], said
    assert said["layers"] == ["cuda:0"] * 4 + ["cuda:1"] * 2, said
    assert said["parallel"] == [64, 10], said
    # One client for each device, each with the launches that went there.
    def ended_clients():
        return [row["last"] for row in scene.ask("status")["ended"] if row["last"]["pid"] == job.pid]

    scene.until("both have ended", lambda: len(ended_clients()) == 2)
    ended = ended_clients()
    assert all(row["launches"] > 20 and row["memory_peak"] > 1 << 30 for row in ended), ended
    assert sum(row["troubles"] for row in ended) == 0, ended
    assert beside.running(), "the neighbour lives"
    scene.ends("beside")


def test_pytorch_uses_both_devices(scene):
    if not paths.python("torch").exists():
        pytest.skip("no .venv-torch: scripts/setup torch")
    expected = {"count": 2, "values": [[3.0] * 8, [4.0] * 8], "across": [4.0] * 8, "waited": True, "total": [16 << 30, 8 << 30], "peer": False}
    for name, through in (("bare", []), ("weft", [str(paths.WEFT), "run", "--"])):
        environment = {**jobs.clean_environment(), **found_by(scene)}
        job = jobs.Job([*through, str(paths.python("torch")), str(JOB.parent / "both.py")], environment=environment, folder=scene.folder, name=name)
        scene.jobs.append(job)
        code = job.wait(2 * BOUND)
        assert not job.timed_out and code == 0, job.explain()
        said = json.loads(job.stdout())
        assert said == expected, f"{name}: {said}"


def found_by(scene):
    """Variables by which a job of this scene finds its devices and its broker."""
    return {**scene.device.environment(), **scene.broker.variables()}
