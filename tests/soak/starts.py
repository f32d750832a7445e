# SPDX-License-Identifier: MIT OR Apache-2.0
"""300 jobs that start at once under one broker: each must end right, and leave nothing behind."""

import random
import time

import stage
from harness import jobs

COUNT = 300
# All their contexts fit, so that all would also end right without weft: on a busy machine the
# broker may not answer some in time, and those begin as without it.
MEMORY = 256 << 30


def play(folder, options, seconds, seed, figures, progress):
    """The part: at least once, as often as there is time."""
    rng = random.Random(seed)
    stage.program(folder)
    plays = [stage.Play(rng.randrange(1 << 31), 12, threads) for threads in (1, 1, 1, 2)]
    plains = list(stage.plain_runs(folder, plays, figures).values())
    before = len(figures.troubles)
    clock = stage.Clock(seconds)
    times, took, attached = 0, 0.0, 0
    while times == 0 or clock.left() > took:
        times += 1
        begin = time.monotonic()
        attached += once(folder / f"time{times}", folder, plains, rng, options, figures)
        took = time.monotonic() - begin
        progress(f"{COUNT} starts at once, {times} times ({took:.0f} s): {figures.line()}")
    figures.settle(before)
    return f"{times} times {COUNT} at once, {attached} of them attached"


def once(place, programs, plains, rng, options, figures):
    """Once. How many of them the broker had."""
    place.mkdir()
    device = jobs.Device(place, memory=MEMORY, log=place / "device.log")
    broker = jobs.Broker(place, device, policy=options.policy, trace=False).start()
    crowd = []
    try:
        base = {**jobs.clean_environment(), **device.environment()}
        for number in range(COUNT):
            plain = rng.choice(plains)
            more = {"WEFT_QUEUE": "off"} if rng.random() < 0.3 else {}
            environment = {**base, **jobs.preload(broker.variables(), priority=rng.randrange(10)), "WEFT_LOG": "error", **more}
            job = jobs.Job(plain.play.command(programs, place / f"{number}"), environment=environment, folder=place, name=f"{number}.job")
            crowd.append((job, plain, place / f"{number}", f"start {number} of {COUNT}: {plain.play}"))
        figures.starts += COUNT
        end = time.monotonic() + 2 * stage.BOUND
        ended = {}
        for job, plain, result, what in crowd:
            job.wait(max(1.0, end - time.monotonic()))
            if stage.judge(figures, what, plain, job, result):
                ended[job.pid] = (what, plain)
        if not broker.job.running():
            figures.trouble("lost", f"the broker ended\n{broker.job.explain()}")
        elif not jobs.wait_until(lambda: not stage.asked(broker.socket, "status")["clients"], stage.BOUND, 0.1):
            figures.trouble("hung", "dead clients are still attached")
        attached = stage.asked(broker.socket, "status")["broker"]["attached"]
        if device.wait_gone(30):
            stage.judge_order(figures, device.log, ended)
        return attached
    finally:
        for job, *_ in crowd:
            job.kill()
        broker.stop()
