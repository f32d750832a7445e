# SPDX-License-Identifier: MIT OR Apache-2.0
"""How jobs ended: the exit code or signal of each, in `weft history`, `status` and the metrics."""

import json
import os
import signal
import sys

import pytest
from fixtures.scene import BOUND, weft
from harness import jobs

BEGIN = """
import ctypes, os, signal, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
"""

# The end of a job, its exit code for its parent, and the reported outcome.
ENDS = {
    "well": ("pass", 0, "well"),
    "failed": ("sys.exit(3)", 3, "failed 3"),
    "uncaught": ("raise RuntimeError('boom')", 1, "failed 1"),
    "left": ("os._exit(4)", 4, "failed 4"),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, "killed 9"),
    "crashed": ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV, "killed 11"),
}


def rows(scene, count):
    """The history, once it has `count` rows: by process."""

    def read():
        done = weft(scene, "history", "--json")
        assert done.returncode == 0, done.stderr
        return {row["pid"]: row for row in json.loads(done.stdout)["jobs"]}

    assert jobs.wait_until(lambda: len(read()) >= count, BOUND, step=0.1), read()
    return read()


def exit_of(code):
    return {"code": None, "signal": -code, "cancelled": False} if code < 0 else {"code": code, "signal": None, "cancelled": False}


@pytest.mark.finding("users2-H3")
def test_a_job_that_failed_was_killed_or_cancelled_is_not_called_well(scene):
    scene.broker.start()
    begun = {name: scene.job([sys.executable, "-c", BEGIN + end], name) for name, (end, _, _) in ENDS.items()}
    cancelled = scene.job([sys.executable, "-c", BEGIN + "time.sleep(600)"], "cancelled")
    attached = jobs.wait_until(lambda: cancelled.pid in {client["pid"] for client in scene.status()["clients"]}, BOUND, step=0.1)
    assert attached, cancelled.explain()
    done = weft(scene, "cancel", f"pid:{cancelled.pid}")
    assert done.returncode == 0, done.stderr
    for name, (_, code, _) in ENDS.items():
        scene.finish(begun[name], code)
    scene.finish(cancelled, -signal.SIGTERM)

    kept = rows(scene, len(ENDS) + 1)
    ended = {row["last"]["pid"]: row for row in scene.status()["ended"]}
    page = weft(scene, "history", more={"COLUMNS": "250"}).stdout.splitlines()
    for name, (_, code, words) in ENDS.items():
        pid = begun[name].pid
        assert kept[pid]["exit"] == exit_of(code), (name, kept[pid])
        assert ended[pid]["exit"] == exit_of(code), (name, ended[pid])
        assert any(str(pid) in line and words in line for line in page), (name, page)
    own = {"code": None, "signal": int(signal.SIGTERM), "cancelled": True}
    assert kept[cancelled.pid]["exit"] == own == ended[cancelled.pid]["exit"], kept[cancelled.pid]
    assert any(str(cancelled.pid) in line and "cancelled" in line for line in page), page

    metrics = weft(scene, "metrics").stdout
    for how, count in {"well": 1, "failed": 3, "killed": 2, "cancelled": 1, "unknown": 0}.items():
        assert f'weft_jobs_exited_total{{how="{how}"}} {count}\n' in metrics, metrics


@pytest.mark.finding("users2-H3")
def test_an_interrupted_wait_for_memory_is_told_by_its_signal(scene):
    scene.broker.start()
    scene.companion("holder", more={"WEFT_MEMORY": "38GiB"})
    waiter = scene.job([sys.executable, "-c", BEGIN], "waiter", more={"WEFT_MEMORY": "20GiB"})

    def waits():
        return any(row["pid"] == waiter.pid for row in json.loads(weft(scene, "queue", "--json").stdout)["waiting"])

    assert jobs.wait_until(lambda: waits() or not waiter.running(), BOUND, step=0.1) and waiter.running(), waiter.explain()
    os.kill(waiter.pid, signal.SIGINT)
    scene.finish(waiter, -signal.SIGINT)
    assert rows(scene, 1)[waiter.pid]["exit"] == exit_of(-signal.SIGINT)


@pytest.mark.finding("attack-A4")
def test_no_user_pushes_the_rows_of_another_out(rust):
    tests = ("history::tests::no_user_pushes_the_rows_of_another_out", "clients::registry::tests::the_last_that_ended_are_not_one_users_alone")
    rust("weft-daemon", *tests)


@pytest.mark.finding("users2-H2")
def test_no_warning_contradicts_what_is_told_of_the_job(rust):
    of = "outcomes::warning::tests::"
    tests = ("no_warning_contradicts_what_is_told_of_the_job", "a_role_of_a_moment_is_no_warning_for_ever", "a_background_job_that_costs_much_is_told_that_it_lacks_a_profile")
    rust("weft-daemon", *(of + test for test in tests))


@pytest.mark.finding("users2-M7")
def test_warnings_name_jobs_and_the_gpus_number(rust):
    tests = ("outcomes::thread::tests::a_device_is_called_as_nvidia_smi_counts_it", "outcomes::warning::tests::equals_at_the_top_are_told_of_unless_they_are_one_job")
    rust("weft-daemon", *tests)
