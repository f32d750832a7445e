# SPDX-License-Identifier: MIT OR Apache-2.0
"""PyTorch as `device_map="auto"` uses it: asks for the free memory of each device, lays a model's
layers on the first until its part is full and the rest on the second, runs it, and takes more than
there is; then `DataParallel`. Prints one line of JSON."""

import json
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts" / "workloads"))

from ending import settle  # noqa: E402

free = [torch.cuda.mem_get_info(device)[0] for device in range(torch.cuda.device_count())]
# Layers of 512 MiB, four of which the first device is to have.
layers = [torch.nn.Linear(16384, 8192, bias=False, device=f"cuda:{0 if layer < 4 else 1}") for layer in range(6)]
place = [str(layer.weight.device) for layer in layers]
x = torch.randn(4, 16384, device="cuda:0")
for layer in layers:
    y = layer(x.to(layer.weight.device))
    x = torch.cat([y, y], dim=1)
torch.cuda.synchronize(1)
refused, after = [], []
for device in range(2):
    try:
        more = torch.empty(3 << 30, dtype=torch.uint8, device=f"cuda:{device}")
        refused.append(False)
    except torch.cuda.OutOfMemoryError:
        refused.append(True)
    # In either case, the device works on.
    kept = torch.ones(1 << 20, device=f"cuda:{device}")
    torch.cuda.synchronize(device)
    after.append(kept.device.index == device)
# Each device's part of a batch in a thread of its own.
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)).to("cuda:0")
both = torch.nn.DataParallel(model, device_ids=[0, 1])
for _ in range(3):
    out = both(torch.randn(64, 256, device="cuda:0"))
    out.sum().backward()
    # As SGD: to make an optimizer imports torch.compile: as long as PyTorch.
    with torch.no_grad():
        for weight in model.parameters():
            weight.sub_(weight.grad, alpha=0.1)
    model.zero_grad()
for device in range(2):
    torch.cuda.synchronize(device)
print(json.dumps({"free": free, "layers": place, "refused": refused, "after": after, "parallel": list(out.shape)}), flush=True)
settle()
