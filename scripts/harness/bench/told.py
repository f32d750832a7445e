# SPDX-License-Identifier: MIT OR Apache-2.0
"""Compares weft's figures of jobs with the real ones: one kind of background job at a time, by
every view.

The device's log gives the real GPU time, `won` and `filled`; the service's own clock gives the real
`lost`. The views are `weft status --json`, `weft top --json`, `weft history --json`, `weft
metrics`, and the page of `weft report`.
"""

import json
import re
import time
from dataclasses import dataclass

from .. import jobs
from . import beside

MIXED = {64: 40_000, 96: 400_000}
TINY = {64: 2_000, 96: 4_500, 128: 7_000}
LONG = {64: 2_000_000}

# Waits of a training that is profiled: two seconds at most.
PROFILED_WAITS = "40"

# Largest error of a figure, as a part of it, unless weft itself gives wider bounds. That of `lost`
# is a part of the service's time.
PART, POINTS = 0.10, 0.02


@dataclass
class Kind:
    """Background jobs that run with the service.

    `steps`: for each job its step, and the number of steps between two waits.
    """

    widths: dict
    steps: list
    mode: str = None
    profiled: bool = False
    service_profiled: bool = True


MIXED_STEP, TINY_STEP = ("64 64 64 96 96", 40), ("64 96 128", 300)
# Like PyTorch's launches: the device waits for the host.
SLOW_HOST_STEP = ("host 64 host 96 host 128", 50)
GRAPH_STEP = ("graph 64 64 64 96 96", 20)
KINDS = {
    "2 to 7 us": Kind(TINY, [TINY_STEP]),
    "2 to 7 us, slow host": Kind(TINY, [SLOW_HOST_STEP]),
    "2 to 7 us, slow host, profiled": Kind(TINY, [SLOW_HOST_STEP], profiled=True),
    "40 and 400 us": Kind(MIXED, [MIXED_STEP]),
    "40 and 400 us, profiled": Kind(MIXED, [MIXED_STEP], profiled=True),
    "2 ms": Kind(LONG, [("64", 20)]),
    "a graph": Kind(MIXED, [GRAPH_STEP]),
    "40 and 400 us, MPS": Kind(MIXED, [MIXED_STEP], mode="mps"),
    "2 to 7 us, MPS, profiled": Kind(TINY, [TINY_STEP], mode="mps", profiled=True),
    "copies": Kind({64: 100_000}, [("copy 64 copy 64", 30)]),
    "two jobs": Kind({**MIXED, 128: 5_000}, [MIXED_STEP, ("128 128 128", 300)]),
    "40 and 400 us, service without a profile": Kind(MIXED, [MIXED_STEP], service_profiled=False),
}


@dataclass
class Figure:
    """One figure of one job: the value in a view, and the real value."""

    job: str
    what: str
    view: str
    told: float
    real: float
    # Largest difference between `told` and `real`.
    within: float

    def is_off(self, more=0):
        return self.told is None or abs(self.told - self.real) > self.within + more

    def __str__(self):
        told, real, within = map(self.word, (self.told, self.real, self.within))
        return f"{self.job}: {self.what} by {self.view}: told {told}, was {real} within {within}"

    def word(self, value):
        if value is None:
            return "nothing"
        return f"{value * 100:.1f} %" if self.what == "lost" else f"{value / 1e6:.1f} ms"


def words(kind, at):
    """The training's command, and its environment."""
    run = beside.command("run", "train.py")
    step, every = kind.steps[at]
    return beside.profiled(run, f"training{at}") if kind.profiled else run, {
        "STEP": step,
        "EVERY": str(every),
    }


def learn_service(folder):
    """The folder of a profile of the service, taken with README's command."""
    profiles = folder / "profiles"
    with beside.Play(folder / "learn", {}, profiles=profiles) as play:
        play.begin("service", beside.command("profile", "serve.py"))
        play.finish("service")
    return profiles


def learn_trainings(folder, kind, profiles):
    """Takes profiles of the trainings, if the kind has them."""
    with beside.Play(folder / "learn", kind.widths, mode=kind.mode, profiles=profiles) as play:
        for at in range(len(kind.steps) if kind.profiled else 0):
            name, (command, given) = f"training{at}", words(kind, at)
            command = ["weft", "profile", "--name", name, "--", *beside.without_weft(command)]
            play.begin(name, command, TURNS=PROFILED_WAITS, **given)
            play.finish(name)


def play(folder, kind, *, alone, together):
    """Runs a kind: `alone` seconds of the service, then `together` seconds of all jobs.

    `folder` has the profiles of `learn_service`.

    Returns the figures, and a dict of the service's loss by each account.
    """
    profiles = folder / "profiles"
    learn_trainings(folder, kind, profiles)
    names = [f"training{at}" for at in range(len(kind.steps))]
    with beside.Play(
        folder / "play", kind.widths, mode=kind.mode, profiles=profiles, trace=True
    ) as stage:
        serve = beside.command("run", "serve.py")
        if not kind.service_profiled:
            at = serve.index("--profile")
            serve = [*serve[:at], *serve[at + 2 :]]
        service = stage.start("service", serve, LINGER="1")
        time.sleep(alone)
        for at, name in enumerate(names):
            command, given = words(kind, at)
            stage.begin(name, command, LINGER="1", **given)
        for name in names:
            stage.ready(name)
        time.sleep(together)
        # They stop their work, first the background jobs, and stay: all figures are final then.
        for name in (*names, "service"):
            stage.jobs[name].process.terminate()
            written = stage.folder / f"{name}.times"
            if not jobs.wait_until(written.exists, beside.BOUND):
                raise RuntimeError(f"{name} did not end its work\n{stage.jobs[name].explain()}")
        pids = {"service": service.pid, **{name: stage.jobs[name].pid for name in names}}
        views = settled(stage, pids)
        stage.end(*names, "service")
        views["history"] = {
            pid: flat(outcome) for pid, outcome in stage.outcomes(pids.values()).items()
        }
        page = stage.folder / "report.html"
        stage.weft("report", "--last", "1h", "--trace", stage.trace, "-o", page)
        views["report"] = of_page(page.read_text())
        filled = filled_of_page(page.read_text())
        times = {name: stage.times(name) for name in pids}
        log = stage.log()
    return judge(log, pids, times, views, filled)


def settled(stage, pids, bound=10.0):
    """The figures of `status`, `top` and `metrics`, once they no longer change.

    The broker adds them up each second.
    """
    seen = None
    end = time.monotonic() + bound
    while True:
        rows = json.loads(stage.weft("status", "--json"))["clients"]
        now = {row["pid"]: flat(row["outcome"]) for row in rows if row["pid"] in pids.values()}
        if now == seen or time.monotonic() > end:
            break
        seen = now
        time.sleep(1.2)
    top = json.loads(stage.weft("top", "--json", "--once"))
    return {
        "status": now,
        "top": {row["pid"]: flat(row["outcome"]) for row in top["jobs"]},
        "metrics": of_metrics(stage.weft("metrics")),
    }


def flat(outcome):
    """The figures of an outcome that are judged."""
    outcome = outcome or {}
    lost, won = outcome.get("lost") or {}, outcome.get("won") or {}
    return {
        "gpu": outcome.get("gpu_ns"),
        "gpu_least": outcome.get("gpu_least_ns"),
        "gpu_most": outcome.get("gpu_most_ns"),
        "lost_ns": lost.get("ns"),
        "lost": lost.get("part"),
        "won": won.get("over_exclusive_ns"),
        "cost_ns": (outcome.get("cost") or {}).get("ns"),
    }


SERIES = {
    "weft_job_gpu_seconds_total": "gpu",
    "weft_job_won_gpu_seconds_total": "won",
    "weft_job_lateness_seconds_total": "lost_ns",
    "weft_job_lateness_caused_seconds_total": "cost_ns",
}


def of_metrics(text):
    found = {}
    for name, labels, value in re.findall(r"^(\w+)\{(.*)\} (\S+)", text, re.MULTILINE):
        if name in SERIES:
            pid = int(re.search(r'pid="(\d+)"', labels)[1])
            found.setdefault(pid, {})[SERIES[name]] = float(value) * 1e9
    return found


OF_PAGE = {"gpu-ns": "gpu", "lost-ns": "lost_ns", "won-ns": "won", "cost-ns": "cost_ns"}


def of_page(text):
    """The figures in the rows of jobs."""
    found = {}
    for row in re.findall(r"<[^>]*data-pid=[^>]*>", text):
        carried = dict(re.findall(r'data-([\w-]+)="([^"]*)"', row))
        figures = {
            OF_PAGE[name]: float(value)
            for name, value in carried.items()
            if name in OF_PAGE and value
        }
        found.setdefault(int(carried["pid"]), figures)
    return found


UNITS = {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9}


def filled_of_page(text):
    """Filled gap time on the page, ns, or None."""
    found = re.search(
        r"filled by background launches.*?</td><td[^>]*>([\d.]+)\s*([^\d<]+)</td>", text
    )
    return float(found[1]) * UNITS[found[2].strip()] if found else None


def judge(log, pids, times, views, filled):
    service, others = pids["service"], [pid for name, pid in pids.items() if name != "service"]
    trainings = [times[name] for name in pids if name != "service"]
    clock = beside.by_clock(times["service"], trainings)
    spans = log.requests(service)
    inside = sum(each["inside"] for each in (beside.one(log, others, *span) for span in spans))
    by_log = beside.lost_by_log(log, service, others)
    figures, errors = [], []
    for name, pid in pids.items():
        real = log.busy(pid)
        within = max(PART * real, *own_error(views["history"].get(pid, {})))
        errors.append(within if name != "service" else 0)
        for view, told in views.items():
            told = told.get(pid, {})
            figures.append(Figure(name, "GPU time", view, told.get("gpu"), real, within))
            if name != "service":
                figures.append(Figure(name, "won", view, told.get("won"), real, within))
            elif view not in ("metrics", "report"):
                figures.append(lost(view, told.get("lost"), clock, by_log))
    real = sum(map(log.busy, others)) - inside
    figures.append(Figure("all", "filled", "report", filled, real, max(PART * real, sum(errors))))
    figures += agreement(pids, views)
    beside_them = {
        "lost by clock": clock["lost"],
        "its error": clock["lost_error"],
        "lost by log": by_log,
        "lost told": views["history"].get(service, {}).get("lost"),
    }
    return figures, beside_them


def own_error(outcome):
    """The distances of a job's GPU time from the bounds that weft gives it."""
    figures = [outcome.get(name) or 0 for name in ("gpu", "gpu_least", "gpu_most")]
    told, least, most = figures
    return told - least, most - told


def lost(view, told, clock, by_log):
    """`lost`, judged by the service's clock with the scatter of two of its means, and by the log.

    On a busy host the clock also counts time in which the service had no core. So every value
    between the two accounts is right.
    """
    scatter = 2 * clock["lost_error"]
    least = min(clock["lost"] - scatter, by_log) - POINTS
    most = max(clock["lost"] + scatter, by_log) + POINTS
    return Figure("service", "lost", view, told, (least + most) / 2, (most - least) / 2)


def agreement(pids, views):
    """The figures of each job in each view once the job is done, against `history`."""
    figures = []
    for name, pid in pids.items():
        final = views["history"].get(pid, {})
        for view, told in views.items():
            for what, value in told.get(pid, {}).items():
                is_counter = view == "metrics" and what in ("lost_ns", "cost_ns")
                real = final.get(what)
                if real is None or value is None or is_counter:
                    # A counter never decreases, though its figure may.
                    continue
                figures.append(
                    Figure(
                        name, f"{what} as history has it", view, value, real, 1e6 + 0.01 * abs(real)
                    )
                )
    return figures
