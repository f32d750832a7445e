# SPDX-License-Identifier: MIT OR Apache-2.0
"""A training job: steps until SIGTERM, with a read of the result now and then.

    python train.py

A step's launches are the words of STEP. A width is a kernel of that block. `copy` is a copy of a
batch to the device. `host` is host work, as PyTorch does before a launch. `graph` makes one graph
of all following words. After EVERY steps it waits for the device, like a training job that prints
its loss.
"""

import os

import gpu

STEP = os.environ.get("STEP", "64").split()
EVERY = int(os.environ.get("EVERY", "100"))
# Number of waits until it ends by itself; 0: it does not.
TURNS = int(os.environ.get("TURNS", "0"))
BATCH_BYTES = 4 << 20
HOST_NS = 10_000


def host():
    """Works on the host."""
    end = gpu.now() + HOST_NS
    while gpu.now() < end:
        pass


def calls(device, words):
    """The calls of a step, in their order."""
    if "graph" in words:
        at = words.index("graph")
        return [*calls(device, words[:at]), device.graph_of(calls(device, words[at + 1 :]))]
    return [one(device, word) for word in words]


def one(device, word):
    if word == "host":
        return host
    return device.copy_of(BATCH_BYTES) if word == "copy" else device.kernel_of(int(word))


def main():
    device = gpu.Gpu()
    step = calls(device, STEP)
    until, times, steps = gpu.Until(TURNS), [(gpu.now(), 0)], 0
    while until.goes_on():
        for _ in range(EVERY):
            for call in step:
                call()
        device.finish()
        steps += EVERY
        times.append((gpu.now(), steps))
        if len(times) == 2:
            gpu.tell(times, so_far=True)
    gpu.tell(times)
    until.linger()
    print("steps", steps)


main()
