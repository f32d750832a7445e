# SPDX-License-Identifier: MIT OR Apache-2.0
"""Training that fills a good part of the device: few kernels, large weights, Adam's two moments.

The number of layers is MEMORY_LAYERS (each 256 MiB in all: weights, gradients, moments), the number
of steps MEMORY_STEPS. MEMORY_MEETS has a number of steps and two files: the job makes the first
file after that number of steps and continues when the second one is there. So measurements of two
jobs cover both at once."""

import os
import time

import client
import torch
from torch import nn
from torch.optim.adam import adam

WIDTH = 4096


class Adam:
    """The steps of torch.optim.Adam. To make one of its class imports torch.compile, which takes
    nearly as long as PyTorch.
    """

    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.moments = self.squares = None
        self.steps = [torch.tensor(0.0) for _ in self.parameters]

    def zero_grad(self):
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()

    @torch.no_grad()
    def step(self):
        if self.moments is None:
            each = [(torch.zeros_like(one), torch.zeros_like(one)) for one in self.parameters]
            self.moments, self.squares = ([pair[i] for pair in each] for i in range(2))
        grads = [parameter.grad for parameter in self.parameters]
        settings = {"beta1": 0.9, "beta2": 0.999, "lr": 1e-3, "weight_decay": 0, "eps": 1e-8}
        settings |= {"amsgrad": False, "maximize": False}
        adam(self.parameters, grads, self.moments, self.squares, [], self.steps, **settings)


def meet(ours, theirs):
    """Waits for the other job, a minute at most."""
    with open(ours, "w", encoding="utf-8"):
        pass
    deadline = time.monotonic() + 60
    while not os.path.exists(theirs) and time.monotonic() < deadline:
        time.sleep(0.002)


def body():
    layers, steps = int(os.environ.get("MEMORY_LAYERS", "3")), int(os.environ.get("MEMORY_STEPS", "20"))
    torch.manual_seed(0)
    # Made on the device: the host would need longer for its random numbers than the device for
    # the training.
    with torch.device("cuda"):
        net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    optimizer = Adam(net.parameters())
    batch = torch.randn(64, WIDTH)
    times = []
    meets = os.environ.get("MEMORY_MEETS", "").split()
    for step in range(steps):
        if meets and step == int(meets[0]):
            meet(*meets[1:])
        begin = time.monotonic()
        optimizer.zero_grad()
        loss = net(batch.cuda()).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()
        times.append((begin, time.monotonic()))
    torch.cuda.synchronize()
    client.kept("weights", list(net.parameters()))
    # Not part of the result, which must be the same in every run.
    if os.environ.get("MEMORY_TIMES"):
        with open(os.environ["MEMORY_TIMES"], "w", encoding="utf-8") as file:
            file.write("\n".join(f"{begin:.6f} {end:.6f}" for begin, end in times))
    return {"steps": steps, "peak": torch.cuda.max_memory_allocated() >= layers * 4 * WIDTH * WIDTH * 4}


client.main(body)
