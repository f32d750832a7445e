# SPDX-License-Identifier: MIT OR Apache-2.0
"""PyTorch on two devices: fills, copies between them, steps of training on the second, an event of
one waited for on the other. Prints one line of JSON."""

import json
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts" / "workloads"))

from ending import settle  # noqa: E402

count = torch.cuda.device_count()
filled = [torch.full((8,), 3.0 + device, device=f"cuda:{device}") for device in range(count)]
across = filled[-1].to("cuda:0").cpu().tolist()
model = torch.nn.Linear(64, 10).to("cuda:1")
for _ in range(3):
    model(torch.randn(32, 64, device="cuda:1")).sum().backward()
    # As SGD: to make an optimizer imports torch.compile: as long as PyTorch.
    with torch.no_grad():
        for weight in model.parameters():
            weight.sub_(weight.grad, alpha=0.1)
    model.zero_grad()
with torch.cuda.device(1):
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(side):
        torch.full((1 << 20,), 1.0, device="cuda:1")
        event.record(side)
other = torch.cuda.Stream(device=0)
other.wait_event(event)
other.synchronize()
done = event.query()
for device in range(count):
    torch.cuda.synchronize(device)
print(
    json.dumps(
        {
            "count": count,
            "values": [tensor.cpu().tolist() for tensor in filled],
            "across": across,
            "waited": done,
            "total": [torch.cuda.mem_get_info(device)[1] for device in range(count)],
            "peer": torch.cuda.can_device_access_peer(0, 1),
        }
    ),
    flush=True,
)
settle()
