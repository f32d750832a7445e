# SPDX-License-Identifier: MIT OR Apache-2.0
"""The rows of docs/benchmarks.md that a benchmark's figures give (scripts/benchmarks)."""

from collections.abc import Callable
from dataclasses import dataclass

from . import readme, told


@dataclass(frozen=True)
class Row:
    """A promise, the figure as text, the aim as text, and whether it is met (None: no aim)."""

    promise: str
    value: str
    aim: str
    met: bool | None


@dataclass(frozen=True)
class Recording:
    """A benchmark: its command without `--json`, the kept file, the folders whose code counts."""

    command: str
    file: str
    on: str
    of: tuple
    rows: Callable


# The aims of `scripts/bench launch`: ns added to a launch of the bare driver, by configuration.
LAUNCH_AIMS_NS = {
    "attached alone": 30.0,
    "foreground job, a background job waits": 60.0,
    "background job within its credit": 100.0,
}
# The aims of `scripts/demo`: the part of the service's loss that is won back, and the training's
# part of the time that is left.
WIN_BACK, TRAINING_SHARE = 0.8, 0.88
# The aims of `scripts/bench evict`: seconds beyond the link's time until the first request of a
# service for which memory moves, that of a model server whose memory left relative to the link's
# time, and microseconds that an allocation of movable memory takes more.
ROOM_AIM_S, WAKE_AIM, TAKEN_AIM_US = 1.0, 1.25, 10.0
NODE = ("broker/daemon", "broker/gate", "broker/protocol", "broker/scheduler", "interposer", "profiles")


def launch(found):
    """Nanoseconds that weft adds to a launch."""
    for name, aim in LAUNCH_AIMS_NS.items():
        burst, sync = (found["figures"][name][way]["added"] for way in ("burst", "sync"))
        value = f"+{burst:.0f} ns in a burst, +{sync:.0f} ns with a wait after each"
        yield Row(f"A launch costs little more: {name}", value, f"+{aim:.0f} ns", max(burst, sync) <= aim)


def readme_way(found):
    """README's commands: the service's latency, the training's speed, what weft reports as lost."""
    cases = [row["conditions"] for row in found["figures"] if row["conditions"]]
    whole = len(cases) == len(found["figures"])
    ratios = [readme.ratios(case, "readme") for case in cases]
    n = len(found["figures"])

    def worst(name):
        return max(ratio[name] for ratio in ratios)

    def within(name, aim):
        return sum(ratio[name] <= aim for ratio in ratios)

    p50 = f"worst of {n} cases {worst('p50'):.2f}x, by the device's log {worst('log_p50'):.2f}x"
    met = whole and max(worst("p50"), worst("log_p50")) <= readme.P50
    yield Row("README's commands keep the service's p50", p50, f"{readme.P50}x", met)
    clock, log = within("p99", readme.P99), within("log_p99", readme.P99)
    p99 = f"{clock} of {n} cases, worst {worst('p99'):.2f}x; by the device's log {log}, {worst('log_p99'):.2f}x"
    hosts = [readme.ratios(case, "elsewhere") for case in cases if "elsewhere" in case]
    if hosts:
        calm = sum(ratio["p99"] <= readme.P99 for ratio in hosts)
        p99 += f"; if the training has another GPU {calm}, {max(ratio['p99'] for ratio in hosts):.2f}x"
    yield Row("... and its p99", p99, f"{readme.P99}x in all", clock == log == n)
    fast = sum(ratio["speed"] >= readme.SPEED for ratio in ratios)
    least = min(ratio["speed"] for ratio in ratios)
    speed = f"{fast} of {n} cases, least {least:.2f}"
    yield Row("... the training without a profile is as fast as with one", speed, f"{readme.SPEED} in all", fast == n)
    mine = [case["readme"] for case in cases]
    near, by_log = (
        sum(abs(case["told_lost"] - case[name]) <= 0.02 for case in mine)
        for name in ("lost", "lost_by_log")
    )
    unsure = sum(not told.lost("history", case["told_lost"], case, case["lost_by_log"]).is_off() for case in mine)
    value = f"{near} of {n} cases, by the device's log {by_log}; within what the clock is unsure of {unsure}"
    yield Row("... the reported loss is the service's own", value, "2 points in all", near == n)


def demo(found):
    """The demo: the default policy and the GPU's own sharing."""
    phases, back = found["phases"], found["win_back"]["weft"]
    alone = phases["alone"]

    def of(phase, name):
        return f"{phases[phase][name] / alone[name]:.2f}x"

    value = f"p50 {of('weft', 'p50_ms')}, p99 {of('weft', 'p99_ms')}; without weft {of('shared', 'p50_ms')}, {of('shared', 'p99_ms')}"
    met = all(each["ratio"] >= WIN_BACK for each in back.values())
    yield Row("A PyTorch service next to a training keeps its latency", value, f"{WIN_BACK} of the loss won back", met)
    share = phases["weft"]["training_share_of_left"]
    yield Row("... the training gets the time that is left", f"{share:.2f}", str(TRAINING_SHARE), share >= TRAINING_SHARE)


def evict(found):
    """Movable memory: first requests, and the cost of an allocation."""
    more = {mib: words["taken_us"]["more"] for mib, words in found["taken"].items()}
    promise = "Memory moves for a service, and for that of an idle model server: their first requests; an allocation of movable memory"
    took = " and ".join(f"{us:+.0f} us ({mib} MiB)" for mib, us in more.items())
    value = f"{found['beyond_s']:+.2f} s beyond the link's time; {found['ratio']:.2f}x of it; {took}"
    yield Row(promise, value, f"+{ROOM_AIM_S:g} s; {WAKE_AIM}x; +{TAKEN_AIM_US:.0f} us", not found["missed"])


def admission(found):
    """Waits for device memory in ten mixes of jobs."""
    aims = found["aims"]
    met = sum(aim["met"] for aim in aims)
    yield Row("Admission to memory meets its aims in ten mixes of jobs", f"{met} of {len(aims)}", "all", met == len(aims))
    ours = [row for row in found["rows"] if row["rule"] == "weft"]
    lost = sum(row["oom_by_neighbours"] for row in ours)
    yield Row("... no job is out of memory because of a neighbour", str(lost), "0", lost == 0)


def measured(found):
    """Traces of real GPUs: a service and a training of one GPU generation each."""
    for device, name in (("mps", "MPS"), ("time-sliced", "time-sliced")):
        values, limits, met = [], [], True
        for arrivals in ("closed", "random"):
            group = f"{device} measured and distributed, {arrivals}: "
            three = [aim for aim in found["aims"] if aim["aim"].startswith(group) and aim["held"][1]]
            if not three:
                continue
            mean, p99, batch = (float(aim["said"][0].split()[0]) for aim in three)
            of = "of the bound" if "of the bound" in three[2]["aim"] else "of alone"
            values.append(f"{arrivals}: mean {mean:.3f}x, p99 {p99:.3f}x, batch {batch:.2f} {of}")
            limits.append(", ".join(aim["aim"].split()[-1] for aim in three))
            met &= all(aim["met"] for aim in three)
        promise = f"Traces of real GPUs, {name}: a service keeps its latency, batch work is done"
        if values:
            yield Row(promise, "; ".join(values), "; ".join(limits), met)


ADMISSION = ("broker/admission", "tests/lab/src/admission")
LAB = ("broker/gate", "broker/scheduler", "tests/lab", "engine/device", "engine/player")
RECORDINGS = {
    "launch": Recording("scripts/bench launch --rounds 301 --check", "10-launch.json", "null driver", NODE, launch),
    "readme": Recording("scripts/bench readme --check", "00-readme.json", "simulated GPU", NODE, readme_way),
    "demo": Recording("scripts/demo --check", "05-demo.json", "simulated GPU, PyTorch", NODE, demo),
    "measured": Recording(
        "scripts/lab measured --kind measured --kind distributed --device mps --rule weft --requests 120 --seeds 1 --check",
        "19-measured.json",
        "virtual time, 9 services and 7 trainings, measured kernel times",
        LAB,
        measured,
    ),
    "evict": Recording("scripts/bench evict --check", "42-evict.json", "simulated GPU", (*NODE, "broker/admission"), evict),
    "admission": Recording("scripts/lab admission --check", "50-admission.json", "virtual time", ADMISSION, admission),
}
