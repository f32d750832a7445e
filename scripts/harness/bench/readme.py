# SPDX-License-Identifier: MIT OR Apache-2.0
"""Results of README's own way of sharing a GPU: one case per length of the training's kernels.

Each case runs in four conditions, one right after the other. In each of them the service first
runs by itself, then the trainings join:
    plain      without weft
    elsewhere  without weft, and the trainings have another GPU: their load on the host is left
    readme     as in README: the service has a profile, the trainings have none
    both       the trainings have a profile too
"""

import contextlib
import itertools
import subprocess
import sys
import time
from dataclasses import dataclass

from .. import jobs
from . import beside, told

LENGTHS_US = (20, 40, 100, 200, 400, 1_000, 4_000)
MODES = {"timeslice": "time-sliced", "mps": "MPS"}
TRAININGS = {1: "one training", 2: "two trainings"}
CONDITIONS = ("plain", "elsewhere", "readme", "both")
WITHOUT_WEFT = ("plain", "elsewhere")

# The aims: the service's p50 and p99 relative to alone, and the training's speed relative to its
# speed when profiled.
P50, P99, SPEED = 1.05, 1.10, 0.9

# A training waits for its device about this often, after at least and at most this many launches.
WAIT_US, FEWEST, MOST = 40_000, 10, 1_000
# Waits of a training that is profiled: a second or two.
PROFILED_WAITS = 50

WIDTH = 64
PROFILE = "training"


@dataclass(frozen=True)
class Case:
    """Length of the trainings' kernels, mode of sharing, and number of trainings."""

    length_us: int
    mode: str
    trainings: int

    def __str__(self):
        length = (
            f"{self.length_us} us" if self.length_us < 1_000 else f"{self.length_us // 1_000} ms"
        )
        return f"{length}, {MODES[self.mode]}, {TRAININGS[self.trainings]}"

    def every(self):
        return str(min(max(WAIT_US // self.length_us, FEWEST), MOST))


def cases():
    return [Case(*of) for of in itertools.product(LENGTHS_US, MODES, TRAININGS)]


def learn(folder, case, profiles):
    """README's `weft profile` of the service, and the same for the training."""
    serve = beside.command("profile", "serve.py")
    train = ["weft", "profile", "--name", PROFILE, "--", *beside.without_weft(command(False))]
    given = {"EVERY": case.every(), "TURNS": str(PROFILED_WAITS)}
    with beside.Play(folder, {WIDTH: case.length_us * 1_000}, profiles=profiles) as play:
        for name, words, more in (("service", serve, {}), (PROFILE, train, given)):
            play.begin(name, words, **more)
            play.finish(name)


def command(is_profiled):
    """README's command of the training."""
    words = beside.command("run", "train.py")
    return beside.profiled(words, PROFILE) if is_profiled else words


def measure(folder, case, condition, profiles, *, alone, together):
    """The figures of a case in a condition: `alone` seconds of the service, then `together`."""
    serve, train = beside.command("run", "serve.py"), command(condition == "both")
    if condition in WITHOUT_WEFT:
        serve, train = map(beside.without_weft, (serve, train))
    names = [f"training{at}" for at in range(case.trainings)]
    widths = {WIDTH: case.length_us * 1_000}
    with contextlib.ExitStack() as stack:

        def device(folder):
            return stack.enter_context(beside.Play(folder, widths, mode=case.mode, profiles=profiles))

        play = other = device(folder)
        if condition == "elsewhere":
            other = device(folder / "elsewhere")
        service = play.start("service", serve)
        time.sleep(alone)
        for name in names:
            other.begin(name, train, EVERY=case.every())
        for name in names:
            other.ready(name)
        time.sleep(together)
        other.end(*names)
        play.end("service")
        pids = [other.jobs[name].pid for name in names]
        outcomes = {} if condition in WITHOUT_WEFT else play.outcomes([service.pid, *pids])
        times, trainings = play.times("service"), [other.times(name) for name in names]
        log = play.log()
    lost = (outcomes.get(service.pid) or {}).get("lost") or {}
    figures = {
        **beside.by_clock(times, trainings),
        "steps": sum(map(beside.steps_a_second, trainings)),
        "told_lost": lost.get("part"),
    }
    if condition == "elsewhere":
        return {**figures, "log": beside.spans_by_log(log, service.pid, times, trainings)}
    return {
        **figures,
        "lost_by_log": beside.lost_by_log(log, service.pid, pids),
        "log": beside.by_log(log, service.pid, pids),
    }


@contextlib.contextmanager
def busy_host(threads):
    """`threads` processes that compute without a pause, as data loaders do."""
    command = [sys.executable, "-c", "while True: pass"]
    spinning = [subprocess.Popen(command) for _ in range(threads)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def play(case, step, *, alone, together, load=0):
    """Runs a case in all conditions: {condition: figures}. `step` is called with the name of each
    step.

    `load`: number of processes that compute on the host meanwhile, but not while profiles are made.
    """
    found = {}
    with jobs.workspace() as folder, contextlib.ExitStack() as stack:
        profiles = folder / "profiles"
        step("profiles")
        learn(folder / "learn", case, profiles)
        stack.enter_context(busy_host(load))
        for condition in CONDITIONS:
            step(condition)
            given = {"alone": alone, "together": together}
            found[condition] = measure(folder / condition, case, condition, profiles, **given)
    return found


def ratios(found, condition):
    """A condition's figures relative to alone, and to both profiled."""
    alone, mine = found["plain"], found[condition]
    return {
        "p50": mine["beside_p50"] / alone["alone_p50"],
        "p99": mine["beside_p99"] / alone["alone_p99"],
        "log_p50": mine["log"]["beside_p50"] / alone["log"]["alone_p50"],
        "log_p99": mine["log"]["beside_p99"] / alone["log"]["alone_p99"],
        "speed": mine["steps"] / found["both"]["steps"],
    }


def missed(found):
    """A line for each aim that README's way missed."""
    of, host, mine = ratios(found, "readme"), ratios(found, "elsewhere"), found["readme"]
    lines = []
    for prefix, by in (("", "its clock"), ("log_", "the device's log")):
        for name, aim in (("p50", P50), ("p99", P99)):
            ratio = of[prefix + name]
            if ratio > aim:
                lines.append(
                    f"the service's {name} by {by} is {ratio:.2f}x that of alone, aim {aim}x"
                    f" ({host[prefix + name]:.2f}x if the training has another GPU)"
                )
    if of["speed"] < SPEED:
        lines.append(f"the training has {of['speed']:.2f} of its speed when profiled, aim {SPEED}")
    lost = told.lost("history", mine["told_lost"], mine, mine["lost_by_log"])
    if lost.is_off():
        lines.append(str(lost))
    return lines


def worse_than_plain(found):
    """A line for each figure of the service that is worse in README's way than without weft.

    This is the aim on a busy host, which gives no undisturbed service to compare with.
    """
    plain, mine = found["plain"], found["readme"]
    ratios = {name: mine[f"beside_{name}"] / plain[f"beside_{name}"] for name in ("p50", "p99")}
    return [
        f"the service's {name} is {ratio:.2f}x that of sharing without weft, aim 1x"
        for name, ratio in ratios.items()
        if ratio > 1
    ]
