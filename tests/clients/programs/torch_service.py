# SPDX-License-Identifier: MIT OR Apache-2.0
"""A service and a training job in miniature: requests with pauses, or steps without.

They go on while a file exists.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn


def main(role, running, ready):
    torch.manual_seed(0)
    layers = int(os.environ.get("SERVICE_LAYERS", "8")) if role == "service" else 8
    net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(layers)]).cuda()
    weights = list(net.parameters())
    data = torch.randn(32, 64).cuda()
    done = 0
    pause_s = float(os.environ.get("SERVICE_PAUSE_S", "0.004"))
    while Path(running).exists():
        if role == "service":
            with torch.no_grad():
                net(data).sum().item()
            time.sleep(pause_s)
        else:
            loss = net(data).square().mean()
            # By hand: to make an optimizer imports torch.compile: as long as PyTorch.
            grads = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                torch._foreach_add_(weights, grads, alpha=-1e-3)
            if done % 10 == 0:
                loss.item()
        done += 1
        if done == 20:
            Path(ready).touch()
    torch.cuda.synchronize()
    print(done)
    sys.stdout.flush()
    return int(os.environ.get("ENDS_WITH", "0"))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
