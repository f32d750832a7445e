# SPDX-License-Identifier: MIT OR Apache-2.0
"""NCCL with one rank: its set-up looks up a hundred kernels and takes memory by the virtual memory
calls."""

import os
import socket

import client
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def body():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK="0", WORLD_SIZE="1", NCCL_SOCKET_IFNAME="lo")
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    x = torch.ones(1024, device="cuda")
    for _ in range(5):
        dist.all_reduce(x)
    net = DistributedDataParallel(nn.Linear(32, 32).cuda(), device_ids=[0])
    for _ in range(3):
        net(torch.ones(8, 32, device="cuda")).sum().backward()
    torch.cuda.synchronize()
    client.kept("reduced", x)
    assert x.shape == (1024,)
    dist.destroy_process_group()


client.main(body)
