# SPDX-License-Identifier: MIT OR Apache-2.0
"""Does any call overtake launches? Every stream-ordered entry point of the driver, in every role.

  pytest tests/clients/test_order.py --launches 1000
  pytest tests/clients/test_order.py -k background job

For each entry point: 1000 launches (--launches), then that call, against the counting driver, which
counts the launches that it had seen when the call arrived. Roles:

  bare        no weft: the test of the test
  free        weft, no broker
  alone, foreground job
  background job      its host leaves launches behind at the gate
  unqueued    a background job with WEFT_QUEUE=off: its host waits there
"""

import json

import pytest
from harness import jobs, paths

PROGRAM = paths.BUILT / "weft-test-order"
COMPANION = paths.BUILT / "weft-test-companion"
# The counting driver under the name it was built as: weft does not intercept this name.
COUNTING = (paths.BUILT / "libnullcuda.so").resolve()

# A background job waits at the gate for some of its 200,000 launches; each wait has a bound.
BOUND = 300.0

# Roles with a companion job: (own priority, the other's priority, the other's pattern). In gaps of
# 2 ms a job whose times are known, as here after some launches, finds the gate open.
BESIDE = {
    "foreground": (0, 5, ["--burst", "64"]),
    "background": (5, 0, ["--burst", "4", "--pause", "500"]),
    "unqueued": (5, 0, ["--burst", "4", "--pause", "2000"]),
}

WITH_BROKER = ("alone", *BESIDE)

# Default roles. A background job three times: the calls at which the gate is closed are chance.
ROLES = ["bare", "free", "alone", "foreground", "unqueued", *3 * ["background"]]

# Runs of a background job before it counts as not tested.
TRIES = 3

# And under the paper's policy, which has no run-ahead windows.
OTHER_POLICY = ["foreground", "background", "unqueued"]


class Counting:
    """The counting driver in the place of a device."""

    dilation = 1

    def environment(self):
        return {"LD_LIBRARY_PATH": str(paths.COUNTING_CUDA.parent)}

    def weft_environment(self):
        return {"WEFT_CUDA_LIBRARY": str(paths.COUNTING_CUDA)}


@pytest.mark.parametrize("role", ROLES)
def test_no_call_overtakes_launches(role, folder, launches, policy):
    plays(role, folder, launches, policy)


@pytest.mark.parametrize("policy", ["fikit"], indirect=True)
@pytest.mark.parametrize("role", OTHER_POLICY)
def test_no_call_overtakes_launches_under(role, folder, launches, policy):
    plays(role, folder, launches, policy)


@pytest.fixture
def launches(request):
    """How many launches stand before each call."""
    return request.config.option.launches


def plays(role, folder, launches, policy):
    """Plays the job until enough of its launches were left behind. On a busy machine the gate may
    be open for most of a run, which shows nothing of the queue.
    """
    for attempt in range(TRIES):
        place = folder / str(attempt)
        place.mkdir()
        behind = played(role, place, launches, policy)
        if behind is None:
            return
    raise AssertionError(f"{TRIES} times too few launches were left behind at the gate, last {behind}: little was tested")


def played(role, folder, launches, policy):
    """Plays the job once: None if enough was tested, else the number of launches left behind."""
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
            came = jobs.wait_until(lambda: ready.exists() or not beside.running(), 30)
            assert came and beside.running(), "the job beside it did not start\n" + beside.explain()
        # Without a broker weft prints a line about it; that is not under test here.
        weft = {} if role == "bare" else {**jobs.preload(broker.variables(), priority=own), "WEFT_LOG": "error"}
        if role == "unqueued":
            weft["WEFT_QUEUE"] = "off"
        # A new client has the role `alone` until the broker changes it, which takes a busy one
        # longer than the whole test.
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
        assert code == 0, job.explain()
        result = json.loads((folder / "result.json").read_text())
        assert result["ok"] and result["tried"] >= 150, f"only {result['tried']} entry points were tried"
        if role in WITH_BROKER:
            return check_role(broker, job, role, result["tried"] * launches, policy)
        return None
    finally:
        running.unlink(missing_ok=True)
        if beside:
            beside.wait(20)
        broker.stop()


def mode_of(role):
    """The broker's name of the role."""
    return "background" if role == "unqueued" else role


def check_role(broker, job, role, launches, policy):
    """It was in the role that is tested, and weft saw all of it. Returns as [`played`]."""
    gone = jobs.wait_until(lambda: any(e["last"]["pid"] == job.pid for e in (broker.status() or {"ended": []})["ended"]), 10)
    assert gone, "the broker never saw it end"
    last = next(entry["last"] for entry in broker.status()["ended"] if entry["last"]["pid"] == job.pid)
    assert last["launches"] >= launches, f"weft counted {last['launches']} of {launches} launches"
    mode = mode_of(role)
    assert jobs.wait_until(lambda: mode in broker.modes(job.pid), 5), f"it was {broker.modes(job.pid) or 'not attached'}, never {role}"
    # The device times its kernels, and a job whose times are known runs ahead. So most launches
    # find the gate open. On average 20 of the launches before each call are left behind.
    least = launches / 50 if policy in (None, "weft") else 1
    behind = last["left_behind"]
    assert role != "unqueued" or last["waits"], "it never waited at the gate: nothing was tested"
    return behind if role == "background" and behind < least else None
