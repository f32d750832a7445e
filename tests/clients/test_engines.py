# SPDX-License-Identifier: MIT OR Apache-2.0
"""Engines that return device memory while they are idle, next to a training job that uses it.

The engines are clients of the matrix: tests/clients/programs. Each case needs a large environment
(scripts/setup vllm) and is skipped without it.
"""

import tomllib

import pytest
from fixtures.told import Told
from harness import jobs, paths

GIB = 1 << 30
# Seconds: an engine starts up within a minute on two idle cores.
BOUND = 400


class Engine:
    """A client of the matrix that stops at the points of programs/stages.py."""

    def __init__(self, scene, client, name=None, **more):
        name = name or client
        client = tomllib.loads((paths.CLIENTS / "clients.toml").read_text())[client]
        venv = client["venv"]
        if not paths.whole(venv):
            pytest.skip(f"no whole .venv-{venv}: scripts/setup {venv}")
        self.scene, self.stages = scene, scene.folder / f"{name}.stages"
        self.stages.mkdir()
        self.result = scene.folder / f"{name}.json"
        command = [paths.python(venv), paths.CLIENTS / "programs" / client["program"], self.result, *client.get("arguments", [])]
        environment = {**client.get("env", {}), "CLIENT_STAGES": str(self.stages), "OMP_NUM_THREADS": "1", **more}
        self.job = scene.job(command, name, more=environment)

    def until(self, stage):
        """Waits until it stops at this point."""
        there = (self.stages / stage).exists
        assert jobs.wait_until(lambda: there() or not self.job.running(), BOUND) and there(), self.job.explain()

    def goes_on(self, stage):
        (self.stages / stage).unlink()

    def held(self, *others):
        """Bytes that its processes hold, as the broker counts them."""
        known = [other.job.pid for other in others]
        rows = [row for row in self.scene.status()["clients"] if row["pid"] not in known]
        return sum(row["memory"] for row in rows)

    def ends(self):
        assert self.job.wait(BOUND) == 0 and self.result.exists(), self.job.explain()


def small(scene, gib):
    scene.device.settings["SIMGPU_MEMORY"] = str(gib * GIB)
    scene.broker.start()
    return scene


def uses(training, size):
    """The training job takes memory that it reads as free, without a wait."""
    training.reads(size)
    took = training.take(size)
    assert took["result"] == 0 and "waits inside" not in training.job.stderr(), f"{took}\n{training.job.explain()}"


def test_memory_of_a_sleeping_engine_is_a_training_jobs_until_the_engine_wakes(scene):
    training = Told(small(scene, 8), "training", WEFT_PRIORITY=5)
    engine, first = Engine(scene, "vllm-sleep", WEFT_PRIORITY="0"), "awake"
    engine.until(first)
    awake, free = engine.held(training), training.does("read")["free"]
    for level in (1, 2):
        engine.goes_on(first)
        engine.until(f"asleep-{level}")
        asleep = engine.held(training)
        assert asleep < awake / 4, f"level {level}: {asleep} of {awake} bytes"
        uses(training, free + (awake - asleep) * 9 // 10)
        training.does("free")
        engine.goes_on(f"asleep-{level}")
        first = f"woken-{level}"
        engine.until(first)
        woken = engine.held(training)
        assert woken >= awake * 9 // 10, f"level {level}: {woken} of {awake} bytes"
    engine.goes_on(first)
    engine.ends()
    assert "waits inside" not in engine.job.stderr(), engine.job.explain()


def test_two_caches_take_turns_and_a_training_job_has_what_both_gave_back(scene):
    size = 8 * GIB
    training = Told(small(scene, 8), "training", WEFT_PRIORITY=5)
    free = training.does("read")["free"]
    one = Engine(scene, "kvcached", "one", WEFT_PRIORITY="5")
    two = Engine(scene, "kvcached", "two", WEFT_PRIORITY="0")
    for cache in (one, two):
        cache.until("ready")
    before = "ready"
    for turn in range(2):
        for cache, other in ((one, two), (two, one)):
            cache.goes_on(before)
            cache.until(f"full-{turn}")
            full = cache.held(training, other)
            assert full > 0.64 * size, f"turn {turn}: {full} bytes"
            cache.goes_on(f"full-{turn}")
            cache.until(f"empty-{turn}")
            kept = cache.held(training, other)
            assert kept < full / 4, f"turn {turn}: {kept} of {full} bytes"
        before = f"empty-{turn}"
        uses(training, free * 6 // 10)
        training.does("free")
    for cache in (one, two):
        cache.goes_on(before)
        cache.ends()
        assert "waits inside" not in cache.job.stderr(), cache.job.explain()
