# SPDX-License-Identifier: MIT OR Apache-2.0
"""CUDA graphs: capture over two streams, replay, and a graphed training step."""

import client
import torch
from torch import nn


def body():
    static = torch.zeros(64, 64, device="cuda")
    net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(5)]).cuda()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            net(static)
    torch.cuda.current_stream().wait_stream(side)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        main = torch.cuda.current_stream()
        other = torch.cuda.Stream()
        assert torch.cuda.is_current_stream_capturing()
        half = net(static)
        other.wait_stream(main)
        with torch.cuda.stream(other):
            branch = static * 2
        kept = half + 1
        main.wait_stream(other)
        out = kept + branch
    assert not torch.cuda.is_current_stream_capturing()
    for step in range(20):
        static.copy_(torch.full((64, 64), float(step)))
        graph.replay()
    torch.cuda.synchronize()
    assert out.shape == (64, 64)
    client.kept("replayed", out)

    # Two graphs that share one pool, replayed in turn.
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=graph.pool()), torch.no_grad():
        out.relu_()
    for _ in range(5):
        graph.replay()
        second.replay()
    torch.cuda.synchronize()

    graphed = torch.cuda.make_graphed_callables(nn.Linear(64, 64).cuda(), (torch.randn(8, 64, device="cuda"),))
    for _ in range(3):
        graphed(torch.randn(8, 64, device="cuda")).sum().backward()
    torch.cuda.synchronize()
    client.kept("gradients", [p.grad for p in graphed.parameters()])


if __name__ == "__main__":
    client.main(body)
