# SPDX-License-Identifier: MIT OR Apache-2.0
"""Streams of several priorities, ordered by events, and a graph that is captured on one of them.

It reports the priorities that the driver returns. With the argument `own` there is one stream of
the driver's greatest priority: PyTorch itself offers less.
"""

import sys

import client
import torch
from cuda.bindings import driver

GREATEST = -5


def body():
    a = torch.zeros(1 << 12, dtype=torch.int32, device="cuda")
    streams = []
    if "own" in sys.argv:
        error, handle = driver.cuStreamCreateWithPriority(1, GREATEST)
        assert error == driver.CUresult.CUDA_SUCCESS, error
        streams.append(torch.cuda.ExternalStream(int(handle)))
    # As NCCL's and a user's own next to the default stream.
    wanted = [-3, -1, 0]
    streams += [torch.cuda.Stream(priority=priority) for priority in wanted]
    heard = [stream.priority for stream in streams]
    assert heard[-3:] == wanted, heard
    for turn in range(8):
        for number, stream in enumerate(streams):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                a.fill_(turn * 8 + number)
            torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=streams[0]):
        a.fill_(77)
    before = a[0].item()
    graph.replay()
    torch.cuda.synchronize()
    client.kept("filled", a)
    return {"range": torch.cuda.Stream.priority_range(), "heard": heard, "before": before, "after": a[0].item(), "still": [stream.priority for stream in streams]}


client.main(body)
