# SPDX-License-Identifier: MIT OR Apache-2.0
"""Priorities of streams under MPS on the device itself, and weft's reports of them.

The simulated device logs the priority of each operation's stream, and acts on that priority.
"""

import json

import pytest
from fixtures.scene import BOUND, says, weft
from guest_stage import PYTHON, compiled, plainly, same, script
from harness import devicelog, jobs, paths

TORCH = paths.CLIENTS / "programs" / "torch_priorities.py"
# The levels of its streams, without weft and lowered: -5, asked for first, gets -2, and the levels
# that PyTorch makes then, from 0 on, find their places up to there.
ASKED, LOWERED = {0, -1, -3, -5}, {0, -1, -2}
# PyTorch imports for seconds on busy cores.
TORCH_BOUND = 180.0
# The device is shared without turns.
MPS = {"SIMGPU_MODE": "mps"}
OFF = {"WEFT_DEVICE_PRIORITIES": "off"}


class Torch:
    """Runs of the PyTorch program on one device that keeps a log."""

    def __init__(self, scene, more):
        if not paths.python("torch").exists():
            pytest.skip("no .venv-torch: scripts/setup torch")
        self.scene = scene
        self.more = more
        self.log = scene.folder / "device.log"
        scene.device.settings |= {"SIMGPU_LOG": str(self.log), **more}
        scene.broker.start()
        # It keeps the device alive, and is no job of weft's.
        self.bare = self.run("bare", weft=False)

    def run(self, name, *, own=True, weft=True, more=None, **preload):
        scene = self.scene
        environment = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", **(more or {})}
        command = [paths.python("torch"), TORCH, scene.folder / f"{name}.json", *(["own"] if own else [])]
        if weft:
            job = scene.job(command, name, more=environment, **preload)
        else:
            environment = {**jobs.clean_environment(), **scene.device.environment(), **environment}
            job = jobs.Job(command, environment=environment, folder=scene.folder, name=name)
            scene.jobs.append(job)
        code = job.wait(TORCH_BOUND)
        assert code == 0 and not job.timed_out, job.explain()
        return job

    def result(self, job):
        return json.loads((self.scene.folder / f"{job.name}.json").read_text())

    def records(self, job):
        """The device's records of a job. Asked for its status, the device writes its log out."""
        self.scene.device.status()
        return [record for record in devicelog.read(self.log) if record["pid"] == job.pid]

    def levels(self, job):
        return {record.get("priority", 0) for record in self.records(job) if record["op"] == "kernel"}

    def is_as_without_weft(self, job, bare=None):
        bare = bare or self.bare
        assert self.result(job) == self.result(bare), job.explain()
        expected, seen = (devicelog.streams(self.records(one)) for one in (bare, job))
        differences = devicelog.compare(expected, seen, frozenset({"event"}))
        assert not differences, "\n".join(differences)


@pytest.fixture
def torch(scene):
    return Torch(scene, MPS)


def notes(scene, job):
    """The lines for people about a job, while it runs or after."""
    seen = scene.status()
    rows = [*seen["clients"], *(entry["last"] for entry in seen["ended"])]
    return next((row["notes"] for row in rows if row["pid"] == job.pid), [])


def told(scene, job, *words):
    found = jobs.wait_until(lambda: any(all(word in note for word in words) for note in notes(scene, job)), BOUND)
    assert found, f"no note with {words}: {notes(scene, job)}"


def test_a_background_job_s_streams_are_lowered_under_mps_and_it_hears_nothing_of_it(scene, torch):
    assert torch.levels(torch.bare) == ASKED, torch.levels(torch.bare)
    beside = scene.companion("beside", priority=0, pause=3000)
    for name, more in (("background", {}), ("unqueued", {"WEFT_QUEUE": "off"})):
        job = torch.run(name, priority=6, more=more)
        assert torch.levels(job) == LOWERED, torch.levels(job)
        torch.is_as_without_weft(job)
        told(scene, job, "under MPS", "as far as their order allows")
        assert "below normal" not in " ".join(notes(scene, job)), "a plain preload cannot set that"
        last = next(entry["last"] for entry in scene.status()["ended"] if entry["last"]["pid"] == job.pid)
        assert last["troubles"] == 0, last
    assert notes(scene, beside) == []
    scene.finish_companions(beside)


def test_streams_of_pytorch_s_own_are_of_all_levels_and_stay(scene, torch):
    bare = torch.run("bare-pool", own=False, weft=False)
    job = torch.run("pool", own=False, priority=9)
    assert torch.levels(job) == torch.levels(bare) == {0, -1, -3}, torch.levels(job)
    torch.is_as_without_weft(job, bare)


def test_all_other_jobs_keep_their_priorities(scene, torch):
    wants = {
        "foreground": ({}, 0),
        "off": (OFF, 9),
        "normal": ({"CUDA_MPS_CLIENT_PRIORITY": "0"}, 9),
    }
    for name, (more, priority) in wants.items():
        job = torch.run(name, priority=priority, more=more)
        assert torch.levels(job) == ASKED, f"{name}: {torch.levels(job)}"
        torch.is_as_without_weft(job)
        assert notes(scene, job) == [], name


def test_without_mps_nothing_is_lowered(scene):
    torch = Torch(scene, {})
    job = torch.run("background", priority=9)
    assert torch.levels(job) == ASKED
    torch.is_as_without_weft(job)
    assert notes(scene, job) == []


@pytest.mark.parametrize("mode", ["mps", "timeslice"])
@pytest.mark.parametrize("handles", ["abort", "reuse"])
def test_what_a_job_hears_of_its_streams(scene, mode, handles):
    scene.device.settings |= {"SIMGPU_MODE": mode, "SIMGPU_DEAD_HANDLES": handles}
    bare = plainly(scene, script("priorities.py"))
    assert bare.process.returncode == 0, bare.explain()
    assert b"made -5 0 -1 -3 -5 0\n" in bare.stdout(), bare.explain()
    scene.broker.start()
    for priority in (0, 9):
        job = scene.job(script("priorities.py"), f"job{priority}", more=PYTHON, priority=priority)
        job.wait(BOUND)
        same(bare, job)
    off = scene.job(script("priorities.py"), "off", more={**PYTHON, **OFF}, priority=9)
    off.wait(BOUND)
    same(bare, off)


def test_a_job_under_weft_run_is_below_normal_and_status_says_so(scene):
    scene.device.settings |= MPS
    scene.broker.start()
    job = scene.companion("job", priority=7, more={"CUDA_MPS_CLIENT_PRIORITY": "1", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"})
    told(scene, job, "below normal (CUDA_MPS_CLIENT_PRIORITY=1)", "25 % of the SMs", "as far as their order allows")
    assert "below normal" in weft(scene, "status").stdout
    assert job.stderr() == "", job.explain()
    # A new broker gets it, too.
    scene.broker.stop()
    scene.broker.start()
    scene.attached(job)
    told(scene, job, "below normal (CUDA_MPS_CLIENT_PRIORITY=1)")
    scene.finish_companions(job)


def test_a_share_of_the_sms_without_mps_is_told_to_do_nothing(scene):
    scene.broker.start()
    result = scene.folder / "checked.json"
    done = weft(scene, "run", "-p", "0", "--sm-share", "25%", "--", paths.BUILT / "weft-test-client", result)
    assert done.returncode == 0 and json.loads(result.read_text()), done
    [line] = done.stderr.splitlines()
    assert "--sm-share" in line and "does nothing here" in line, line


def test_a_switch_that_is_neither_on_nor_off_is_told(scene):
    scene.broker.start()
    job = scene.companion("job", priority=7, more={"WEFT_DEVICE_PRIORITIES": "maybe"})
    says(job, "WEFT_DEVICE_PRIORITIES=maybe", "using on")
    scene.finish_companions(job)


def rows(scene, **more):
    return {row["what"]: row["found"] for row in json.loads(weft(scene, "doctor", "--json", more=more).stdout)["rows"]}


def test_doctor_says_what_a_driver_offers(scene):
    for mode, priorities, threads in (("mps", "on: under MPS", "limits a job"), ("timeslice", "of no effect", "only jobs that MPS serves")):
        found = rows(scene, SIMGPU_MODE=mode)
        assert priorities in found["device priorities"], found
        assert threads in found["sm share: active threads"], found
        assert found["sm share: green contexts"].startswith("none"), found
    assert "off" in rows(scene, SIMGPU_MODE="mps", **OFF)["device priorities"]


def test_doctor_knows_a_driver_with_green_contexts(scene):
    """The simulated driver has none. A driver of a few calls stands in."""
    driver = compiled(scene, "green_driver.c", "-shared", "-fPIC")
    found = rows(scene, WEFT_CUDA_LIBRARY=str(driver))
    assert found["sm share: green contexts"] == "the driver has them (132 SMs); weft leaves them to the job (docs/limits.md has the reason)", found
    without = compiled(scene, "green_driver.c", "-shared", "-fPIC", "-DWITHOUT_STREAMS")
    assert rows(scene, WEFT_CUDA_LIBRARY=str(without))["sm share: green contexts"].startswith("none")
