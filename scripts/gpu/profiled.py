# SPDX-License-Identifier: MIT OR Apache-2.0
"""Launches a little of everything under torch.profiler. Counts the kernels that the profiler saw,
and those that it ties to an operator.

  profiled.py RESULT.json [--without-device]

`kernels`: work on the device of the category "kernel". `with_op`: kernels whose launch the profiler
knows and finds within an operator. `without`: names of some of the others. The profiler is on
before the first context, so that weft's count covers the same launches of this process. Without the
device the profiler sees only operators: CUPTI fails on the simulated driver, which refuses its
table.
"""

import collections
import json
import os
import sys
import tempfile

import torch
from torch.profiler import ProfilerActivity, profile

# Number of kept names of kernels without an operator.
KEPT = 8


def work():
    """Products of every width that a device has (some request Hopper's tables), convolution,
    attention, a backward step.
    """
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for size in (64, 1024):
            x = torch.randn(size, size, device="cuda", dtype=dtype)
            for _ in range(10):
                x = (x @ x).clamp(-1, 1)
    torch.backends.cuda.matmul.allow_tf32 = True
    y = torch.randn(512, 512, device="cuda")
    y = y @ y
    layer = torch.nn.Conv2d(8, 16, 3, device="cuda")
    layer(torch.randn(4, 8, 32, 32, device="cuda")).square().mean().backward()
    q = torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.float16)
    torch.nn.functional.scaled_dot_product_attention(q, q, q)
    torch.cuda.synchronize()


def events():
    """The profiler's events, as in its trace for browsers."""
    device = [] if "--without-device" in sys.argv else [ProfilerActivity.CUDA]
    with profile(activities=[ProfilerActivity.CPU, *device]) as profiler:
        work()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path, encoding="utf-8") as file:
            return json.load(file)["traceEvents"]


def main():
    found = [event for event in events() if isinstance(event.get("args"), dict)]
    ops = {event["args"].get("External id") for event in found if event.get("cat") == "cpu_op"} - {None}
    launches = {event["args"].get("correlation") for event in found if event.get("cat") in ("cuda_runtime", "cuda_driver")} - {None}
    kernels = [event for event in found if event.get("cat") == "kernel"]
    without = [event for event in kernels if event["args"].get("correlation") not in launches or event["args"].get("External id") not in ops]
    names = collections.Counter(event.get("name", "?")[:80] for event in without)
    result = {"ops": len(ops), "kernels": len(kernels), "with_op": len(kernels) - len(without), "without": dict(names.most_common(KEPT))}
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()
