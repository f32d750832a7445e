# SPDX-License-Identifier: MIT OR Apache-2.0
"""Out of memory is an error the program can catch, and it can work on after it."""

import client
import torch


def body():
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total
    kept = torch.zeros(1 << 20, device="cuda")
    held = []
    try:
        while True:
            held.append(torch.empty(total // 8, dtype=torch.uint8, device="cuda"))
            assert len(held) <= 8, "more memory than the device has"
    except torch.OutOfMemoryError as error:
        message = str(error)
    assert "out of memory" in message
    assert 1 <= len(held) <= 8
    held.clear()
    torch.cuda.empty_cache()
    assert (kept + 1).sum().item() is not None
    client.kept("after it", kept + 1)
    # A number, not the text: the text has byte counts of the moment.
    return {"blocks_before": len(held)}


if __name__ == "__main__":
    client.main(body)
