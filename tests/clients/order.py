#!/usr/bin/env python3
"""Does any call overtake launches? Every stream-ordered entry point of the driver, in every role.

    tests/clients/order.py [--launches N] [ROLE...]

For each entry point: 1000 launches, then that call, against the counting driver, which says how many launches it had seen when the call
arrived. Roles: bare (no weft: the test of the test), free (weft, no broker), alone, holder, filler (its host leaves launches behind at the gate), unqueued (a filler with WEFT_QUEUE=off: its host waits there);
with a slash and a policy behind it, a role under that policy. The last line is `N passed, N failed`.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from harness import cases, jobs, paths  # noqa: E402

PROGRAM = paths.TARGET / "release" / "weft-test-order"
COMPANION = paths.TARGET / "release" / "weft-test-companion"
# The counting driver under the name it was built as: opened so, nothing is put in between.
COUNTING = (paths.TARGET / "release" / "libnullcuda.so").resolve()

# A filler waits at the gate for some of its 200,000 launches; each wait has a bound.
BOUND = 300.0

# Roles with somebody beside: (own priority, the other's priority, the other's pattern).
BESIDE = {
    "holder": (0, 5, ["--burst", "64"]),
    "filler": (5, 0, ["--burst", "4", "--pause", "2000"]),
    "unqueued": (5, 0, ["--burst", "4", "--pause", "2000"]),
}

WITH_BROKER = ("alone", *BESIDE)

# What runs where none is named. A filler three times: at which calls the gate is closed is chance.
ROLES = ["bare", "free", "alone", "holder", "unqueued", *3 * ["filler"]]

# And under the paper's policy, which has no leases.
OTHER_POLICY = ["holder/fikit", "filler/fikit", "unqueued/fikit"]


class Counting:
    """The counting driver in the place of a device."""

    def environment(self):
        return {"LD_LIBRARY_PATH": str(paths.COUNTING_CUDA.parent)}

    def weft_environment(self):
        return {"WEFT_CUDA_LIBRARY": str(paths.COUNTING_CUDA)}


def run(role, folder, launches, policy):
    device = Counting()
    broker = jobs.Broker(folder, device, policy=policy)
    base = {**jobs.clean_environment(), **device.environment()}
    own, other, pattern = BESIDE.get(role, (5, None, None))
    running = folder / "running"
    beside = None
    try:
        if role in WITH_BROKER:
            broker.start()
        if other is not None:
            running.touch()
            ready = folder / "ready"
            beside = jobs.Job(
                [COMPANION, "--while", running, "--ready", ready, *pattern],
                environment={**base, **jobs.preload(broker.variables(), priority=other)},
                folder=folder,
                name="beside",
            )
            if not jobs.wait_until(lambda: ready.exists() or not beside.running(), 30) or not beside.running():
                return "the job beside it did not start\n" + beside.explain()
        # Without a broker weft says so in a line; that is not what is tested here.
        weft = {} if role == "bare" else {**jobs.preload(broker.variables(), priority=own), "WEFT_LOG": "error"}
        if role == "unqueued":
            weft["WEFT_QUEUE"] = "off"
        # A new client is alone until the broker tells it otherwise, which takes a busy one longer than the whole test.
        go = [folder / "go"] if beside else []
        job = jobs.Job(
            [PROGRAM, COUNTING, folder / "result.json", launches, *go],
            environment={**base, **weft, "RUST_BACKTRACE": "0"},
            folder=folder,
            name="order",
        )
        if beside:
            jobs.wait_until(lambda: not job.running() or mode_of(role) in broker.modes(job.pid), 20)
            go[0].touch()
        code = job.wait(BOUND)
        if code != 0:
            return job.explain()
        result = json.loads((folder / "result.json").read_text())
        if not result["ok"] or result["tried"] < 150:
            return f"only {result['tried']} entry points were tried"
        if role in WITH_BROKER:
            return check_role(broker, job, role, result["tried"] * launches, policy)
        return None
    finally:
        running.unlink(missing_ok=True)
        if beside:
            beside.wait(20)
        broker.stop()


def mode_of(role):
    """What the broker calls it."""
    return "filler" if role == "unqueued" else role


def check_role(broker, job, role, launches, policy):
    """It was in the role it was tested for, and weft saw all of it."""
    gone = jobs.wait_until(lambda: any(e["last"]["pid"] == job.pid for e in (broker.status() or {"ended": []})["ended"]), 10)
    if not gone:
        return "the broker never saw it end"
    last = next(entry["last"] for entry in broker.status()["ended"] if entry["last"]["pid"] == job.pid)
    if last["launches"] < launches:
        return f"weft counted {last['launches']} of {launches} launches"
    mode = mode_of(role)
    if not jobs.wait_until(lambda: mode in broker.modes(job.pid), 5):
        return f"it was {broker.modes(job.pid) or 'not attached'}, never {role}"
    # Under the other policies more launches find the gate open.
    least = launches / 10 if policy in (None, "weft") else 1
    if role == "filler" and last["left_behind"] < least:
        return f"only {last['left_behind']} of {launches} launches were left behind at the gate: little was tested"
    if role == "unqueued" and not last["waits"]:
        return "it never waited at the gate: nothing was tested"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("roles", nargs="*", metavar="ROLE", help="bare, free, alone, holder, filler, unqueued, or filler/fikit and the like; default all")
    jobs.policy_option(parser)
    arguments = parser.parse_args()
    roles = arguments.roles or [*ROLES, *([] if arguments.policy else OTHER_POLICY)]
    for role in roles:
        name, _, policy = role.partition("/")
        if name not in ROLES or policy not in ("", *jobs.POLICIES):
            parser.error(f"{role} is no role: {', '.join(dict.fromkeys(ROLES))}, or one of these with / and one of {', '.join(jobs.POLICIES)}")
    return cases.play("order", [(role, one(role, arguments)) for role in roles])


def one(role, arguments):
    """The case of a role."""
    name, _, policy = role.partition("/")

    def case(folder):
        wrong = run(name, folder, arguments.launches, policy or arguments.policy)
        assert not wrong, wrong

    return case


if __name__ == "__main__":
    sys.exit(main())
