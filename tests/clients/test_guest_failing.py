# SPDX-License-Identifier: MIT OR Apache-2.0
"""Kernels that fail: the errors that a job gets under weft. No other job gets any."""

from fixtures.scene import BOUND
from guest_stage import ROLES, compiled, counters, plainly, queue, same
from harness import jobs

# Each way in which a job may learn of it. The last is that of a job that never waits.
WAYS = ("stream", "context", "event", "query", "copy", "graph", "launch")


def fails_alike(scene, bare, command, name, **options):
    """The job under weft gets the same errors as plainly, and weft prints next to nothing; then the
    broker does not know it any more."""
    job = scene.job(command, name, **options)
    job.wait(BOUND)
    same(bare, job)
    ours = [line for line in job.stderr().splitlines() if line.startswith("weft")]
    assert len(ours) <= 3, f"{len(ours)} lines of weft's\n{job.explain()}"
    last = counters(scene, job)
    assert last["launches"] and last["dropped_messages"] == 0, last
    assert jobs.wait_until(lambda: scene.row(job) is None, BOUND), f"the broker has it still: {scene.row(job)}"
    return last


def in_a_role(scene, role, command, bare, name):
    """Runs it next to a job that works on. Returns the failing one's last counters."""
    own, other, pause = ROLES[role]
    scene.running.touch()
    beside = scene.companion(f"beside-{name}", priority=other, pause=pause)
    last = fails_alike(scene, bare, command, name, more=queue(role), priority=own)
    scene.progresses(beside)
    scene.finish_companions(beside)
    return last


def test_a_kernel_that_fails_is_told_alike(scene):
    program = compiled(scene, "failing.c")
    scene.broker.start()
    left = 0
    for how in WAYS:
        bare = plainly(scene, [program, how], f"plainly-{how}")
        assert bare.process.returncode == 5 and b"says 700" in bare.stdout() and b"afterwards 0\n" in bare.stdout(), f"without weft\n{bare.stdout()}\n{bare.explain()}"
        fails_alike(scene, bare, [program, how], f"alone-{how}", priority=5)
        for role in ROLES:
            left += in_a_role(scene, role, [program, how], bare, f"{role}-{how}")["left_behind"]
    assert left, "no launch was left behind: a part was not tested"


def test_a_kernel_that_fails_is_told_alike_where_weft_does_more(scene):
    """With memory that may be lent, and while launches are timed."""
    program = compiled(scene, "failing.c")
    scene.broker.start()
    for how in ("stream", "event"):
        bare = plainly(scene, [program, how], f"plainly-{how}")
        fails_alike(scene, bare, [program, how], f"managed-{how}", more={"WEFT_BACKING": "managed"}, priority=5)
        fails_alike(scene, bare, [program, how], f"timed-{how}", priority=5, profile=f"failing-{how}", mode="profile")
