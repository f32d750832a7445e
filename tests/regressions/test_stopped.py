# SPDX-License-Identifier: MIT OR Apache-2.0
"""Jobs that are stopped (SIGSTOP, Ctrl-Z, `weft pause`) while others run."""

import os
import signal

from fixtures.scene import BOUND, weft
from harness import jobs

# Launches of the other job, which takes a second for them. With the fault it had 16 a second.
LAUNCHES = 5000


def test_a_stopped_background_job_leaves_its_equals_their_turns(scene):
    scene.broker.start()
    main = scene.companion("main", pause=20000, priority=0)
    stopped = scene.companion("stopped", pause=200, priority=5)
    other = scene.companion("other", pause=200, priority=5)
    scene.attached(main, stopped, other)

    def at_the_gate():
        os.kill(stopped.pid, signal.SIGSTOP)
        row = scene.row(stopped)
        if not row["waiting"]:
            os.kill(stopped.pid, signal.SIGCONT)
        return row["waiting"]

    assert jobs.wait_until(at_the_gate, BOUND), "it was never stopped at the gate"
    before = scene.row(other)["launches"]
    goes_on = jobs.wait_until(lambda: scene.row(other)["launches"] > before + LAUNCHES, BOUND)
    assert goes_on, f"{scene.row(other)['launches'] - before} launches in {BOUND} s"
    assert scene.row(stopped)["stopped"]
    os.kill(stopped.pid, signal.SIGCONT)
    scene.progresses(stopped)
    scene.finish_companions(main, stopped, other)


def test_a_paused_job_is_resumed_by_its_process_when_its_broker_was_killed(scene):
    scene.broker.start()
    paused = scene.companion("paused", pause=200, priority=5)
    scene.attached(paused)
    assert weft(scene, "pause", paused.pid).returncode == 0
    assert jobs.wait_until(lambda: scene.row(paused)["stopped"], BOUND), "it was never stopped"
    scene.broker.job.kill()
    # One job, with a broker and without.
    assert weft(scene, "resume", paused.pid).returncode == 0
    os.kill(paused.pid, signal.SIGSTOP)
    scene.broker.start()
    done = weft(scene, "resume", paused.pid, scene.broker.job.pid)
    assert done.returncode == 1, "a process that is no job was resumed"
    scene.attached(paused)
    scene.progresses(paused)
    scene.finish_companions(paused)
