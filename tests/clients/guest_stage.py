# SPDX-License-Identifier: MIT OR Apache-2.0
"""The stage of the cases of test_guest*.py: programs plainly and in the roles that weft gives, and
the comparison of both."""

import sys
from pathlib import Path

from fixtures.compiled import program
from fixtures.scene import BOUND
from harness import jobs, paths

PROGRAMS = Path(__file__).resolve().parent / "guest"
# A job that is the foreground job, a background job (which leaves launches behind at the gate),
# or a background job that waits there: its priority, its companion job's priority, and the
# companion's pause.
ROLES = {"foreground": (0, 7, 300), "background": (6, 0, 3000), "unqueued": (6, 0, 3000)}


def compiled(scene, name, *flags):
    """A C program of the folder, built here."""
    return program(scene.folder, PROGRAMS / name, *flags)


def script(name, *arguments):
    return [sys.executable, PROGRAMS / name, *arguments]


# For the programs in Python: their helper, and no files in the source tree.
PYTHON = {"PYTHONPATH": str(PROGRAMS), "PYTHONDONTWRITEBYTECODE": "1"}


def plainly(scene, command, name="plainly", more=None, limits=None):
    """The job without weft."""
    environment = {**jobs.clean_environment(), **scene.device.environment(), **PYTHON, **(more or {})}
    job = jobs.Job(command, environment=environment, folder=scene.folder, name=name, limits=limits)
    scene.jobs.append(job)
    job.wait(BOUND)
    assert not job.timed_out, f"it hangs without weft\n{job.explain()}"
    return job


def same(bare, job):
    assert not job.timed_out, f"{job.name} hangs under weft\n{job.explain()}"
    seen, wanted = (job.process.returncode, job.stdout()), (bare.process.returncode, bare.stdout())
    assert seen == wanted, f"{job.name}: {wanted} without weft, {seen} with it\n{job.explain()}"


def counters(scene, job):
    """weft's last word on a job that has ended."""
    def ended():
        return [entry["last"] for entry in scene.status()["ended"] if entry["last"]["pid"] == job.pid]

    assert jobs.wait_until(ended, BOUND, step=0.1), f"the broker never saw {job.name} end"
    return ended()[0]


def queue(role):
    return {"WEFT_QUEUE": "off" if role == "unqueued" else "on"}


def in_roles(scene, command, *roles, code=0, attached=True):
    """Runs it plainly, then in each role next to a job that works all the while."""
    bare = plainly(scene, command)
    assert bare.process.returncode == code, f"without weft\n{bare.explain()}"
    scene.broker.start()
    for role in roles or ROLES:
        own, other, pause = ROLES[role]
        scene.running.touch()
        beside = scene.companion(f"beside-{role}", priority=other, pause=pause)
        job = scene.job(command, role, more={**PYTHON, **queue(role)}, priority=own)
        job.wait(BOUND)
        same(bare, job)
        if attached:
            last = counters(scene, job)
            assert last["troubles"] == last["dropped_messages"] == 0, last
        assert scene.broker.job.running(), scene.broker.job.explain()
        scene.finish_companions(beside)


def weft_command(scene, *arguments, limits=None, more=None):
    """`weft ...` in surroundings of its own."""
    environment = {**jobs.clean_environment(), **scene.device.environment(), **scene.broker.variables(), **(more or {})}
    job = jobs.Job([paths.WEFT, *arguments], environment=environment, folder=scene.folder, name=f"weft{scene.number}", limits=limits)
    scene.number += 1
    scene.jobs.append(job)
    job.wait(BOUND)
    return job
