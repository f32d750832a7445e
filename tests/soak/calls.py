# SPDX-License-Identifier: MIT OR Apache-2.0
"""Random sequences of driver calls, each played plainly and under weft in each role: answers,
values read back, and the order on the device must be the same.

Roles: alone, foreground job (next to a background job), background job (next to a foreground job;
launches are left behind at the gate), unqueued (a background job with WEFT_QUEUE=off, whose host
waits at the gate). Sequences of a role play at the same time, a batch at once; they begin when the
broker has given them their role.
"""

import random

import stage
from fixtures.scene import COMPANION
from harness import jobs

# Sequences of a batch: steps and threads of each.
BATCH = ((40, 1), (150, 1), (150, 2), (400, 3))
# Role: priority of its jobs, priority and pattern of the companion job, and the jobs' further
# variables.
ROLES = {
    "alone": (5, None, (), {}),
    "foreground": (1, 7, ("--burst", "32"), {}),
    "background": (5, 0, ("--burst", "4", "--pause", "2000"), {}),
    "unqueued": (5, 0, ("--burst", "4", "--pause", "2000"), {"WEFT_QUEUE": "off"}),
}
MODE = {"unqueued": "background"}


def play(folder, options, seconds, seed, figures, progress):
    """The part."""
    rng = random.Random(seed)
    stage.program(folder)
    before = len(figures.troubles)
    clock = stage.Clock(seconds)
    batch = 0
    while clock.left() or batch == 0:
        batch += 1
        place = folder / f"batch{batch}"
        place.mkdir()
        plays = [stage.Play(rng.randrange(1 << 31), steps, threads) for steps, threads in BATCH]
        (place / "calls").symlink_to(folder / "calls")
        plains = list(stage.plain_runs(place, plays, figures).values())
        for role in ROLES:
            in_role(place / role, folder, role, plains, options, figures)
        progress(f"batch {batch}: {figures.line()}")
    figures.settle(before)
    return f"{figures.sequences} sequences in {len(ROLES)} roles, {figures.calls} calls"


def in_role(place, programs, role, plains, options, figures):
    place.mkdir()
    own, other, pattern, more = ROLES[role]
    device = jobs.Device(place, log=place / "device.log")
    broker = jobs.Broker(place, device, policy=options.policy, trace=False).start()
    running = place / "running"
    beside, crowd = None, []
    base = {**jobs.clean_environment(), **device.environment(), "WEFT_LOG": "error"}
    try:
        if other is not None:
            running.touch()
            command = [COMPANION, "--while", running, "--ready", place / "ready", *pattern]
            beside = jobs.Job(command, environment={**base, **jobs.preload(broker.variables(), priority=other)}, folder=place, name="beside")
            assert jobs.wait_until(lambda: (place / "ready").exists() or not beside.running(), stage.BOUND) and beside.running(), beside.explain()
        # Only one of several jobs is the foreground job, and none of several is alone.
        together = [plains] if role in ("background", "unqueued") else [[plain] for plain in plains]
        for number, group in enumerate(together):
            crowd += play_group(place / f"{number}", programs, role, group, {**base, **jobs.preload(broker.variables(), priority=own), **more}, broker, figures)
        running.unlink(missing_ok=True)
        if beside and beside.wait(stage.BOUND) != 0:
            figures.trouble("hung" if beside.timed_out else "lost", f"{role}: the job beside\n{beside.explain()}")
    finally:
        if beside:
            beside.kill()
        broker.stop()
    if not device.wait_gone(30):
        figures.trouble("hung", f"{role}: the device stays after its last client")
        return
    stage.judge_order(figures, device.log, dict(crowd))


def play_group(place, programs, role, plains, environment, broker, figures):
    """Plays these at the same time. [(pid, (what, plain))] of those that ended right."""
    place.mkdir()
    go = place / "go"
    group = []
    try:
        for at, plain in enumerate(plains):
            result = place / f"{at}"
            group.append((jobs.Job(plain.play.command(programs, result, go), environment=environment, folder=place, name=f"{at}.job"), plain, result))
        pids = {job.pid for job, *_ in group}
        mode = MODE.get(role, role)

        def ready():
            rows = [row for row in stage.asked(broker.socket, "status")["clients"] if row["pid"] in pids]
            return len(rows) == len(pids) and all(row["mode"] == mode for row in rows)

        if not jobs.wait_until(lambda: ready() or not all(job.running() for job, *_ in group), stage.BOUND, 0.03):
            rows = stage.asked(broker.socket, "status")["clients"]
            figures.trouble("hung", f"{role}: not all have their role: {[(row['pid'], row['mode']) for row in rows]}")
        go.touch()
        right = []
        for job, plain, result in group:
            job.wait(stage.BOUND)
            what = f"{plain.play} as {role}"
            figures.sequences += 1
            figures.calls += plain.result.count(b"\n")
            if stage.judge(figures, what, plain, job, result):
                right.append((job.pid, (what, plain)))
        return right
    finally:
        for job, *_ in group:
            job.kill()
