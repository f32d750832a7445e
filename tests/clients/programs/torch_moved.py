# SPDX-License-Identifier: MIT OR Apache-2.0
"""Steps whose results are known, because the host repeats them: fills, copies, and arithmetic on
parts of large tensors (the simulated GPU computes no arithmetic on whole large ones).

It makes the file MOVED_READY after its first step, and ends once MOVED_RUNNING is gone. The device
memory is four tensors of 8 to 32 MiB, gradients of a layer, and a captured graph.
"""

import os
from pathlib import Path

import client
import numpy
import torch

MIB = 1 << 20
PART = 64


def body():
    ready, running = Path(os.environ["MOVED_READY"]), Path(os.environ["MOVED_RUNNING"])
    torch.manual_seed(0)
    host = [numpy.arange(mib * MIB // 4, dtype=numpy.float32) for mib in (8, 12, 24, 32)]
    there = [torch.from_numpy(one).cuda() for one in host]
    layer = torch.nn.Linear(1024, 1024).cuda()
    batch = torch.ones(1024, 1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = batch * 2.0
    side = torch.cuda.Stream()
    steps = 0
    while steps == 0 or running.exists():
        layer(batch).sum().backward()
        graph.replay()
        part = slice(steps * PART % MIB, steps * PART % MIB + PART)
        there[0][part].add_(3.0)
        host[0][part] += 3.0
        half = len(host[1]) // 2
        there[1][:half].fill_(float(steps))
        host[1][:half] = steps
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.current_stream())
            copy = there[0].clone()
        torch.cuda.current_stream().wait_stream(side)
        there[2][: len(host[0])].copy_(copy)
        host[2][: len(host[0])] = host[0]
        if steps % 10 == 0:
            for one, expected in zip(there, host, strict=True):
                assert numpy.array_equal(one.cpu().numpy(), expected), steps
        steps += 1
        ready.touch()
    for one, expected in zip([*there, copy], [*host, host[0]], strict=True):
        assert numpy.array_equal(one.cpu().numpy(), expected)
    return {"steps": steps > 0, "captured": len(captured)}


client.main(body)
