# SPDX-License-Identifier: MIT OR Apache-2.0
"""Pinned memory and asynchronous copies in both directions; the data must arrive whole and in
order."""

import client
import torch


def body():
    stream = torch.cuda.Stream()
    source = torch.arange(1 << 20, dtype=torch.int32).pin_memory()
    assert source.is_pinned()
    back = torch.empty_like(source).pin_memory()
    with torch.cuda.stream(stream):
        for _ in range(10):
            there = source.to("cuda", non_blocking=True)
            again = there.clone()
            back.copy_(again, non_blocking=True)
    stream.synchronize()
    assert torch.equal(source, back), "asynchronous copies lost data or order"
    client.kept("there and back", back)
    # A two-dimensional, strided copy.
    window = source.view(1024, 1024)[:, ::2]
    assert torch.equal(window.contiguous().cuda().cpu(), window)
    return {"bytes": source.numel() * 4}


if __name__ == "__main__":
    client.main(body)
