"""Training that fills a good part of the device: few kernels, large weights, Adam's two moments.

The number of layers is MEMORY_LAYERS (each 256 MiB in all: weights, gradients, moments), the number of steps MEMORY_STEPS."""

import os
import time

import client
import torch
from torch import nn

WIDTH = 4096


def body():
    layers, steps = int(os.environ.get("MEMORY_LAYERS", "3")), int(os.environ.get("MEMORY_STEPS", "20"))
    torch.manual_seed(0)
    # Made on the device: the host would need longer for its random numbers than the device for the training.
    with torch.device("cuda"):
        net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    batch = torch.randn(64, WIDTH)
    times = []
    for _ in range(steps):
        begin = time.monotonic()
        optimizer.zero_grad(set_to_none=False)
        loss = net(batch.cuda()).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()
        times.append(time.monotonic() - begin)
    torch.cuda.synchronize()
    client.kept("weights", list(net.parameters()))
    # Not part of the result, which must be the same in every run.
    if os.environ.get("MEMORY_TIMES"):
        with open(os.environ["MEMORY_TIMES"], "w", encoding="utf-8") as file:
            file.write("\n".join(f"{seconds:.6f}" for seconds in times))
    return {"steps": steps, "peak": torch.cuda.max_memory_allocated() >= layers * 4 * WIDTH * WIDTH * 4}


client.main(body)
