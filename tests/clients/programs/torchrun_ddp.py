# SPDX-License-Identifier: MIT OR Apache-2.0
"""torchrun: two ranks of one training job on one device, gradients exchanged by gloo."""

import os
import subprocess
import sys
import tempfile

import client
import torch
from torch import nn


def rank():
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).cuda(0), device_ids=[0])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        net(torch.ones(16, 64, device="cuda")).sum().backward()
        optimizer.step()
    torch.cuda.synchronize()
    dist.barrier()
    # Only rank 0 writes the number of ranks.
    if dist.get_rank() == 0:
        with open(os.environ["RANK_RESULT"], "w", encoding="utf-8") as file:
            file.write(str(dist.get_world_size()))
    dist.destroy_process_group()


def body():
    with tempfile.TemporaryDirectory() as folder:
        result = os.path.join(folder, "ranks")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__, "--rank"]
        subprocess.run(command, env={**os.environ, "RANK_RESULT": result}, check=True, timeout=150, stdout=subprocess.DEVNULL)
        with open(result, encoding="utf-8") as file:
            return {"ranks": int(file.read())}


if "--rank" in sys.argv:
    rank()
    client.settle()
else:
    client.main(body)
