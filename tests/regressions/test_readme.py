# SPDX-License-Identifier: MIT OR Apache-2.0
"""README's own commands protect: they are read out of README.md and played word by word."""

import time

import pytest
from fixtures.scene import BOUND, missing
from harness import jobs
from harness.bench import beside, readme

# Kernels that are nearly as long as weft's delay bound, on a GPU that takes turns.
CASE = readme.Case(400, "timeslice", 1)
# Seconds of the service without other jobs, and next to the training; the first of them is not
# judged.
ALONE_S, TOGETHER_S = 1.0, 5.0
# Requests that may find more than the delay bound of other work on the device. It was 92 % while
# each launch was charged 20 us, however long its kernel. A broker that got no core in time is late
# now and then.
MOST_OVER_BOUND = 0.05
# Requests during which a training's kernel may be launched and run: one that was on its way.
MOST_LET_IN = 0.05


@pytest.mark.finding("users2-C1")
def test_readmes_own_commands_protect_the_service(folder, record_property):
    if absent := missing():
        pytest.exit(absent, returncode=3)
    profiles, widths = folder / "profiles", {readme.WIDTH: CASE.length_us * 1_000}
    with beside.Play(folder / "learn", widths, profiles=profiles) as play:
        play.begin("service", beside.command("profile", "serve.py"))
        play.finish("service")
    with beside.Play(folder / "play", widths, mode=CASE.mode, profiles=profiles) as play:
        service = play.start("service", beside.command("run", "serve.py"))
        time.sleep(ALONE_S)
        training = play.start("training", beside.command("run", "train.py"), EVERY=CASE.every())
        time.sleep(TOGETHER_S)
        play.end("training", "service")
        log = play.log()
    seen = beside.by_log(log, service.pid, [training.pid])
    assert seen["over_bound"] <= MOST_OVER_BOUND, seen
    assert seen["let_in"] <= MOST_LET_IN, seen
    # The training is no victim: it has the gaps, which are nine tenths of the device.
    begin, end = log.span(training.pid)
    assert log.busy(training.pid) >= (end - begin) / 4, (log.busy(training.pid), end - begin)
    record_property("told", str(seen))


def test_readmes_other_commands_do_what_they_are_there_for(folder):
    if absent := missing():
        pytest.exit(absent, returncode=3)
    with beside.Play(folder / "play", {readme.WIDTH: CASE.length_us * 1_000}) as play:
        play.start("training", beside.command("run", "train.py"), EVERY=CASE.every())
        looks = {words[1]: play.begin(words[1], words, cwd=folder) for words in beside.looks()}
        assert set(looks) == {"doctor", "top", "report"}, looks.keys()
        # It prints until it is ended.
        top = looks.pop("top")
        assert jobs.wait_until(lambda: b"train.py" in top.stdout(), BOUND), top.explain()
        for job in looks.values():
            assert job.wait(BOUND) == 0, job.explain()
        assert "train.py" in (folder / "weft-report.html").read_text()
