# SPDX-License-Identifier: MIT OR Apache-2.0
"""A job that takes more memory than the device has and touches a part of it a step. It has
MEMORY_BLOCKS blocks of 64 MiB. Each step uses the next eight, with an overlap of four, for two
rounds. With MEMORY_BEYOND, a number of MiB, it then asks for this additional memory and expects to
be refused.
"""

import os

import client
import torch

BLOCK, STEP, ON = 64 << 20, 8, 4


def body():
    count, beyond = int(os.environ["MEMORY_BLOCKS"]), int(os.environ.get("MEMORY_BEYOND", "0"))
    free, total = torch.cuda.mem_get_info()
    blocks = [torch.empty(BLOCK // 4, device="cuda") for _ in range(count)]
    for block in blocks:
        block.fill_(1.0)
    for begin in range(0, 2 * count, ON):
        for at in range(STEP):
            blocks[(begin + at) % count].add_(1.0)
        torch.cuda.synchronize()
    refused = False
    if beyond:
        try:
            torch.empty(beyond << 20, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError:
            refused = True
    left = torch.cuda.mem_get_info()[0]
    client.kept("blocks", blocks)
    return {"free": free, "total": total, "left": left, "refused": refused}


client.main(body)
