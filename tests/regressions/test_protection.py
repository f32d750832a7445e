# SPDX-License-Identifier: MIT OR Apache-2.0
"""A background job without a profile keeps to the delay bound, as README starts it.

Judged by the part of its work that lies on the device when the foreground job comes back."""

import pytest
from harness import jobs
from harness.bench import starving

# The foreground job: kernels a burst, and the pause after them, us. The background job launches
# without a pause; each of its kernels is 20 times the charge of an unknown kernel.
BURST, PAUSE, KERNEL = 8, 20_000, 400_000
DEVICE = f"""[[kernel]]
name = "simgpu_fill"
grid = [1, 1, 1]
block = [32, 1, 1]
ns = 150000

[default]
base_ns = {KERNEL}
"""
DELAY_BOUND = 500_000
# The first bursts are the foreground job's own controls.
LEAST_RETURNS = 20


@pytest.mark.finding("users2-C1")
def test_a_background_job_without_a_profile_is_charged_what_it_takes(rust):
    model = "policy::weft::kernel_time_model::tests::"
    rust(
        "weft-scheduler",
        f"{model}a_job_without_a_profile_is_charged_the_bound_and_then_what_the_device_measured",
        f"{model}ends_teach_nothing_once_the_device_has_measured",
        "policy::weft::tests::a_background_job_without_a_profile_is_timed_and_charged_the_bound_from_its_first_launch",
        "policy::weft::lateness_account::tests::stretches_that_break_the_delay_bound_withhold_gaps_whoever_asked_for_nothing",
    )
    rust("weft-daemon", "scheduling::lanes::tests::charges_go_one_message_at_a_time_and_wait_for_no_client")


def queued_at_returns(lines, foreground, background):
    """Background work, ns, that was submitted and not done at the first launch of each burst."""
    kernels = [line for line in lines if line["op"] == "kernel"]
    mine = [line for line in kernels if line["pid"] == foreground]
    others = [line for line in kernels if line["pid"] == background]
    begin, end = others[0]["submitted"], others[-1]["submitted"]
    returns = [after["submitted"] for before, after in zip(mine, mine[1:], strict=False) if after["submitted"] - before["submitted"] > PAUSE * 500]
    found = []
    for at in returns:
        if begin <= at <= end:
            found.append(sum(line["end"] - line["t"] for line in others if line["submitted"] < at < line["end"]))
    return found


@pytest.mark.finding("users2-C1")
def test_what_a_background_job_without_a_profile_has_on_the_device_at_a_return_keeps_to_the_delay_bound(scene, record_property, monkeypatch):
    monkeypatch.setattr(starving, "DEVICE", DEVICE)
    monkeypatch.setattr(starving, "BURST", BURST)
    monkeypatch.setattr(starving, "PAUSE", PAUSE)
    with starving.Stage(scene.folder, "weft", starving.program(scene.folder), log=scene.folder / "device.log") as stage:
        background = stage.job("background", [stage.program, 30, 0, 0, 2], priority=5)
        assert background.wait(starving.BOUND) == 0, background.explain()
        foreground = stage.foreground.pid
    assert stage.device.wait_gone(starving.BOUND)
    found = sorted(queued_at_returns(jobs.lines_of(stage.device.log), foreground, background.pid))
    told = f"us of the background job's work at {len(found)} returns: {[one // 1000 for one in found]}"
    record_property("told", told)
    assert len(found) >= LEAST_RETURNS, told
    # One in ten may be late, because the broker's thread lost its core.
    assert found[len(found) * 9 // 10] <= DELAY_BOUND, told


def test_lateness_of_a_job_that_queues_its_next_step_first_is_measured(scene, monkeypatch):
    """It awaits the burst before, so no wait sees all of its work ended."""
    # A quarter of a burst's time on the device: the burst before still runs.
    monkeypatch.setattr(starving, "PAUSE", 300)
    with starving.Stage(scene.folder, "weft", starving.program(scene.folder), end="before") as stage:

        def lost():
            clients = (stage.broker.status() or {"clients": []})["clients"]
            mine = [client for client in clients if client["pid"] == stage.foreground.pid]
            outcome = mine[0]["outcome"] if mine else None
            return outcome and outcome["lost"]

        background = stage.job("background", [stage.program, 30, 0, 0, 600], priority=5)
        measured = jobs.wait_until(lambda: (lost() or {"waits": 0})["waits"] >= LEAST_RETURNS, starving.BOUND)
        background.terminate()
        assert measured, (lost(), stage.foreground.explain())


def part_of_the_device(lines, job):
    """The part of the device's time that a job's kernels have between its first and its last."""
    kernels = [line for line in lines if line["op"] == "kernel" and line["pid"] == job]
    return sum(line["end"] - line["t"] for line in kernels) / (kernels[-1]["end"] - kernels[0]["t"])


def test_a_background_job_has_at_least_the_part_that_it_asked_for(scene, monkeypatch):
    """The foreground job leaves no gap. The device's log is the judge."""
    monkeypatch.setattr(starving, "DEVICE", DEVICE)
    monkeypatch.setattr(starving, "PAUSE", 0)
    with starving.Stage(scene.folder, "weft", starving.program(scene.folder), log=scene.folder / "device.log") as stage:
        played = {}
        for part in ("0", "30%"):
            job = stage.job(f"background{part[0]}", [stage.program, 30, 0, 0, 3], priority=5, WEFT_AT_LEAST=part)
            assert job.wait(starving.BOUND) == 0, job.explain()
            played[part] = job.pid
    assert stage.device.wait_gone(starving.BOUND)
    lines = jobs.lines_of(stage.device.log)
    had = {part: part_of_the_device(lines, pid) for part, pid in played.items()}
    assert had["0"] < 0.05, had
    # A busy host takes some of it.
    assert 0.1 < had["30%"] < 0.4, had
