# SPDX-License-Identifier: MIT OR Apache-2.0
"""Jobs whose device memory moves to the host and back (`weft pause --evict`, `weft resume`)."""

import pytest
from built import compiled
from fixtures.scene import BOUND, says, weft
from harness import jobs

GIB = 1 << 30
MIB = 1 << 20
# Memory of the job that moves.
MOVED = 96


@pytest.fixture
def movable(scene):
    """Starts jobs with movable memory on a device with room for two contexts and 224 MiB, and a
    broker."""
    scene.device.settings["SIMGPU_MEMORY"] = str(GIB)
    scene.broker.start()
    program = compiled(scene, "movable.c")

    def start(name, mib=MOVED, *words, **more):
        ready = scene.folder / f"{name}.ready"
        command = [program, ready, scene.running, mib, *words]
        job = scene.job(command, name, more={"WEFT_BACKING": "movable", **more})
        there = jobs.wait_until(lambda: ready.exists() or not job.running(), BOUND)
        assert there and job.running(), f"{job.stdout()!r}\n{job.explain()}"
        return job

    return start


def right(scene, *those):
    scene.running.unlink()
    for job in those:
        scene.finish(job)
        assert b"all as it should be" in job.stdout(), f"{job.stdout()!r}\n{job.explain()}"


def done(scene, *words, code=0):
    ended = weft(scene, *words)
    assert ended.returncode == code, f"{words}: {ended}"
    return ended.stderr


def test_contents_survive_moves_at_any_moment(scene, movable):
    job = movable("moves")
    for _ in range(5):
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


def test_a_second_job_uses_the_memory_of_an_evicted_one(scene, movable):
    first = movable("first", 150, WEFT_MEMORY="160MiB")
    done(scene, "pause", "--evict", first.pid)
    # Both do not fit together, in the book nor on the device.
    second = movable("second", 150, WEFT_MEMORY="160MiB", WEFT_WAIT="20")
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


def test_an_evicted_job_returns_when_its_broker_was_killed(scene, movable):
    job = movable("orphan")
    done(scene, "pause", "--evict", job.pid)
    scene.broker.job.kill()
    scene.broker.start()
    scene.attached(job)
    # The next broker knows it, and has it stay.
    assert jobs.wait_until(lambda: (scene.row(job)["eviction"] or {}).get("state") == "evicted", BOUND), scene.row(job)
    done(scene, "resume", job.pid)
    done(scene, "pause", "--evict", job.pid)
    scene.broker.job.kill()
    # It returns by itself, and ends well.
    right(scene, job)


def test_what_cannot_be_moved_stays_and_is_told(scene, movable):
    plain = movable("plain", WEFT_BACKING="device")
    line = done(scene, "pause", "--evict", plain.pid, code=1)
    assert "no movable memory" in line and "--backing movable" in line, line
    captures = movable("captures", MOVED, "capture")
    assert "captures a graph" in done(scene, "pause", "--evict", captures.pid, code=1)
    assert "keeps" in done(scene, "pause", plain.pid)
    done(scene, "resume", plain.pid)
    right(scene, plain, captures)
