# SPDX-License-Identifier: MIT OR Apache-2.0
"""Elementwise kernels, reductions, and copies whose data is checked."""

import client
import torch


def body():
    a = torch.arange(1 << 16, dtype=torch.float32)
    on_device = a.cuda()
    assert torch.equal(on_device.cpu(), a), "a copy there and back changed the data"
    assert torch.zeros(1000, device="cuda").cpu().count_nonzero() == 0
    x = on_device
    for _ in range(50):
        x = torch.relu(x * 2 + 1).exp().sqrt()
    total = x.sum()
    total.item()
    ordered, index = torch.sort(x)
    assert ordered.shape == index.shape == x.shape
    client.kept("elementwise", [x, total, ordered, index])
    return {"elements": x.numel()}


if __name__ == "__main__":
    client.main(body)
