# SPDX-License-Identifier: MIT OR Apache-2.0
"""Small stacks, names with blanks, and the figures of a job that has just ended."""

import json
import re
import subprocess
import sys

import pytest
from built import compiled
from fixtures.scene import BOUND, weft
from harness import jobs, paths

GUEST = f"-I{paths.CLIENTS / 'guest'}"
BEGIN = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
"""


def history(scene):
    done = weft(scene, "history", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["jobs"]


@pytest.mark.finding("users3-L1")
def test_a_thread_with_a_small_stack_uses_each_device(scene):
    scene.device.settings["SIMGPU_DEVICES"] = "8GiB,8GiB"
    scene.broker.start()
    program = compiled(scene, "small_stack.c")
    # A build without optimization takes some 100 KiB of it.
    scene.finish(scene.job([program, 192]))


@pytest.mark.finding("users3-L2")
def test_a_script_with_a_blank_in_its_path_is_named_by_its_file(scene):
    scene.broker.start()
    folder = scene.folder / "my jobs"
    folder.mkdir()
    (folder / "my train.py").write_text(BEGIN)
    scene.finish(scene.job([sys.executable, folder / "my train.py", "--lr", "3"]))
    [row] = history(scene)
    assert row["name"] == "my train.py" and row["command"].endswith(f"'{folder}/my train.py' --lr 3"), row


@pytest.mark.finding("users3-L3")
def test_a_job_that_has_ended_is_in_the_next_answers(scene):
    scene.broker.start()
    for count in range(1, 16):
        job = scene.job([sys.executable, "-c", BEGIN])
        scene.finish(job)
        rows = history(scene)
        assert len(rows) == count and rows[0]["pid"] == job.pid, rows
        status = scene.status()
        assert [row["last"]["pid"] for row in status["ended"]][:1] == [job.pid] and status["clients"] == [], status


@pytest.mark.finding("users3-L4")
def test_all_pages_have_one_run_time_of_a_job(scene):
    scene.broker.start()
    done = weft(scene, "run", "--", compiled(scene, "late_end.c", GUEST), more={"WEFT_OUTCOME": "on"})
    assert done.returncode == 0, done.stderr
    [row] = history(scene)
    [ended] = scene.status()["ended"]
    ran = row["outcome"]["ran_s"]
    assert ran == ended["last"]["outcome"]["ran_s"] == ended["last"]["attached_s"], (row, ended)
    figure, unit = re.search(r"ran ([0-9.]+) (s|ms),", done.stderr).groups()
    told = float(figure) / {"s": 1, "ms": 1000}[unit]
    # The line has three digits.
    assert abs(told - ran) <= told / 100, (done.stderr, row)


@pytest.mark.finding("users3-L5")
def test_the_end_of_a_process_that_ends_slowly_is_known(rust):
    rust("weft-daemon", "history::tests::a_process_that_ends_slowly_delays_its_own_row")


@pytest.mark.finding("users3-L6")
def test_a_process_whose_first_thread_ended_holds_its_memory(rust):
    rust("weft-daemon", "base::process::tests::one_whose_first_thread_ended_runs_until_the_last_one_has")


@pytest.mark.parametrize("order", ["set --priority 7 --pid", "pause", "cancel"])
def test_an_order_right_after_a_new_broker_began_reaches_the_job(scene, order):
    scene.broker.start()
    job = scene.companion("job")
    scene.broker.kill()
    scene.broker.start()
    done = weft(scene, *order.split(), job.pid)
    assert done.returncode == 0, done


def test_a_time_of_nothing_is_no_idle_time(scene):
    scene.broker.start()
    done = weft(scene, "run", "--backing", "movable", "--evict-idle", "0", "--", "true")
    assert done.returncode == 2 and "0 is no time" in done.stderr, done
    done = weft(scene, "run", "--", "true", more={"WEFT_EVICT_IDLE": "10m"})
    assert done.returncode == 0 and "WEFT_EVICT_IDLE is for movable memory only" in done.stderr, done
    done = weft(scene, "run", "--backing", "movable", "--", "true", more={"WEFT_EVICT_IDLE": "10m"})
    assert done.returncode == 0 and "WEFT_EVICT_IDLE" not in done.stderr, done


@pytest.mark.finding("users3-L7")
def test_a_name_that_ends_as_the_files_do_is_refused_with_that(scene):
    done = weft(scene, "profile", "--name", "x.profile", "--", "true")
    assert done.returncode == 2 and "no .profile at the end" in done.stderr, done


def test_a_job_prints_that_it_waits_before_it_prints_that_it_begins(scene):
    """Jobs that each need most of the device: all but one wait, some for less than a ms."""
    scene.device.settings["SIMGPU_MEMORY"] = "8GiB"
    scene.broker.start()
    crowd = [scene.job([sys.executable, "-c", BEGIN], more={"WEFT_MEMORY": "6GiB"}) for _ in range(8)]
    waited = 0
    for job in crowd:
        scene.finish(job)
        told = [line for line in job.stderr().splitlines() if "waits for device memory" in line or " begins after " in line]
        waited += len(told) == 2
        assert not told or "waits" in told[0], job.explain()
    assert waited, [job.stderr() for job in crowd]


def test_a_mistyped_variable_is_one_line_and_the_job_runs(scene):
    scene.broker.start()
    wrong = {"WEFT_PRIORTY": "0", "WEFT_MODE": "of", "WEFT_HOME": "/x"}
    job = scene.job([sys.executable, "-c", BEGIN], more=wrong)
    scene.finish(job)
    assert sorted(job.stderr().splitlines()) == [
        f"weft[{job.pid}]: warn: WEFT_MODE=of is not one of serve, profile, trace, off; using serve",
        f"weft[{job.pid}]: warn: WEFT_PRIORTY: no variable of weft, so without effect; did you mean WEFT_PRIORITY?",
    ]
    assert history(scene)[0]["priority"] == 5
    for words, lines in ((["status"], 1), (["run", "true"], 0)):
        done = weft(scene, *words, more={"WEFT_SOKCET": "/x"})
        assert (done.returncode, done.stderr.count("did you mean WEFT_SOCKET?")) == (0, lines), done
