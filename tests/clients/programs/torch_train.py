# SPDX-License-Identifier: MIT OR Apache-2.0
"""Training steps with Adam: backward launches come from another thread on the same stream."""

import client
import torch
from torch import nn


def body():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 26 * 26, 10)).cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    loss_of = nn.CrossEntropyLoss()
    images, labels = torch.randn(16, 1, 28, 28), torch.randint(0, 10, (16,))
    for _ in range(10):
        optimizer.zero_grad()
        loss = loss_of(net(images.cuda()), labels.cuda())
        loss.backward()
        optimizer.step()
        loss.item()
    with torch.autocast("cuda", dtype=torch.float16):
        net(images.cuda())
    torch.cuda.synchronize()
    client.kept("weights", list(net.parameters()))


if __name__ == "__main__":
    client.main(body)
