# SPDX-License-Identifier: MIT OR Apache-2.0
"""The lab's prediction for two jobs that also run on the simulated GPU.

Each is recorded by itself (`weft profile --trace`). The lab plays the recordings on a device with
the same parameters, and its policies have the same profiles. So prediction and run differ only in
the effects that the lab leaves out.

Device times in a recording are taken from the device's log. The recorder's own times lie between
two events. They include the host's time between the events if the device was idle.
"""

import json
import os
import subprocess

from .. import devicelog, paths

# The lab's rule without a policy: nothing between the jobs.
PLAIN = "default"

# Seconds for one run of the lab.
PATIENCE = 540


def with_times_of(log, pid, trace, dilation=1, weft=paths.WEFT):
    """Puts the device's own times into a trace file, and divides the host's times by the device's
    dilation. Returns the number of operations that got one.
    """
    text = trace.with_suffix(".json")
    subprocess.run([weft, "trace", "export", trace, text], check=True)
    content = json.loads(text.read_text())
    records = [one for one in devicelog.read(log) if one["pid"] == pid]
    changed = exact(content, records)
    divide_host_times(content, dilation)
    text.write_text(json.dumps(content))
    subprocess.run([weft, "trace", "import", text, trace], check=True)
    text.unlink()
    return changed


def divide_host_times(content, dilation):
    """Divides the times of the trace's host by a factor."""
    content["launch_cost"] = round(content["launch_cost"] / dilation)
    for step in content["steps"]:
        step["think"] = round(step["think"] / dilation)
        for operation in step["operations"]:
            operation["host_before"] = round(operation["host_before"] / dilation)


def exact(content, records):
    """Does the same for the trace's content and the log's lines of its process."""
    symbols = [kernel["id"]["symbol"] for kernel in content["kernels"]]
    launches, copies = [], []
    for operation in (one for step in content["steps"] for one in step["operations"]):
        if "Launch" in operation["call"]:
            launches.append(operation["call"]["Launch"])
        elif "Copy" in operation["call"]:
            copies.append(operation["call"]["Copy"])
    records = sorted(records, key=lambda record: record["seq"])
    ran = [record for record in records if record["op"] == "kernel"]
    moved = [record for record in records if record["op"] in ("copy", "memset")]
    # The trace has the last steps of the job.
    for called, done, agree in (
        (launches, ran, lambda call, record: symbols[call["kernel"]] == record["name"]),
        (copies, moved, lambda call, record: call["bytes"] == record["bytes"]),
    ):
        done = done[len(done) - len(called) :]
        if len(done) != len(called) or not all(map(agree, called, done)):
            raise RuntimeError("the recording and the device's log have different operations")
        for call, record in zip(called, done):
            call["duration"] = record["end"] - record["t"]
    return len(launches) + len(copies)


def scenario(name, mode, dilation, policies, requests, warmup, jobs):
    """The lab's scenario file. `jobs`: the keys of each, the service first."""
    spins = (os.cpu_count() or 1) > 2
    lines = [
        f"name = {json.dumps(name)}",
        f"policies = {json.dumps([PLAIN, *policies])}",
        f"requests = {requests}",
        f"warmup = {warmup}",
        "[device]",
        f"mode = {json.dumps({'timeslice': 'time-sliced'}.get(mode, mode))}",
        f"dilation = {dilation}",
        "[host]",
        f"spin = {json.dumps(spins)}",
    ]
    # A gate does not spin on few cores (interposer/src/client/settings.rs).
    lines += [] if spins else ["gate_spin_us = 0"]
    for job in jobs:
        lines += ["[[job]]", *(f"{key} = {value}" for key, value in job.items())]
        # The recorded steps already vary as the job's steps do.
        lines += ["device_jitter = 0.0", "host_jitter = 0.0"]
    return "\n".join(lines) + "\n"


def play(file, dilation):
    """The lab's figures for a scenario: by run, times in ms of device time; batch work relative to
    alone.
    """
    program = paths.BUILT / "weft-lab"
    results = file.with_suffix(".json")
    command = [program, "--scenario", file, "--json", results]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the lab ended with {done.returncode}\n{done.stderr}")
    figures = json.loads(results.read_text())["rows"]
    unfinished = [one["rule"] for one in figures if not one["finished"]]
    if unfinished:
        raise RuntimeError(f"the lab did not end its requests under {' and '.join(unfinished)}")

    def told(latency, batch):
        times = {key: latency[key] / dilation / 1e6 for key in ("mean", "p50", "p99")}
        return {**{f"{key}_ms": time for key, time in times.items()}, "batch": batch}

    found = {"alone": told(figures[0]["alone"], 1.0)}
    for one in figures:
        name = "shared" if one["rule"] == PLAIN else one["rule"]
        found[name] = told(one["latency"], one["batch_sum"])
    found["bound"] = figures[0]["bound"]
    return found
