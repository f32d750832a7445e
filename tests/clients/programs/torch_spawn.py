# SPDX-License-Identifier: MIT OR Apache-2.0
"""torch.multiprocessing with the start method spawn: two workers, each with a context of its own on
the same device."""

import client
import torch
import torch.multiprocessing as mp


def worker(rank, queue):
    x = torch.ones(256, 256, device="cuda")
    for _ in range(20 + rank):
        x = x @ x
    torch.cuda.synchronize()
    queue.put((rank, tuple(x.shape)))


def body():
    torch.zeros(1, device="cuda")
    context = mp.get_context("spawn")
    queue = context.Queue()
    workers = [context.Process(target=worker, args=(rank, queue)) for rank in range(2)]
    for process in workers:
        process.start()
    results = sorted(queue.get(timeout=120) for _ in workers)
    for process in workers:
        process.join(60)
        assert process.exitcode == 0, process.exitcode
    assert results == [(0, (256, 256)), (1, (256, 256))]
    torch.cuda.synchronize()
    return {"workers": len(workers)}


if __name__ == "__main__":
    client.main(body)
