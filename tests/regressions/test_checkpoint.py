# SPDX-License-Identifier: MIT OR Apache-2.0
"""Jobs on plain memory that the driver's process checkpoint moves, and the ways in which the driver
loses a job that another program moves."""

import os
import signal
import time

import pytest
from built import compiled
from fixtures.moves import done, right, stands, state
from fixtures.scene import BOUND, weft
from harness import jobs

GIB = 1 << 30
MIB = 1 << 20
# Room for two contexts, and for one large job and a small one.
DEVICE = GIB
LARGE = 150


def alone(scene, *words, name="alone"):
    """A process without weft."""
    environment = {**jobs.clean_environment(), **scene.device.environment()}
    job = jobs.Job([compiled(scene, "checkpoint.c"), *words], environment=environment, folder=scene.folder, name=name)
    scene.jobs.append(job)
    return job


def stranger(scene, name, mib):
    """A process that weft does not know. It holds memory until its `ready` file is gone."""
    ready = scene.folder / f"{name}.ready"
    job = alone(scene, "holds", "plain", mib, ready, ready, name=name)
    stands(job, ready)
    return job, ready


@pytest.fixture
def plain(scene):
    """Starts jobs on plain memory under a broker that allows the driver's checkpoint."""
    scene.device.settings |= {"SIMGPU_MEMORY": str(DEVICE), "SIMGPU_CHECKPOINT": "595"}
    scene.broker.arguments += ["--checkpoint", "allow"]
    with_nvml(scene)

    def start(name, mib=LARGE, kind="plain", more=None):
        if not scene.broker.job:
            scene.broker.start()
        ready = scene.folder / f"{name}.ready"
        job = scene.job([compiled(scene, "checkpoint.c"), "holds", kind, mib, ready, scene.running], name, more=more)
        stands(job, ready)
        return job

    return start


def with_nvml(scene):
    before = scene.broker.environment
    scene.broker.environment = lambda: {**before(), **scene.device.environment()}


def without(scene, *words, branch="580", name="alone"):
    scene.device.settings |= {"SIMGPU_MEMORY": str(DEVICE), "SIMGPU_CHECKPOINT": branch}
    return alone(scene, *words, name=name)


# The simulated driver, without weft.


@pytest.mark.parametrize("branch", ["580", "595", "610"])
def test_the_steps_of_the_driver_and_their_codes(scene, branch):
    job = without(scene, "steps", branch=branch)
    job.wait(BOUND)
    assert b"all as it should be" in job.stdout(), f"{job.stdout()!r}\n{job.explain()}"


def test_a_driver_before_570_has_no_such_calls(scene):
    job = without(scene, "steps", branch="off")
    job.wait(BOUND)
    assert b": 801" in job.stdout(), f"{job.stdout()!r}\n{job.explain()}"


def test_without_weft_a_wait_for_a_stream_ends_a_job_that_is_away(scene):
    job = without(scene, "waits", branch="595")
    assert job.wait(BOUND) == -signal.SIGSEGV, f"{job.stdout()!r}\n{job.explain()}"


def test_without_weft_a_job_without_room_is_lost(scene):
    ready, go = scene.folder / "room.ready", scene.folder / "room.go"
    go.touch()
    job = without(scene, "room", ready, go)
    stands(job, ready)
    large, large_ready = stranger(scene, "large", 180)
    go.unlink()
    assert jobs.wait_until(lambda: b"restore" in job.stdout(), BOUND), job.explain()
    assert b"restore 2, then 304" in job.stdout(), job.stdout()
    # It keeps a part of the device.
    large_ready.unlink()
    scene.finish(large)
    more = alone(scene, "holds", "plain", 500, scene.folder / "more.ready", scene.folder / "more.ready", name="more")
    more.wait(BOUND)
    assert b"cuMemAlloc_v2(&memory, bytes): 2" in more.stdout(), more.stdout()
    job.kill()


@pytest.mark.parametrize(
    ("branch", "what", "said"),
    [("580", "managed", b"checkpoint 801, then 0"), ("595", "managed", b"checkpoint 801, then 304"), ("580", "ipc", b"checkpoint 304, then 304")],
)
def test_without_weft_shared_and_managed_memory_are_refused_or_lost(scene, branch, what, said):
    job = without(scene, what, branch=branch)
    job.wait(BOUND)
    assert said in job.stdout(), f"{job.stdout()!r}\n{job.explain()}"


def test_without_weft_shared_memory_ends_the_process_on_595(scene):
    job = without(scene, "ipc", branch="595")
    assert job.wait(BOUND) == -signal.SIGABRT, f"{job.stdout()!r}\n{job.explain()}"


def test_without_weft_a_stopped_process_blocks_those_who_ask(scene):
    scene.device.settings |= {"SIMGPU_MEMORY": str(DEVICE), "SIMGPU_CHECKPOINT": "580"}
    job, ready = stranger(scene, "stopped", 8)
    os.kill(job.pid, signal.SIGSTOP)
    asks = alone(scene, "asks", job.pid, name="asks")
    assert not jobs.wait_until(lambda: not asks.running(), 1.0), asks.stdout()
    os.kill(job.pid, signal.SIGCONT)
    asks.wait(BOUND)
    assert b"state 0" in asks.stdout(), asks.stdout()
    ready.unlink()
    scene.finish(job)


# Through weft.


def moving(scene, mib=96):
    """A job that writes and compares all the time, with a thread that waits for its stream nearly
    always."""
    ready = scene.folder / "moves.ready"
    job = scene.job([compiled(scene, "movable.c"), ready, scene.running, mib], "moves")
    stands(job, ready)
    return job


@pytest.mark.parametrize("branch", ["580", "595", "610"])
@pytest.mark.parametrize("role", ["alone", "background"])
def test_contents_survive_moves_at_any_moment(scene, plain, branch, role):
    scene.device.settings["SIMGPU_CHECKPOINT"] = branch
    scene.broker.start()
    if role == "background":
        scene.companion("main", pause=2000, more={"WEFT_PRIORITY": "0"})
    job = moving(scene)
    for _ in range(5):
        # Its own thread reports where its memory is.
        assert jobs.wait_until(lambda: state(scene, job) == "device", BOUND), scene.row(job)
        before = scene.row(job)
        assert before["eviction"]["by"] == "checkpoint", before
        done(scene, "pause", "--evict", job.pid)
        row = scene.row(job)
        away = row["eviction"]
        assert (away["state"], away["bytes"], row["memory"]) == ("evicted", before["memory"], 0), row
        assert "on the host" in weft(scene, "status").stdout
        # Its threads meet the gate.
        time.sleep(0.05)
        done(scene, "resume", job.pid)
        assert scene.row(job)["memory"] == before["memory"], scene.row(job)
        scene.progresses(job)
    right(scene, job)


def test_others_use_the_memory_and_the_job_waits_for_its_return(scene, plain):
    first = plain("first")
    done(scene, "pause", "--evict", first.pid)
    second = plain("second", 130)
    line = done(scene, "resume", "--timeout", "2s", first.pid, code=124)
    assert "are not free" in line, line
    assert state(scene, first) == "evicted", scene.row(first)
    done(scene, "pause", "--evict", second.pid)
    assert jobs.wait_until(lambda: state(scene, first) == "device", BOUND), scene.row(first)
    done(scene, "pause", "--evict", first.pid)
    done(scene, "resume", second.pid)
    scene.running.unlink()
    scene.finish(second)
    done(scene, "resume", first.pid)
    scene.finish(first)
    assert b"all as it should be" in first.stdout() and b"all as it should be" in second.stdout()


def test_memory_that_a_process_outside_weft_took_is_awaited(scene, plain):
    job = plain("job")
    done(scene, "pause", "--evict", job.pid)
    # Until now the broker has not seen it.
    large, ready = stranger(scene, "large", 180)
    assert "are not free" in done(scene, "resume", "--timeout", "3s", job.pid, code=124)
    ready.unlink()
    scene.finish(large)
    assert jobs.wait_until(lambda: state(scene, job) == "device", BOUND), f"{scene.row(job)}\n{job.explain()}"
    right(scene, job)


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("managed", {}, "has managed memory"),
        ("ipc", {}, "shares memory or events with other processes"),
        ("two", {"SIMGPU_DEVICES": "1GiB,1GiB"}, "uses several devices"),
        ("plain", {"SIMGPU_DEVICES": "2GiB:1GiB@2+1GiB@1"}, "is a MIG instance"),
        ("plain", {"SIMGPU_CHECKPOINT": "off"}, "this driver has none"),
    ],
    ids=["managed", "ipc", "two devices", "mig", "old driver"],
)
def test_a_job_that_the_driver_would_lose_stays(scene, plain, kind, settings, reason):
    scene.device.settings |= settings
    if "SIMGPU_DEVICES" in settings:
        del scene.device.settings["SIMGPU_MEMORY"]
    job = plain("job", 20, kind)
    line = done(scene, "pause", "--evict", job.pid, code=1)
    assert reason in line, f"{line}\n{job.explain()}"
    right(scene, job)


def test_a_full_host_keeps_the_memory_on_the_device(scene, plain):
    # Untouched memory takes none of the host.
    scene.device.settings["SIMGPU_MEMORY"] = str(2 << 40)
    scene.broker.start()
    ready = scene.folder / "huge.ready"
    job = scene.job([compiled(scene, "movable_kept.c"), "holds", 1 << 19, ready, scene.running], "huge")
    stands(job, ready)
    line = done(scene, "pause", "--evict", job.pid, code=1)
    assert "GiB of host memory are needed" in line, line
    right(scene, job)


def test_without_the_administrators_word_nothing_moves(scene, plain):
    scene.broker.arguments = scene.broker.arguments[:-1] + ["off"]
    job = plain("job", 20)
    line = done(scene, "pause", "--evict", job.pid, code=1)
    assert "under a broker that allows the driver's checkpoint" in line, line
    # A broker that allows it later has a job whose calls are not counted.
    scene.broker.job.kill()
    scene.broker.arguments = scene.broker.arguments[:-1] + ["allow"]
    scene.broker.start()
    scene.attached(job)
    line = done(scene, "pause", "--evict", job.pid, code=1)
    assert "under a broker that allows the driver's checkpoint" in line, line
    right(scene, job)


def test_a_broker_that_forbids_it_again_is_obeyed(scene, plain):
    job = plain("job", 20)
    scene.broker.job.kill()
    scene.broker.arguments = scene.broker.arguments[:-1] + ["off"]
    scene.broker.start()
    scene.attached(job)
    assert jobs.wait_until(lambda: state(scene, job) == "device", BOUND), scene.row(job)
    line = done(scene, "pause", "--evict", job.pid, code=1)
    assert "the broker does not allow it" in line, line
    right(scene, job)


def test_without_nvml_nothing_moves(scene, plain):
    del scene.broker.environment
    job = plain("job", 20)
    line = done(scene, "pause", "--evict", job.pid, code=1)
    assert "needs NVML" in line, line
    right(scene, job)


def test_a_stopped_job_is_not_asked(scene, plain):
    job = plain("job", 20)
    done(scene, "pause", job.pid)
    assert "its process is stopped" in done(scene, "pause", "--evict", job.pid, code=1)
    done(scene, "resume", job.pid)
    done(scene, "pause", "--evict", job.pid)
    # In this order it may be stopped, and goes on before its memory returns.
    done(scene, "pause", job.pid)
    done(scene, "resume", job.pid)
    assert state(scene, job) == "device", scene.row(job)
    right(scene, job)


def test_a_job_that_is_killed_leaves_nothing(scene, plain):
    killed = plain("away")
    done(scene, "pause", "--evict", killed.pid)
    killed.kill()
    # While it leaves and while it returns.
    for number, word in enumerate(["leaving", "returning"]):
        scene.device.settings["SIMGPU_CHECKPOINT"] = "580"
        job = plain(f"job{number}")
        if word == "returning":
            done(scene, "pause", "--evict", job.pid)
        weft(scene, *(["resume"] if word == "returning" else ["pause", "--evict"]), "--timeout", "1ms", job.pid)
        jobs.wait_until(lambda: state(scene, job) == word, 1.0, step=0.002)  # noqa: B023
        job.kill()
    heir = plain("heir", 180)
    done(scene, "pause", "--evict", heir.pid)
    done(scene, "resume", heir.pid)
    right(scene, heir)


@pytest.mark.parametrize("when", ["leaving", "away", "returning"])
def test_the_next_broker_brings_a_job_back(scene, plain, when):
    scene.device.settings["SIMGPU_CHECKPOINT"] = "580"
    job = plain("job")
    if when == "leaving":
        weft(scene, "pause", "--evict", "--timeout", "1ms", job.pid)
    else:
        done(scene, "pause", "--evict", job.pid)
    if when == "returning":
        weft(scene, "resume", "--timeout", "1ms", job.pid)
    scene.broker.job.kill()
    if when == "away":
        # Without a broker it stays: the room for it is unknown.
        assert jobs.wait_until(lambda: "comes back by weft resume" in job.stderr(), BOUND), job.explain()
    scene.broker.start()
    scene.attached(job)
    assert jobs.wait_until(lambda: state(scene, job) in ("evicted", "device"), BOUND), scene.row(job)
    done(scene, "resume", job.pid)
    assert state(scene, job) == "device", scene.row(job)
    right(scene, job)


def test_an_evicted_job_can_be_cancelled(scene, plain):
    job = plain("job")
    done(scene, "pause", "--evict", job.pid)
    done(scene, "cancel", job.pid)
    scene.finish(job, code=-15)


def test_a_job_that_is_away_makes_no_room_by_itself(scene, plain):
    """Only a command moves a job by checkpoint: one of higher priority waits as before."""
    low = plain("low", more={"WEFT_PRIORITY": "7"})
    ready = scene.folder / "service.ready"
    own = {"WEFT_PRIORITY": "0", "WEFT_MEMORY": "150MiB", "WEFT_WAIT": "2"}
    service = scene.job([compiled(scene, "checkpoint.c"), "holds", "plain", 130, ready, scene.running], "service", more=own)
    service.wait(BOUND)
    assert not ready.exists() and state(scene, low) == "device", f"{scene.row(low)}\n{service.explain()}"
    right(scene, low)
