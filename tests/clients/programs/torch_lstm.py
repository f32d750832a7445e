# SPDX-License-Identifier: MIT OR Apache-2.0
"""A recurrent network by cuDNN."""

import client
import torch
from torch import nn


def body():
    net = nn.LSTM(32, 48, num_layers=2, batch_first=True).cuda()
    x = torch.randn(4, 20, 32).cuda()
    for _ in range(3):
        out, (hidden, _) = net(x)
        out.sum().backward()
    torch.cuda.synchronize()
    client.kept("lstm", [out, hidden])
    client.kept("gradients", [p.grad for p in net.parameters()])
    assert out.shape == (4, 20, 48) and hidden.shape == (2, 4, 48)


if __name__ == "__main__":
    client.main(body)
