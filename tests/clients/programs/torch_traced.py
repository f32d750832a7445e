# SPDX-License-Identifier: MIT OR Apache-2.0
"""A job that marks its steps: two streams, an event, a training step whose backward pass runs on a
thread of its own, and a CUDA graph.

tests/clients/test_trace.py records it and knows the operations of a step. STEPS steps behind two
that are not marked; after the last one nothing is launched.
"""

import client
import torch
from torch import nn

STEPS = 12


def body():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).cuda()
    images, labels = torch.rand(32, 64).pin_memory(), torch.randint(0, 10, (32,)).pin_memory()
    side, ready = torch.cuda.Stream(), torch.cuda.Event()
    static = torch.zeros(32, 64, device="cuda")

    warm = torch.cuda.Stream()
    with torch.cuda.stream(warm), torch.no_grad():
        net(static)
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        answer = net(static)

    def step():
        net.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(net(images.cuda(non_blocking=True)), labels.cuda(non_blocking=True))
        loss.backward()
        # As SGD: to make an optimizer imports torch.compile: as long as PyTorch.
        with torch.no_grad():
            for weight in net.parameters():
                weight.add_(weight.grad, alpha=-0.1)
        ready.record()
        side.wait_event(ready)
        with torch.cuda.stream(side):
            doubled = static.mul_(1.5)
        side.synchronize()
        graph.replay()
        return loss.item() if doubled is None else answer.cpu()

    for number in range(STEPS + 2):
        if number >= 2:
            torch.cuda.profiler.start()
        step()
    return {"steps": STEPS}


client.main(body)
