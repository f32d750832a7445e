# SPDX-License-Identifier: MIT OR Apache-2.0
"""Jobs on plain memory that the driver's process checkpoint moves, and the ways in which the driver
loses a job that another program moves."""

import os
import signal
import subprocess
import time

import pytest
from built import compiled
from fixtures import moves
from fixtures.moves import done, right, right_in_turn, stands, state
from fixtures.scene import BOUND, weft
from fixtures.told import Told
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
    scene.device.settings["SIMGPU_MEMORY"] = str(DEVICE)
    moves.allow_checkpoint(scene.broker, scene.device, "595")

    def start(name, mib=LARGE, kind="plain", more=None, before=()):
        if not scene.broker.job:
            scene.broker.start()
        ready = scene.folder / f"{name}.ready"
        job = scene.job([*before, compiled(scene, "checkpoint.c"), "holds", kind, mib, ready, scene.running], name, more=more)
        stands(job, ready)
        return job

    return start


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
    right_in_turn(scene, second, first)


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


def test_a_job_that_is_called_back_as_it_leaves_has_no_room_of_its_own(scene, plain):
    # The broker has not taken its quota yet when the order to return comes, and that is enough for
    # the return. A context of 32 MiB is one that the broker measures. The broker stands still until
    # another process has the memory, and the job leaves slowly: else a sample may come before that.
    config = scene.folder / "device.toml"
    config.write_text(f"[device]\ncontext_memory = {32 * MIB}\n")
    scene.device.settings |= {"SIMGPU_CHECKPOINT": "580", "SIMGPU_MEMORY": str(512 * MIB), "SIMGPU_CONFIG": str(config)}
    scene.device.settings["SIMGPU_DILATION"] = "15"
    job = plain("job", more={"WEFT_MEMORY": "190MiB"})
    ready = scene.folder / "taken.ready"
    # It fits once the job has left, and then there is no room for the job.
    other = alone(scene, "takes", 310, ready, ready, name="taken")
    client = scene.row(job)["client"]
    moves.order(scene.broker.socket, client, True)
    assert jobs.wait_until(lambda: state(scene, job) == "leaving", BOUND, step=0.002), scene.row(job)
    moves.order(scene.broker.socket, client, False)
    os.kill(scene.broker.job.pid, signal.SIGSTOP)
    stands(other, ready)
    os.kill(scene.broker.job.pid, signal.SIGCONT)
    # It asks again and again.
    time.sleep(2)
    row = scene.row(job)
    assert row and row["eviction"]["state"] == "evicted" and "are not free" in row["eviction"]["obstacle"], f"{row}\n{job.explain()}"
    ready.unlink()
    scene.finish(other)
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


@pytest.mark.parametrize("word", ["leaving", "returning"])
def test_the_next_broker_knows_a_move_that_lasts(scene, plain, word):
    # Eight seconds out, and five back.
    scene.device.settings |= {"SIMGPU_CHECKPOINT": "580", "SIMGPU_DILATION": "40"}
    job = plain("job")
    if word == "returning":
        done(scene, "pause", "--evict", job.pid)
    weft(scene, *(["resume"] if word == "returning" else ["pause", "--evict"]), "--timeout", "1ms", job.pid)
    assert jobs.wait_until(lambda: state(scene, job) == word, BOUND), scene.row(job)
    before = scene.row(job)["eviction"]
    scene.broker.job.kill()
    scene.broker.start()
    scene.attached(job)
    now = scene.row(job)["eviction"]
    for key in ("state", "by", "bytes", "movable"):
        assert now[key] == before[key], f"{before}\n{now}"
    assert word == "leaving" or now["since_s"] > before["since_s"], f"{before}\n{now}"
    if word == "leaving":
        assert jobs.wait_until(lambda: state(scene, job) == "evicted", BOUND), scene.row(job)
    # The command waits until it is back.
    done(scene, "resume", job.pid)
    assert state(scene, job) == "device", scene.row(job)
    right(scene, job)


def test_an_evicted_job_can_be_cancelled(scene, plain):
    job = plain("job")
    done(scene, "pause", "--evict", job.pid)
    done(scene, "cancel", job.pid)
    scene.finish(job, code=-15)


def one_that_may_leave(scene, plain, kind="plain"):
    """A job of low priority on a device whose memory the declared needs divide."""
    scene.device.settings["SIMGPU_MEMORY"] = str(4 * GIB)
    return plain("low", kind=kind, more={"WEFT_PRIORITY": "7", "WEFT_MEMORY": "2400MiB"})


def needs_room(scene, wait=int(BOUND)):
    """A more important job that needs the memory of the other one, and its files."""
    ready, ends = scene.folder / "service.ready", scene.folder / "service.running"
    ends.touch()
    own = {"WEFT_PRIORITY": "0", "WEFT_MEMORY": "1800MiB", "WEFT_WAIT": str(wait)}
    command = [compiled(scene, "checkpoint.c"), "holds", "plain", 130, ready, ends]
    return scene.job(command, "service", more=own), ready, ends


@pytest.mark.parametrize("broker", ["one broker", "broker killed"])
def test_a_less_important_job_makes_room_and_returns(scene, plain, broker):
    low = one_that_may_leave(scene, plain)
    service, ready, ends = needs_room(scene)
    stands(service, ready)
    away = scene.row(low)["eviction"]
    assert (away["state"], away["cause"], away["by"]) == ("evicted", "room", "checkpoint"), away
    assert "moves to the host" in low.stderr() and "moves to the host" in service.stderr()
    if broker == "broker killed":
        scene.broker.job.kill()
        scene.broker.start()
        for job in (low, service):
            scene.attached(job)
        assert jobs.wait_until(lambda: state(scene, low) == "evicted", BOUND), scene.row(low)
    ends.unlink()
    scene.finish(service)
    assert jobs.wait_until(lambda: state(scene, low) == "device", BOUND), f"{scene.row(low)}\n{low.explain()}"
    right(scene, low)


def test_a_running_job_that_takes_more_gets_room(scene, plain):
    low = plain("low", 120, more={"WEFT_PRIORITY": "7"})
    service = Told(scene, "service", WEFT_PRIORITY="0")
    assert service.take(60 * MIB)["result"] == 0, service.job.explain()
    assert service.take(100 * MIB)["result"] == 0, service.job.explain()
    assert scene.row(low)["eviction"]["cause"] == "room", scene.row(low)
    service.tell("end")
    scene.finish(service.job)
    assert jobs.wait_until(lambda: state(scene, low) == "device", BOUND), scene.row(low)
    right(scene, low)


@pytest.mark.parametrize("why", ["barred", "forbidden"])
def test_a_job_that_the_driver_would_lose_makes_no_room(scene, plain, why):
    if why == "forbidden":
        scene.broker.arguments = scene.broker.arguments[:-1] + ["off"]
    low = one_that_may_leave(scene, plain, "ipc" if why == "barred" else "plain")
    service, ready, _ = needs_room(scene, wait=13)
    service.wait(BOUND)
    assert not ready.exists() and state(scene, low) != "evicted", f"{scene.row(low)}\n{service.explain()}"
    # It is asked once.
    assert low.stderr().count("moves to the host") == (why == "barred"), low.explain()
    right(scene, low)


def idle(scene, **more):
    scene.broker.start()
    program = compiled(scene, "movable_idle.c")
    return moves.Idle(scene, program, "service", 96, "500ms", {"WEFT_BACKING": "device", **more}, ["asks nothing"])


def test_an_idle_service_leaves_and_any_call_brings_it_back(scene, plain):
    served = idle(scene)
    for number, word in enumerate(["kernel", "copy", "memset", "sync", "graph", "two"], start=1):
        served.leaves()
        assert (served.eviction()["by"], scene.row(served.job)["memory"]) == ("checkpoint", 0), scene.row(served.job)
        served.asks(word)
        row = served.eviction()
        assert row["wakes"] == number and row["woke_in_s"] > 0, f"{word}: {row}"
    right(scene, served.job)


def test_a_paused_job_is_woken_by_its_calls_if_the_command_allows_it(scene, plain):
    served = idle(scene, WEFT_EVICT_IDLE="1h")
    for number, word in enumerate(["kernel", "copy"], start=1):
        done(scene, "pause", "--evict", "--wake", "on-launch", served.job.pid)
        assert (served.eviction()["cause"], scene.row(served.job)["memory"]) == ("idle", 0), scene.row(served.job)
        served.asks(word)
        assert served.eviction()["wakes"] == number, served.eviction()
    right(scene, served.job)


def test_an_idle_service_waits_for_its_next_broker(scene, plain):
    served = idle(scene)
    served.leaves()
    scene.broker.job.kill()
    assert jobs.wait_until(lambda: "comes back once there is a broker" in served.job.stderr(), BOUND), served.job.explain()
    served.send("kernel")
    assert not jobs.wait_until(served.answered, 1.0), served.job.explain()
    scene.broker.start()
    served.answer("kernel")
    right(scene, served.job)


def test_the_wait_of_an_idle_service_for_a_broker_is_bounded(scene, plain):
    served = idle(scene, WEFT_WAIT="2")
    served.leaves()
    scene.broker.job.kill()
    assert 2000 <= served.asks("fails")
    scene.broker.start()
    assert jobs.wait_until(lambda: served.eviction().get("state") == "device", BOUND), served.job.explain()
    served.asks("kernel")
    right(scene, served.job)


def test_an_ordered_return_goes_on_at_the_next_broker(scene, plain):
    first = plain("first")
    done(scene, "pause", "--evict", first.pid)
    second = plain("second", 130)
    assert "are not free" in done(scene, "resume", "--timeout", "2s", first.pid, code=124)
    scene.broker.job.kill()
    assert jobs.wait_until(lambda: "it comes back once there is a broker" in first.stderr(), BOUND), first.explain()
    scene.broker.start()
    for job in (first, second):
        scene.attached(job)
    waits = lambda: "are not free" in ((scene.row(first)["eviction"] or {}).get("obstacle") or "")  # noqa: E731
    assert jobs.wait_until(waits, BOUND), scene.row(first)
    done(scene, "pause", "--evict", second.pid)
    assert jobs.wait_until(lambda: state(scene, first) == "device", BOUND), scene.row(first)
    done(scene, "pause", "--evict", first.pid)
    right_in_turn(scene, second, first)


# The open kernel module of driver 595, and NCCL.


@pytest.mark.parametrize(("branch", "lives"), [("580", True), ("595", False), ("610", True)])
def test_without_weft_a_group_of_nccl_ends_the_process_on_595(scene, branch, lives):
    job = without(scene, "group", branch=branch)
    assert job.wait(BOUND) == (0 if lives else -signal.SIGABRT), f"{job.stdout()!r}\n{job.explain()}"


def test_a_job_with_a_group_of_nccl_stays(scene, plain):
    job = plain("job", 20, "group")
    assert "has an NCCL group" in done(scene, "pause", "--evict", job.pid, code=1)
    right(scene, job)


@pytest.mark.parametrize(("last", "hangs"), [("there", True), ("away", False)])
def test_without_weft_the_end_of_a_restored_process_hangs_its_host(scene, last, hangs):
    job = without(scene, "ends", last, branch="595-open")
    assert job.wait(BOUND) == 0, f"{job.stdout()!r}\n{job.explain()}"
    assert ("host hung" in job.stderr()) == hangs, job.explain()


def test_on_the_open_module_of_595_nothing_moves(scene, plain):
    mounted = "mount -t tmpfs weft-test /proc/driver && mkdir /proc/driver/nvidia && cp $0 /proc/driver/nvidia/version"
    version = scene.folder / "version"
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.71  Release Build  (root@host)\n")
    inside = ["unshare", "--mount", "sh", "-c"]
    if subprocess.run([*inside, mounted, version], capture_output=True, check=False).returncode:
        pytest.skip("no rights to mount")
    scene.device.settings["SIMGPU_CHECKPOINT"] = "595-open"
    job = plain("job", 20, before=[*inside, mounted + ' && exec "$@"', version])
    assert "hung whole machines" in done(scene, "pause", "--evict", job.pid, code=1)
    right(scene, job)
    assert "host hung" not in job.stderr(), job.explain()
