# SPDX-License-Identifier: MIT OR Apache-2.0
"""cuDNN convolutions, batch norm and pooling, forward and backward; a chain of convolutions, each
of which needs the one before.
"""

import client
import torch
from torch import nn


def body():
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.AdaptiveAvgPool2d(1)
    ).cuda()
    x = torch.randn(8, 3, 32, 32).cuda()
    for _ in range(5):
        y = net(x)
        y.sum().backward()
    torch.cuda.synchronize()
    assert y.shape == (8, 32, 1, 1)
    assert all(p.grad is not None for p in net.parameters())
    client.kept("forward", y)
    client.kept("gradients", [p.grad for p in net.parameters()])
    half = net.half().eval()
    with torch.no_grad():
        assert half(x.half()).dtype == torch.float16
        client.kept("chain", chain())
    torch.cuda.synchronize()


def chain(steps=30):
    x = torch.randn(4, 16, 32, 32, device="cuda", dtype=torch.float16)
    weights = torch.randn(16, 16, 3, 3, device="cuda", dtype=torch.float16) / 12
    for _ in range(steps):
        x = torch.tanh(nn.functional.conv2d(x, weights, padding=1))
    return x


if __name__ == "__main__":
    client.main(body)
