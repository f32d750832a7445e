# SPDX-License-Identifier: MIT OR Apache-2.0
"""torch.compile: Inductor makes Triton kernels; also with CUDA graphs inside."""

import client
import torch
from torch import nn


def body():
    net = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 64)).cuda()
    compiled = torch.compile(net)
    x = torch.randn(32, 64).cuda()
    for _ in range(3):
        compiled(x).sum().backward()
    graphed = torch.compile(net, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            y = graphed(x)
    torch.cuda.synchronize()
    client.kept("graphed", y)
    client.kept("gradients", [p.grad for p in net.parameters()])
    assert y.shape == (32, 64)


client.main(body)
