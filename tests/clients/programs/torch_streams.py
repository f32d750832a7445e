# SPDX-License-Identifier: MIT OR Apache-2.0
"""Several streams with priorities, ordered by events, and memory that crosses them."""

import client
import torch


def body():
    low, high = torch.cuda.Stream(priority=0), torch.cuda.Stream(priority=-1)
    a = torch.ones(1 << 18, device="cuda")
    for _ in range(10):
        low.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(low):
            b = a * 3
            done = low.record_event()
        with torch.cuda.stream(high):
            c = a + 1
            high.wait_event(done)
            d = b + c
        b.record_stream(high)
        torch.cuda.current_stream().wait_stream(high)
        a = d.clone()
    torch.cuda.synchronize()
    client.kept("across streams", a)
    assert low.query() and high.query()
    return {"streams": 3}


if __name__ == "__main__":
    client.main(body)
