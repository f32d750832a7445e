# SPDX-License-Identifier: MIT OR Apache-2.0
"""A memory-hungry loop; the runner chooses the allocator by PYTORCH_CUDA_ALLOC_CONF."""

import os

import client
import torch


def body():
    wanted = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    backend = torch.cuda.get_allocator_backend()
    assert backend == ("cudaMallocAsync" if "cudaMallocAsync" in wanted else "native"), (backend, wanted)
    side = torch.cuda.Stream()
    for size in (1 << 12, 1 << 20, 1 << 24, 3 << 24):
        blocks = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(6)]
        with torch.cuda.stream(side):
            other = torch.empty(size, dtype=torch.uint8, device="cuda")
            other.fill_(1)
        for block in blocks:
            block.fill_(7)
        side.synchronize()
        assert int(blocks[-1][-1].cpu()) == 7
        del blocks[::2], other
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    assert peak >= 6 * (3 << 24)
    torch.cuda.empty_cache()
    assert (torch.ones(10, device="cuda") * 2).shape == (10,)
    torch.cuda.synchronize()
    return {"backend": backend}


if __name__ == "__main__":
    client.main(body)
