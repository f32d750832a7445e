# SPDX-License-Identifier: MIT OR Apache-2.0
"""A service attaches while a batch job runs: the batch kernels that its first request meets on the
device.

The clients are the replay's (tests/cluster/replayed.py). No time is judged: what counts is how many
of the batch job's kernels were launched while the request was on the device.
"""

import sys

from fixtures import slurm_replay
from harness import devicelog

# Long enough for a launching thread that has lost its core.
DILATION = 10
# Seconds: between the batch job's bursts, and before the service's request.
NO_GAP_S, GAP_S = 0.0, 0.2
MEMORY = 1 << 20


def client(scene, kind, priority, *words):
    program = [sys.executable, "-I", "-S", slurm_replay.PROGRAM, kind, scene.folder / kind]
    given = ["--image", slurm_replay.KERNELS, "--memory", MEMORY]
    return scene.job([*program, *given, *words], kind, priority=priority)


def test_a_first_request_without_a_profile_is_left_alone(scene):
    config = scene.folder / "device.toml"
    config.write_text(slurm_replay.device_config("timeslice"))
    log = scene.folder / "device.log"
    scene.device.settings |= {
        "SIMGPU_CONFIG": str(config),
        "SIMGPU_LOG": str(log),
        "SIMGPU_DILATION": str(DILATION),
    }
    scene.broker.start()
    burst, kernels = slurm_replay.BURST_KERNELS, slurm_replay.REQUEST_KERNELS
    endless = ["--bursts", 10**6, "--kernels", burst, "--gap-s", NO_GAP_S]
    batch = client(scene, "batch", 7, *endless)
    scene.attached(batch)
    scene.progresses(batch)
    one = ["--requests", 1, "--kernels", kernels, "--gap-s", GAP_S, "--seed", 1]
    service = client(scene, "service", 2, *one)
    scene.finish(service)
    # The batch job continues once the service's request is over: its loss is not permanent.
    scene.progresses(batch)
    # The device writes its log out when it is asked for its status.
    scene.device.status()
    done = [each for each in devicelog.read(log) if each["op"] == "kernel"]
    request = [each for each in done if each["pid"] == service.pid]
    assert len(request) == kernels
    begin, end = min(each["submitted"] for each in request), max(each["end"] for each in request)
    inside = sum(each["pid"] == batch.pid and begin < each["submitted"] < end for each in done)
    # Two or more of its bursts, which follow each other, would find a place there.
    assert inside <= burst, f"{inside} batch kernels were launched during the request"
