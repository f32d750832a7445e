# SPDX-License-Identifier: MIT OR Apache-2.0
"""Engines with a sleep mode (vLLM's, torch_memory_saver's). They unmap and release their memory,
and later put other memory behind the same addresses."""

import pytest
from fixtures.scene import BOUND, says
from fixtures.told import Told
from harness import jobs

GIB = 1 << 30
MIB = 1 << 20


@pytest.fixture
def engine(scene):
    """Starts an engine that holds 6 of 8 GiB: weights, and a cache."""
    scene.device.settings["SIMGPU_MEMORY"] = str(8 * GIB)
    scene.broker.start()

    def start(**more):
        told = Told(scene, "engine", WEFT_PRIORITY=0, **more)
        for size in (2 * GIB, 4 * GIB):
            mapped = told.does(f"map {size}")
            assert mapped["result"] == 0, f"{mapped}\n{told.job.explain()}"
        assert scene.row(told.job)["memory"] == 6 * GIB, scene.row(told.job)
        return told

    return start


def sleeps(scene, told):
    assert told.does("sleep")["result"] == 0
    row = scene.row(told.job)
    assert (row["memory"], row["memory_peak"]) == (0, 6 * GIB), row


def wakes(scene, told):
    woken = told.does("wake")
    assert woken["result"] == 0, f"{woken}\n{told.job.explain()}"
    assert scene.row(told.job)["memory"] == 6 * GIB, scene.row(told.job)


def test_memory_of_a_sleeping_engine_is_the_next_jobs_until_that_frees_it(scene, engine):
    served = engine()
    sleeps(scene, served)
    training = Told(scene, "training", WEFT_PRIORITY=5)
    training.reads(5 * GIB)
    assert training.take(5 * GIB)["result"] == 0, training.job.explain()
    assert "waits inside" not in training.job.stderr(), training.job.explain()
    # An error of CUDA: the engine gets no memory that is another job's, and loses none.
    assert served.does("wake")["result"] == 2, served.job.explain()
    assert scene.row(served.job)["memory"] == 2 * GIB, scene.row(served.job)
    assert scene.row(training.job)["memory"] == 5 * GIB, scene.row(training.job)
    training.does("free")
    wakes(scene, served)


def test_an_engine_that_may_wait_wakes_when_its_memory_is_free(scene, engine):
    served = engine(WEFT_WAIT=int(BOUND))
    sleeps(scene, served)
    training = Told(scene, "training", WEFT_PRIORITY=5)
    assert training.take(5 * GIB)["result"] == 0, training.job.explain()
    served.tell("wake")
    told = lambda: "waits inside" in served.job.stderr()  # noqa: E731
    assert jobs.wait_until(lambda: told() or not served.job.running(), BOUND), served.job.explain()
    says(served.job, "waits inside an allocation")
    training.does("free")
    assert served.answer()["result"] == 0, served.job.explain()
    assert scene.row(served.job)["memory"] == 6 * GIB, scene.row(served.job)


def test_movable_memory_makes_room_for_an_engine_that_wakes(scene, engine, rust):
    served = engine()
    sleeps(scene, served)
    training = Told(scene, "training", WEFT_PRIORITY=5, WEFT_BACKING="movable")
    assert training.take(5 * GIB)["result"] == 0, training.job.explain()
    wakes(scene, served)
    moved = scene.row(training.job)["eviction"]
    assert (moved["state"], moved["cause"], moved["bytes"]) == ("evicted", "room", 5 * GIB), moved
    # It returns once the engine sleeps again, when it may move again.
    test = "a_job_returns_to_memory_that_a_sleeping_one_does_not_hold_once_it_may_move_again"
    rust("weft-daemon", f"admission::tests::evicted::{test}")
