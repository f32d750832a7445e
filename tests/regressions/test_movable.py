# SPDX-License-Identifier: MIT OR Apache-2.0
"""Jobs whose device memory moves to the host and back (`weft pause --evict`, `weft resume`)."""

import json
import time

import pytest
from built import compiled
from fixtures import moves
from fixtures.moves import done, right, right_in_turn, stands, state
from fixtures.scene import BOUND, weft
from fixtures.told import Told
from harness import jobs, paths
from harness.bench import evicting

GIB = 1 << 30
MIB = 1 << 20
# Memory of the job that moves.
MOVED = 96


@pytest.fixture
def movable(scene, request):
    """Starts jobs with movable memory on a device with room for two contexts and 224 MiB, or of
    another size, and a broker."""
    scene.device.settings["SIMGPU_MEMORY"] = str(getattr(request, "param", GIB))
    scene.broker.start()
    program = compiled(scene, "movable.c")

    def start(name, mib=MOVED, *words, **more):
        ready = scene.folder / f"{name}.ready"
        command = [program, ready, scene.running, mib, *words]
        job = scene.job(command, name, more={"WEFT_BACKING": "movable", **more})
        stands(job, ready)
        return job

    return start


@pytest.fixture
def keeper(scene):
    """Starts jobs that hold movable memory and do nothing."""
    program = compiled(scene, "movable_kept.c")

    def start(name, mib, does="holds", **options):
        ready = scene.folder / f"{name}.ready"
        job = scene.job([program, does, mib, ready, scene.running], name, **options)
        stands(job, ready)
        return job

    return start


def working(scene, mib, **more):
    """A job of priority 7 whose memory leaves once its work has ended, and the file of its work."""
    works, ready = scene.folder / "works", scene.folder / "low.ready"
    works.touch()
    command = [compiled(scene, "movable_kept.c"), "spins", mib, ready, works, scene.running]
    low = scene.job(command, "low", more={"WEFT_BACKING": "movable", "WEFT_PRIORITY": "7", **more})
    stands(low, ready)
    return low, works


@pytest.mark.parametrize("role", ["alone", "background", "unqueued"])
def test_contents_survive_moves_at_any_moment(scene, movable, role):
    if role != "alone":
        scene.companion("main", pause=0 if role == "unqueued" else 2000, more={"WEFT_PRIORITY": "0"})
    # Its threads wait at the gate of launches: within calls.
    job = movable("moves", WEFT_QUEUE="off" if role == "unqueued" else "on")
    mode = "alone" if role == "alone" else "background"
    assert jobs.wait_until(lambda: scene.row(job)["mode"] == mode, BOUND), scene.row(job)
    for _ in range(4):
        before = scene.row(job)
        assert before["eviction"]["state"] == "device", before
        done(scene, "pause", "--evict", job.pid)
        row = scene.row(job)
        away = row["eviction"]
        assert away["state"] == "evicted" and away["bytes"] > (MOVED - 17) * MIB, row
        assert row["memory"] == before["memory"] - away["bytes"] == MIB, row
        assert "on the host" in weft(scene, "status").stdout
        done(scene, "resume", job.pid)
        assert scene.row(job)["memory"] == before["memory"], scene.row(job)
        scene.progresses(job)
    right(scene, job)


@pytest.mark.parametrize(("role", "keeps"), [("alone", []), ("background", ["keeps"])], ids=["released", "kept"])
def test_stream_ordered_memory_survives_moves_at_any_moment(scene, role, keeps):
    scene.device.settings |= {"SIMGPU_MEMORY": str(2 * GIB), "SIMGPU_MOVES": str(scene.folder / "moves")}
    scene.broker.start()
    if role == "background":
        scene.companion("main", pause=2000, more={"WEFT_PRIORITY": "0"})
    ready = scene.folder / "ready"
    command = [compiled(scene, "movable_ordered.c"), "random", ready, scene.running, 24, 6, *keeps]
    job = scene.job(command, more={"WEFT_BACKING": "movable"})
    stands(job, ready)
    for _ in range(6):
        done(scene, "pause", "--evict", job.pid)
        away = scene.row(job)["eviction"]
        # Half of the blocks at least, of 7 MiB each on average.
        assert away["state"] == "evicted" and away["bytes"] >= 80 * MIB, away
        done(scene, "resume", job.pid)
        scene.progresses(job)
    right(scene, job)
    count, wrong, _ = moves.seen(scene.folder / "moves")
    assert count and not wrong, wrong


def test_stream_ordered_memory_keeps_the_rules_of_pools(scene):
    scene.device.settings["SIMGPU_MEMORY"] = str(2 * GIB)
    scene.broker.start()
    job = scene.job([compiled(scene, "movable_ordered.c"), "rules"], more={"WEFT_BACKING": "movable", "WEFT_MEMORY": "400MiB"})
    right(scene, job)


def test_a_pool_that_is_trimmed_has_no_blocks_on_their_way(scene):
    scene.device.settings["SIMGPU_MEMORY"] = str(4 * GIB)
    scene.broker.start()
    right(scene, scene.job([compiled(scene, "movable_ordered.c"), "trims"], more={"WEFT_BACKING": "movable"}))


def test_blocks_freed_in_stream_order_stay_with_their_streams(scene):
    scene.broker.start()
    right(scene, scene.job([compiled(scene, "memory_pool.c")], more={"WEFT_BACKING": "movable"}))


def test_a_second_job_uses_the_memory_of_an_evicted_one(scene, movable):
    first = movable("first", 150, WEFT_MEMORY="160MiB")
    done(scene, "pause", "--evict", first.pid)
    # Its figure does not fit with the first one's. What it takes would fit.
    second = movable("second", 84, WEFT_MEMORY="500MiB", WEFT_WAIT="20")
    line = done(scene, "resume", "--timeout", "1s", first.pid, code=124)
    assert "are not free" in line, line
    assert scene.row(first)["eviction"]["state"] == "evicted", scene.row(first)
    done(scene, "pause", "--evict", second.pid)
    # The first one still waits for its memory, and gets it.
    assert jobs.wait_until(lambda: scene.row(first)["eviction"]["state"] == "device", BOUND), scene.row(first)
    scene.progresses(first)
    done(scene, "pause", "--evict", first.pid)
    done(scene, "resume", second.pid)
    scene.progresses(second)
    # Its declared need is its own again once it has ended.
    scene.running.unlink()
    scene.finish(second)
    done(scene, "resume", first.pid)
    scene.finish(first)
    assert b"all as it should be" in first.stdout() and b"all as it should be" in second.stdout()


# Three contexts and 2.9 GB, which the declared needs divide.
@pytest.mark.parametrize("movable", [4 * GIB], indirect=True, ids=["three jobs"])
@pytest.mark.parametrize("kill", [False, True], ids=["one broker", "broker killed"])
def test_memory_of_a_less_important_job_makes_room_for_one_that_waits(scene, movable, kill):
    low = movable("low", 70, WEFT_MEMORY="2000MiB", WEFT_PRIORITY="7")
    equal = movable("equal", 40, WEFT_MEMORY="500MiB", WEFT_PRIORITY="2")
    ends = scene.folder / "service.running"
    ends.touch()
    ready = scene.folder / "service.ready"
    own = {"WEFT_MEMORY": "1500MiB", "WEFT_PRIORITY": "2", "WEFT_BACKING": "device"}
    service = scene.job([scene.folder / "movable", ready, ends, 70], "service", more=own)
    # It begins while the others live.
    stands(service, ready)
    assert [state(scene, job) for job in (low, equal)] == ["evicted", "device"]
    assert "moves to the host" in low.stderr() and "moves to the host" in service.stderr()
    if kill:
        scene.broker.job.kill()
        scene.broker.start()
        for job in (low, equal, service):
            scene.attached(job)
        assert jobs.wait_until(lambda: state(scene, low) == "evicted", BOUND), scene.row(low)
    # An order by hand is kept, and the end of the service brings the other one back.
    done(scene, "pause", "--evict", equal.pid)
    ends.unlink()
    scene.finish(service)
    assert jobs.wait_until(lambda: state(scene, low) == "device", BOUND), scene.row(low)
    assert state(scene, equal) == "evicted"
    done(scene, "resume", equal.pid)
    right(scene, low, equal)


def test_a_less_important_job_makes_room_for_a_running_one_that_takes_more(scene, movable):
    low = movable("low", 120, WEFT_PRIORITY="7")
    # Its first bytes are free. It waits for no job that is as important.
    equal = Told(scene, "equal", WEFT_PRIORITY="7", WEFT_WAIT="1")
    assert equal.take(60 * MIB)["result"] == 0, equal.job.explain()
    assert equal.take(100 * MIB)["result"] == 2, equal.job.explain()
    assert scene.row(low)["eviction"]["state"] == "device", scene.row(low)
    equal.tell("end")
    scene.finish(equal.job)
    service = Told(scene, "service", WEFT_PRIORITY="0")
    assert service.take(60 * MIB)["result"] == 0, service.job.explain()
    assert service.take(100 * MIB)["result"] == 0, service.job.explain()
    assert scene.row(low)["eviction"]["cause"] == "room", scene.row(low)
    for job in (low, service.job):
        assert jobs.wait_until(lambda: "moves to the host" in job.stderr(), BOUND), job.explain()  # noqa: B023
    # All that moves would not be enough, and the most important job does not wait for others' ends.
    assert service.take(GIB)["result"] == 2, service.job.explain()
    service.tell("end")
    scene.finish(service.job)
    assert jobs.wait_until(lambda: scene.row(low)["eviction"]["state"] == "device", BOUND), scene.row(low)
    scene.progresses(low)
    right(scene, low)


# Three contexts and 600 MiB.
@pytest.mark.parametrize("movable", [GIB + 768 * MIB], indirect=True, ids=["three jobs"])
def test_memory_that_the_driver_refuses_is_made_room_for(scene, movable):
    low = movable("low", 70, WEFT_PRIORITY="7")
    service = Told(scene, "service", WEFT_PRIORITY="0")
    # The broker has not seen it.
    large = stranger(scene, "large", 60)
    free = service.does("read")["free"]
    took = service.take(free + 30 * MIB)
    assert took["result"] == 0, f"{took}\n{service.job.explain()}"
    assert scene.row(low)["eviction"]["cause"] == "room", scene.row(low)
    service.tell("end")
    scene.finish(service.job)
    leave(scene, large)
    assert jobs.wait_until(lambda: state(scene, low) == "device", BOUND), scene.row(low)
    right(scene, low)


def test_two_jobs_that_grow_wait_for_memory_that_leaves(scene):
    scene.device.settings["SIMGPU_MEMORY"] = str(2 * GIB)
    scene.broker.start()
    low, works = working(scene, 400)
    other, service = Told(scene, "other", WEFT_PRIORITY="2"), Told(scene, "service", WEFT_PRIORITY="0")
    assert service.take(service.does("read")["free"] - 100 * MIB)["result"] == 0, service.job.explain()
    other.tell(f"take {160 * MIB}")
    assert jobs.wait_until(lambda: state(scene, low) == "leaving", BOUND), scene.row(low)
    service.tell(f"take {160 * MIB}")
    answered = lambda: len(service.answers()) > service.asked  # noqa: E731
    assert not jobs.wait_until(answered, 1.0), f"{service.answers()}\n{service.job.explain()}"
    works.unlink()
    for job in (service, other):
        took = job.answer()
        assert took["result"] == 0, f"{took}\n{job.job.explain()}"
    for job in (service, other):
        job.tell("end")
        scene.finish(job.job)
    right(scene, low)


def test_memory_that_a_process_outside_weft_frees_is_had(scene):
    scene.device.settings["SIMGPU_MEMORY"] = str(2 * GIB)
    # A broker with NVML.
    environment = {**jobs.clean_environment(), **scene.device.environment(), **scene.broker.environment()}
    broker = scene.broker.job = jobs.Job([paths.WEFT, "broker"], environment=environment, folder=scene.folder, name="broker")
    assert jobs.wait_until(scene.broker.status, BOUND), broker.explain()
    large = stranger(scene, "large", 700)
    service = Told(scene, "service", WEFT_PRIORITY="0")
    assert service.take(20 * MIB)["result"] == 0, service.job.explain()
    leave(scene, large)
    # An answer of NVML counts for a moment.
    takes = lambda: service.take(900 * MIB)["result"] == 0  # noqa: E731
    assert jobs.wait_until(takes, BOUND, step=0.1), f"{service.answers()[-1]}\n{service.job.explain()}"
    service.tell("end")
    scene.finish(service.job)


def test_unused_shares_and_movable_memory_together_make_room(scene, movable):
    scene.device.settings["SIMGPU_MEMORY"] = str(3 * GIB)
    low = movable("low", 200, WEFT_PRIORITY="7")
    other, service = Told(scene, "other", WEFT_PRIORITY="0"), Told(scene, "service", WEFT_PRIORITY="0")
    # It frees its memory and keeps its share.
    free = service.does("read")["free"]
    assert other.take(200 * MIB)["result"] == 0, other.job.explain()
    assert other.does("free")["result"] == 0, other.job.explain()
    service.reads(free)
    took = service.take(free + 100 * MIB)
    assert took["result"] == 0, f"{took}\n{service.job.explain()}"
    assert scene.row(low)["eviction"]["cause"] == "room", scene.row(low)
    for job in (other, service):
        job.tell("end")
        scene.finish(job.job)
    right(scene, low)


def test_a_refused_allocation_leaves_the_job_no_larger_share(scene):
    scene.device.settings["SIMGPU_MEMORY"] = str(2 * GIB)
    scene.broker.start()
    greedy = Told(scene, "greedy")
    large = stranger(scene, "large", 200)
    free = greedy.does("read")["free"]
    for _ in range(5):
        assert greedy.take(free + 60 * MIB)["result"] == 2, greedy.job.explain()
    assert greedy.take(free - 20 * MIB)["result"] == 0, greedy.job.explain()
    queue = json.loads(weft(scene, "queue", "--json").stdout)
    (row,), (device,) = queue["running"], queue["devices"]
    assert row["share"] - row["held"] - device["context"] < 32 * MIB, (row, device)
    leave(scene, large)
    greedy.tell("end")
    scene.finish(greedy.job)


@pytest.mark.parametrize("how", ["killed", "replaced", "replaced late"])
def test_a_job_that_waits_for_more_asks_the_next_broker(scene, how):
    scene.device.settings["SIMGPU_MEMORY"] = str(GIB)
    scene.broker.start()
    low, works = working(scene, 120)
    service = Told(scene, "service", WEFT_PRIORITY="0")
    free = service.does("read")["free"]
    service.tell(f"take {free + 60 * MIB}")
    assert jobs.wait_until(lambda: state(scene, low) == "leaving", BOUND), f"{service.answers()} {scene.row(low)}\n{service.job.explain()}"
    if how == "replaced late":
        # It has waited for longer than it would by itself.
        assert not jobs.wait_until(lambda: len(service.answers()) > service.asked, 11), service.job.explain()
    if how == "killed":
        scene.broker.job.kill()
        scene.broker.start()
    else:
        done(scene, "broker", "--replace", "--background")
    for job in (low, service.job):
        scene.attached(job)
    if how != "replaced late":
        assert jobs.wait_until(lambda: state(scene, low) == "leaving", BOUND), f"{service.answers()}\n{service.job.explain()}"
    works.unlink()
    took = service.answer()
    assert took["result"] == 0, f"{took}\n{service.job.explain()}"
    rows = json.loads(weft(scene, "queue", "--json").stdout)["running"]
    assert all(row["share"] >= row["held"] for row in rows), rows
    service.tell("end")
    scene.finish(service.job)
    assert jobs.wait_until(lambda: state(scene, low) == "device", BOUND), scene.row(low)
    right(scene, low)


# Three contexts and 2.9 GB, which the declared needs divide.
@pytest.mark.parametrize("replaced", [False, True], ids=["killed", "replaced"])
def test_a_job_that_left_while_its_broker_changed_comes_back(scene, replaced):
    scene.device.settings["SIMGPU_MEMORY"] = str(4 * GIB)
    scene.broker.start()
    low, works = working(scene, 120, WEFT_MEMORY="2400MiB")
    ends, ready = scene.folder / "service.running", scene.folder / "service.ready"
    ends.touch()
    command = [compiled(scene, "movable.c"), ready, ends, 70]
    service = scene.job(command, "service", more={"WEFT_MEMORY": "1500MiB", "WEFT_PRIORITY": "2"})
    assert jobs.wait_until(lambda: state(scene, low) == "leaving", BOUND), scene.row(low)
    if replaced:
        done(scene, "broker", "--replace", "--background")
    else:
        scene.broker.job.kill()
        scene.broker.start()
    scene.attached(low)
    works.unlink()
    stands(service, ready)
    ends.unlink()
    scene.finish(service)
    assert jobs.wait_until(lambda: state(scene, low) == "device", BOUND), scene.row(low)
    right(scene, low)


# Three contexts and 600 MiB.
@pytest.mark.parametrize("movable", [GIB + 768 * MIB], indirect=True, ids=["three jobs"])
def test_what_left_for_a_growing_job_stays_away_while_it_grows(scene, movable):
    lows = [movable("small", 70, WEFT_PRIORITY="7"), movable("large", 120, WEFT_PRIORITY="8")]
    service = Told(scene, "service", WEFT_PRIORITY="0")
    # Small leaves, then large. Then small would fit again, and the last step would not.
    for step in (service.does("read")["free"] + 30 * MIB, 60 * MIB, 60 * MIB):
        took = service.take(step)
        assert took["result"] == 0, f"{took}\n{service.job.explain()}"
        # Several looks of the broker.
        time.sleep(1)
    assert [state(scene, low) for low in lows] == ["evicted", "evicted"]
    service.tell("end")
    scene.finish(service.job)
    for low in lows:
        assert jobs.wait_until(lambda: state(scene, low) == "device", BOUND), scene.row(low)  # noqa: B023
    right(scene, *lows)


def test_nothing_moves_for_a_job_that_does_not_wait(scene, movable):
    low = movable("low", 150, WEFT_PRIORITY="7", WEFT_MEMORY="160MiB")
    hasty = scene.job([scene.folder / "movable", scene.folder / "never", scene.running, 120], "hasty", more={"WEFT_MEMORY": "480MiB", "WEFT_PRIORITY": "0", "WEFT_WAIT": "no"})
    assert hasty.wait(BOUND) != 0 and "--no-wait is set" in hasty.stderr(), (hasty.stdout(), hasty.explain())
    scene.progresses(low)
    assert state(scene, low) == "device" and "moves to the host" not in low.stderr(), low.explain()
    right(scene, low)


def test_an_evicted_job_returns_when_its_broker_was_killed(scene, movable):
    job = movable("orphan")
    done(scene, "pause", "--evict", job.pid)
    scene.broker.job.kill()
    scene.broker.start()
    scene.attached(job)
    # The next broker knows it, and has it stay.
    assert jobs.wait_until(lambda: (scene.row(job)["eviction"] or {}).get("state") == "evicted", BOUND), scene.row(job)
    # An unknown name keeps no known one.
    assert "nosuch" in done(scene, "resume", "nosuch", job.pid, code=1)
    assert scene.row(job)["eviction"]["state"] == "device", scene.row(job)
    scene.broker.job.kill()
    scene.broker.start()
    scene.attached(job)
    # Before its first report.
    done(scene, "pause", "--evict", job.pid)
    scene.broker.job.kill()
    # It returns by itself, and ends well.
    right(scene, job)


def test_what_cannot_be_moved_stays_and_is_told(scene, movable):
    plain = movable("plain", WEFT_BACKING="device")
    line = done(scene, "pause", "--evict", plain.pid, code=1)
    assert "no movable memory" in line and "--backing movable" in line, line
    line = done(scene, "pause", plain.pid)
    assert "which stays: run it with --backing movable" in line and "the driver's checkpoint" in line, line
    done(scene, "resume", plain.pid)
    captures = movable("captures", MOVED, "capture")
    assert "captures a graph" in done(scene, "pause", "--evict", captures.pid, code=1)
    line = done(scene, "pause", captures.pid)
    client = scene.row(captures)["client"]
    assert f"(weft resume {client}, then weft pause --evict {client} moves it to the host)" in line, line
    # A stopped process moves nothing.
    assert jobs.wait_until(lambda: scene.row(captures)["stopped"], BOUND), scene.row(captures)
    assert "is stopped" in done(scene, "pause", "--evict", captures.pid, code=1)
    done(scene, "resume", captures.pid)
    right(scene, plain, captures)


def test_an_evicted_job_can_be_stopped_and_is_left_as_it_is(scene, movable):
    job = movable("moves")
    done(scene, "pause", "--evict", job.pid)
    # It keeps small memory, which does not move.
    assert scene.row(job)["memory"] == MIB and done(scene, "pause", job.pid) == ""
    told = " ".join(weft(scene, "status", "-v").stdout.split())
    assert "these stay on the device: 1.00 MiB plain" in told, told
    assert jobs.wait_until(lambda: scene.row(job)["stopped"], BOUND), scene.row(job)
    assert done(scene, "pause", "--evict", job.pid) == ""
    done(scene, "resume", job.pid)
    assert state(scene, job) == "device"
    right(scene, job)


@pytest.mark.parametrize("order", ["kept", "called off"])
def test_an_ordered_return_goes_on_at_the_next_broker(scene, movable, order):
    first = movable("first", 150)
    done(scene, "pause", "--evict", first.pid)
    second = movable("second", 120)
    assert "are not free" in done(scene, "resume", "--timeout", "1s", first.pid, code=124)
    if order == "called off":
        done(scene, "pause", "--evict", first.pid)
    scene.broker.job.kill()
    scene.broker.start()
    for job in (first, second):
        scene.attached(job)
    assert jobs.wait_until(lambda: state(scene, first) == "evicted", BOUND), scene.row(first)
    waits = lambda: "are not free" in (scene.row(first)["eviction"]["obstacle"] or "")  # noqa: E731
    assert jobs.wait_until(waits, BOUND if order == "kept" else 2) == (order == "kept"), scene.row(first)
    done(scene, "pause", "--evict", second.pid)
    back = jobs.wait_until(lambda: state(scene, first) == "device", BOUND if order == "kept" else 2)
    assert back == (order == "kept"), scene.row(first)
    if order == "kept":
        done(scene, "pause", "--evict", first.pid)
    right_in_turn(scene, second, first)


def test_memory_that_cannot_move_is_told_with_its_kinds(scene):
    scene.broker.start()
    ready = scene.folder / "ready"
    job = scene.job([compiled(scene, "movable_kept.c"), "stays", ready, scene.running], more={"WEFT_BACKING": "movable"})
    stands(job, ready)
    kinds = "32.0 MiB stream-ordered, in pools or in graphs, 4.00 MiB mapped by the job itself"
    # A page of 80 columns breaks its lines.
    told = lambda: kinds in " ".join(weft(scene, "status", "-v").stdout.split())  # noqa: E731
    assert jobs.wait_until(told, BOUND), weft(scene, "status", "-v").stdout
    line = done(scene, "pause", "--evict", job.pid, code=1)
    assert f"none of its memory can move: {kinds}" in line, line
    right(scene, job)


def stranger(scene, name, mib):
    """A process that weft does not know. It holds memory until its `ready` file is gone."""
    ready = scene.folder / f"{name}.ready"
    environment = {**jobs.clean_environment(), **scene.device.environment()}
    command = [compiled(scene, "movable_kept.c"), "holds", mib, ready, ready]
    job = jobs.Job(command, environment=environment, folder=scene.folder, name=name)
    scene.jobs.append(job)
    stands(job, ready)
    return job


def leave(scene, large):
    """Lets a stranger end, and waits for it."""
    (scene.folder / f"{large.name}.ready").unlink()
    scene.finish(large)


def test_memory_that_a_stranger_took_is_awaited_and_nothing_is_lost(scene, movable, keeper):
    scene.device.settings["SIMGPU_MOVES"] = str(scene.folder / "moves")
    job = movable("moves", 150)
    done(scene, "pause", "--evict", job.pid)
    large = stranger(scene, "large", 180)
    assert "not free" in done(scene, "resume", "--timeout", "1s", job.pid, code=124)
    assert scene.row(job)["eviction"]["obstacle"], scene.row(job)
    # It holds no part of it meanwhile: a block of the job would leave less.
    done(scene, "pause", "--evict", job.pid)
    leave(scene, large)
    small = stranger(scene, "small", 220)
    done(scene, "resume", "--timeout", "1s", job.pid, code=124)
    (scene.folder / "small.ready").unlink()
    scene.finish(small)
    assert jobs.wait_until(lambda: scene.row(job)["eviction"]["state"] == "device", BOUND), scene.row(job)
    right(scene, job)
    count, wrong, alone = moves.seen(scene.folder / "moves")
    # Nor for a moment: others may be about to take it.
    assert count and not wrong and not alone, (wrong, alone)
    # It asked for nothing that it had not had before.
    # The broker learns it when the process has given its memory back.
    def learnt():
        rows = json.loads(weft(scene, "queue", "--json").stdout)["learnt"]
        return [row["denied"] for row in rows if row["pid"] == job.pid]

    assert jobs.wait_until(learnt, BOUND) and learnt() == [False]


def test_memory_that_a_stranger_takes_during_the_return_is_awaited(scene, movable):
    # The job takes six blocks. The device is full at the third one of its return, six times, of
    # which none is sooner than a second after the one before.
    scene.device.settings["SIMGPU_FULL"] = "9:6"
    job = movable("moves", 150)
    done(scene, "pause", "--evict", job.pid)
    assert "not free" in done(scene, "resume", "--timeout", "2s", job.pid, code=124)
    done(scene, "pause", "--evict", job.pid)
    # The first two blocks are free again.
    leave(scene, stranger(scene, "large", 220))
    done(scene, "resume", job.pid)
    right(scene, job)


def test_a_full_host_keeps_the_memory_on_the_device(scene, keeper):
    # Untouched memory takes none of the host.
    scene.device.settings["SIMGPU_MEMORY"] = str(2 << 40)
    scene.broker.start()
    job = keeper("huge", 1 << 20, more={"WEFT_BACKING": "movable"})
    before = scene.row(job)["memory"]
    line = done(scene, "pause", "--evict", job.pid, code=1)
    assert "1.10 TiB of host memory are needed" in line, line
    assert (scene.row(job)["eviction"]["state"], scene.row(job)["memory"]) == ("device", before)
    right(scene, job)


def test_a_job_whose_work_does_not_end_runs_on(scene, keeper):
    scene.broker.start()
    job = keeper("spins", 8, "spins", more={"WEFT_BACKING": "movable"})
    line = done(scene, "pause", "--evict", job.pid, code=1)
    assert "did not end within 10 s" in line, line
    assert scene.row(job)["eviction"]["state"] == "device", scene.row(job)
    right(scene, job)


def test_a_job_whose_last_block_goes_while_it_is_to_leave_runs_on(scene, keeper):
    scene.broker.start()
    job = keeper("leaves", 8, "leaves", more={"WEFT_BACKING": "movable"})
    assert jobs.wait_until(lambda: state(scene, job) == "device", BOUND), scene.row(job)
    moves.order(scene.broker.socket, scene.row(job)["client"], True)
    # Long enough for the mover to have closed the gate.
    time.sleep(0.5)
    assert scene.row(job)["eviction"]["answered"] == 0, scene.row(job)
    right(scene, job)


def test_a_job_that_is_killed_while_it_is_away_leaves_nothing(scene, movable):
    job = movable("killed", 150, WEFT_MEMORY="160MiB")
    done(scene, "pause", "--evict", job.pid)
    job.kill()
    heir = movable("heir", 150, WEFT_MEMORY="200MiB", WEFT_WAIT="20")
    done(scene, "pause", "--evict", heir.pid)
    done(scene, "resume", heir.pid)
    right(scene, heir)


def test_an_evicted_job_can_be_cancelled(scene, movable):
    job = movable("cancelled")
    done(scene, "pause", "--evict", job.pid)
    line = done(scene, "cancel", job.pid)
    # It may have ended before the command looked at its memory.
    assert "evicted" in line or not job.running(), line
    scene.finish(job, code=-15)


@pytest.mark.parametrize("what", ["counted", "ipc"])
def test_movable_memory_is_counted_and_freed_as_plain_memory(scene, what):
    scene.device.settings["SIMGPU_MEMORY"] = str(GIB)
    scene.broker.start()
    job = scene.job([compiled(scene, "movable_kept.c"), what], more={"WEFT_BACKING": "movable", "WEFT_MEMORY": "600MiB"})
    right(scene, job)
    told = job.stderr().count("cannot be shared with other processes: run it with --backing device")
    assert told == (1 if what == "ipc" else 0), job.explain()


def test_a_process_on_two_devices_keeps_the_memory_of_the_one_that_moves(scene):
    scene.device.settings["SIMGPU_DEVICES"] = "1GiB,1GiB"
    scene.broker.start()
    ready = scene.folder / "ready"
    job = scene.job([compiled(scene, "movable_kept.c"), "two", ready, scene.running], more={"WEFT_BACKING": "movable"})
    stands(job, ready)
    rows = [row for row in scene.status()["clients"] if row["pid"] == job.pid]
    assert sorted((row["eviction"] or {}).get("movable", 0) for row in rows) == [0, 4 * MIB], rows
    done(scene, "pause", "--evict", job.pid)
    done(scene, "resume", job.pid)
    right(scene, job)


@pytest.fixture
def service(scene, request):
    """Starts services whose memory leaves while they are idle, on a device of this size."""
    scene.device.settings["SIMGPU_MEMORY"] = str(getattr(request, "param", GIB))
    scene.broker.start()

    def start(name="service", mib=MOVED, after="500ms", **more):
        return moves.Idle(scene, compiled(scene, "movable_idle.c"), name, mib, after, more)

    return start


def test_an_idle_service_leaves_and_any_call_brings_it_back(scene, service):
    served = service()
    before = scene.row(served.job)["memory"]
    for number, word in enumerate(["kernel", "copy", "memset", "sync", "graph", "two"], start=1):
        served.leaves()
        assert scene.row(served.job)["memory"] == before - served.eviction()["bytes"] == 0, scene.row(served.job)
        assert "evicted, idle" in weft(scene, "status").stdout
        served.asks(word)
        row = served.eviction()
        assert row["wakes"] == number and row["woke_in_s"] > 0, f"{word}: {row}"
    assert served.job.stderr().count("until a call needed it; it came back in") == 6, served.job.explain()
    right(scene, served.job)


def test_an_idle_service_within_a_capture_stays(scene, service):
    served = service(after="300ms")
    served.leaves()
    served.asks("begin")
    assert served.eviction()["wakes"] == 1, served.eviction()
    # More than twice the time after which it would leave.
    assert not jobs.wait_until(lambda: served.eviction()["state"] != "device", 1.0), served.eviction()
    served.asks("end")
    served.leaves()
    served.asks("kernel")
    right(scene, served.job)


def test_a_paused_service_is_not_woken_by_its_calls(scene, service):
    served = service()
    served.leaves()
    done(scene, "pause", "--evict", served.job.pid)
    assert served.eviction()["cause"] == "command", served.eviction()
    served.send("kernel")
    assert not jobs.wait_until(served.answered, 1.0), served.job.explain()
    done(scene, "resume", served.job.pid)
    served.answer("kernel")
    # Its memory leaves and returns again by itself.
    served.leaves()
    served.asks("copy")
    assert served.eviction()["wakes"] == 1, served.eviction()
    right(scene, served.job)


def test_a_paused_job_is_woken_by_its_calls_if_the_command_allows_it(scene, service):
    # It does not leave by itself.
    served = service(after="1h")
    wakes_by_call = ("pause", "--evict", "--wake", "on-launch", served.job.pid)
    done(scene, *wakes_by_call)
    assert (served.eviction()["state"], served.eviction()["cause"]) == ("evicted", "idle"), served.eviction()
    served.asks("kernel")
    assert served.eviction()["wakes"] == 1, served.eviction()
    # Also a call that waits by an earlier command.
    done(scene, "pause", "--evict", served.job.pid)
    served.send("copy")
    assert not jobs.wait_until(served.answered, 0.5), served.job.explain()
    done(scene, *wakes_by_call)
    served.answer("copy")
    assert served.eviction()["wakes"] == 2, served.eviction()
    right(scene, served.job)


def test_a_job_that_uses_the_device_does_not_leave_until_its_next_call(scene, keeper):
    scene.broker.start()
    job = keeper("spins", 8, "spins", more={"WEFT_BACKING": "movable"})
    line = done(scene, "pause", "--evict", "--wake", "on-launch", job.pid, code=1)
    assert "it uses the device now" in line, line
    assert scene.row(job)["eviction"]["state"] == "device", scene.row(job)
    right(scene, job)


@pytest.mark.parametrize("next_broker", [True, False], ids=["next broker", "no broker"])
@pytest.mark.parametrize("when", ["idle", "waking"])
def test_an_idle_service_outlives_its_broker(scene, service, when, next_broker):
    # Something else holds the memory when it wakes.
    served = service(mib=150)
    served.leaves()
    if when == "waking":
        large = stranger(scene, "large", 180)
        served.send("kernel")
        assert jobs.wait_until(lambda: served.eviction()["obstacle"], BOUND), served.eviction()
    scene.broker.job.kill()
    if next_broker:
        scene.broker.start()
        scene.attached(served.job)
    if when == "waking":
        assert not jobs.wait_until(served.answered, 0.5), served.job.explain()
        leave(scene, large)
        served.answer("kernel")
    else:
        served.asks("kernel")
    right(scene, served.job)


def test_a_wake_without_room_and_broker_is_bounded(scene, service):
    served = service(mib=150, WEFT_WAIT="2")
    served.leaves()
    large = stranger(scene, "large", 180)
    scene.broker.job.kill()
    assert 2000 <= served.asks("fails")
    assert served.job.stderr().count("could not come back within 2 s") == 1, served.job.explain()
    leave(scene, large)
    served.asks("tries")
    right(scene, served.job)


def test_a_service_that_is_killed_while_it_wakes_leaves_nothing(scene, service):
    served = service(mib=150)
    served.leaves()
    large = stranger(scene, "large", 180)
    served.send("kernel")
    assert jobs.wait_until(lambda: served.eviction()["obstacle"], BOUND), served.eviction()
    served.job.kill()
    leave(scene, large)
    heir = service("heir", 180)
    heir.asks("kernel")
    right(scene, heir.job)


def test_a_wake_without_room_is_bounded_and_told(scene, service):
    served = service(mib=150, WEFT_WAIT="3")
    served.leaves()
    large = stranger(scene, "large", 180)
    assert 3000 <= served.asks("fails")
    # From then on no call waits.
    served.asks("fails")
    told = served.job.stderr()
    assert told.count("a call waits for its memory (152 MiB)") == 1, told
    assert told.count("could not come back within 3 s") == 1, told
    leave(scene, large)
    assert jobs.wait_until(lambda: served.eviction()["state"] == "device", BOUND), served.eviction()
    served.asks("kernel")
    right(scene, served.job)


# Two contexts and 224 MiB.
def test_a_waking_service_moves_a_less_important_job(scene, service, movable):
    served = service(mib=120, WEFT_PRIORITY="0")
    served.leaves()
    low = movable("low", 150, WEFT_PRIORITY="7")
    served.asks("kernel")
    assert [scene.row(job)["eviction"]["cause"] for job in (low, served.job)] == ["room", None]
    assert "moves to the host" in low.stderr(), low.stderr()
    # It returns once the service is idle again.
    assert jobs.wait_until(lambda: scene.row(low)["eviction"]["state"] == "device", BOUND), scene.row(low)
    assert served.eviction()["state"] == "evicted"
    scene.progresses(low)
    right(scene, low, served.job)


def test_the_jobs_of_the_benchmark_move_and_lose_nothing(tmp_path):
    """`scripts/bench evict` without its times, on a fast device."""
    with evicting.Stage(tmp_path, dilation=1) as stage:
        woken = stage.server()
        assert woken["wakes"] == len(woken["wakes_s"]) == 3, woken
        assert woken["bytes"] == stage.mib(evicting.SERVICE_GIB) * MIB, woken
        room = stage.room(400)
        # One alone would not be enough.
        assert room["moved"] == [stage.mib(evicting.DEVICE_GIB // 2) * MIB] * 2, room
        assert room["lines"] == [1, 1] and room["then"] == room["alone"], room


@pytest.mark.finding("users4-L5")
@pytest.mark.parametrize("how", ["pid", "name"])
def test_a_job_returns_right_after_its_next_broker_began(scene, movable, how):
    job = movable("moves")
    done(scene, "pause", "--evict", job.pid)
    scene.broker.kill()
    scene.broker.start()
    # It attaches within a second.
    done(scene, "resume", job.pid if how == "pid" else "movable")
    assert state(scene, job) == "device"
    right(scene, job)


# Two contexts and 3.2 GB: both requests fit next to each other, and not what the first job holds.
@pytest.mark.parametrize("movable", [4 * GIB], indirect=True, ids=["two jobs"])
def test_memory_above_a_request_makes_room_for_an_equal(scene, movable, keeper):
    lender = keeper("lender", 1500, more={"WEFT_BACKING": "movable", "WEFT_MEMORY": "200MiB:1800MiB"})
    line = "keeps 200 MiB of device memory and gets at most 1.76 GiB; "
    for command in ("status", "queue"):
        # A page of 80 columns breaks its lines.
        page = " ".join(weft(scene, command).stdout.split())
        assert line in page, page
    ends, ready = scene.folder / "equal.running", scene.folder / "equal.ready"
    ends.touch()
    equal = scene.job([scene.folder / "movable", ready, ends, 70], "equal", more={"WEFT_MEMORY": "2000MiB"})
    stands(equal, ready)
    assert state(scene, lender) == "evicted" and "the part above its request" in lender.stderr(), lender.explain()
    # Its request stays its own.
    rows = {row["pid"]: row for row in json.loads(weft(scene, "queue", "--json").stdout)["running"]}
    row = rows[lender.pid]
    context = row["share"] - 200 * MIB
    assert (row["request"], row["limit"]) == (200 * MIB, 1800 * MIB) and 0 < context < GIB / 2, row
    assert rows[equal.pid]["limit"] is None, rows
    ends.unlink()
    scene.finish(equal)
    assert jobs.wait_until(lambda: state(scene, lender) == "device", BOUND), scene.row(lender)
    right(scene, lender)


def test_a_limit_bounds_a_job_and_needs_movable_memory_to_be_lent(scene):
    scene.device.settings["SIMGPU_MEMORY"] = str(2 * GIB)
    scene.broker.start()
    job = Told(scene, "bounded", WEFT_MEMORY="60MiB:200MiB", WEFT_BACKING="device")
    seen = job.does("read")
    assert 150 * MIB < seen["free"] <= 200 * MIB, seen
    assert [job.take(size * MIB)["result"] for size in (150, 60, 40)] == [0, 2, 0], job.job.explain()
    assert "never taken back for other jobs" in job.job.stderr(), job.job.explain()
    job.tell("end")
    scene.finish(job.job)
    wrong = weft(scene, "run", "--memory", "8GiB:4GiB", "--", "true")
    assert wrong.returncode == 2 and "the limit is below the request" in wrong.stderr, wrong


# Two contexts and 3.2 GB.
@pytest.mark.parametrize("movable", [4 * GIB], indirect=True, ids=["two jobs"])
@pytest.mark.parametrize("longest", [None, "1s"], ids=["no bound", "bound"])
def test_a_job_that_was_away_for_long_returns_before_those_that_wait(scene, movable, keeper, longest):
    more = {"WEFT_LONGEST_EVICTED": longest} if longest else {}
    low = keeper("low", 1500, more={"WEFT_BACKING": "movable", "WEFT_MEMORY": "1600MiB", "WEFT_PRIORITY": "7", **more})
    ends = {name: scene.folder / f"{name}.running" for name in ("service", "next")}
    readies = {name: scene.folder / f"{name}.ready" for name in ends}

    def start(name, priority):
        ends[name].touch()
        own = {"WEFT_MEMORY": "2000MiB", "WEFT_PRIORITY": priority, "WEFT_BACKING": "device", "WEFT_WAIT": str(int(BOUND))}
        return scene.job([scene.folder / "movable", readies[name], ends[name], 70], name, more=own)

    service = start("service", "2")
    stands(service, readies["service"])
    assert state(scene, low) == "evicted", scene.row(low)
    following = start("next", "7")
    told = "as long as --longest-evicted allows"
    if longest:
        assert jobs.wait_until(lambda: told in low.stderr(), BOUND), low.explain()
    else:
        assert jobs.wait_until(lambda: "waits for device memory" in following.stderr(), BOUND), following.explain()
    ends["service"].unlink()
    scene.finish(service)
    first = (lambda: state(scene, low) == "device") if longest else readies["next"].exists
    assert jobs.wait_until(first, BOUND), f"{scene.row(low)}\n{following.explain()}"
    assert readies["next"].exists() != bool(longest)
    if longest:
        scene.running.unlink()
        scene.finish(low)
        stands(following, readies["next"])
    ends["next"].unlink()
    scene.finish(following)
    if not longest:
        right(scene, low)
    assert b"all as it should be" in low.stdout() and (told in low.stderr()) == bool(longest), low.explain()
