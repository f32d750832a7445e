# SPDX-License-Identifier: MIT OR Apache-2.0
"""Forked children of a process that uses the GPU: loader workers that do not use it, and one that
may not touch it."""

import multiprocessing
import os

import client
import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((16,), float(index * index))


def body():
    device = torch.zeros(1, device="cuda")
    loader = DataLoader(Squares(), batch_size=8, num_workers=2, pin_memory=True, multiprocessing_context="fork")
    seen = 0
    for batch in loader:
        seen += len(batch.to("cuda", non_blocking=True))
    torch.cuda.synchronize()
    assert seen == 64

    def child(pipe):
        try:
            torch.zeros(1, device="cuda")
            pipe.send("used the GPU")
        except RuntimeError:
            pipe.send("refused")
        pipe.close()
        os._exit(0)

    ours, theirs = multiprocessing.Pipe()
    forked = multiprocessing.get_context("fork").Process(target=child, args=(theirs,))
    forked.start()
    assert ours.poll(60)
    assert ours.recv() == "refused"
    forked.join(30)
    # The children did not touch the parent's context.
    assert (device + 1).shape == (1,)
    torch.cuda.synchronize()


client.main(body)
