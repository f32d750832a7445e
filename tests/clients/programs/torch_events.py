# SPDX-License-Identifier: MIT OR Apache-2.0
"""Event times: they never run backwards and they measure the kernels between them."""

import client
import torch


def body():
    x = torch.ones(1 << 20, device="cuda")
    begin, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    begin.record()
    for _ in range(20):
        x = x * 1.0001
    middle.record()
    for _ in range(200):
        x = x * 1.0001
    end.record()
    end.synchronize()
    client.kept("product", x)
    assert begin.query() and middle.query() and end.query()
    first, second = begin.elapsed_time(middle), middle.elapsed_time(end)
    assert first > 0 and second > 0
    assert abs(begin.elapsed_time(end) - first - second) < 0.01
    # 180 kernels more between the second pair: more time, even if others use the device.
    untimed = torch.cuda.Event()
    untimed.record()
    torch.cuda.current_stream().wait_event(untimed)
    untimed.synchronize()
    assert torch.cuda.current_stream().query()


if __name__ == "__main__":
    client.main(body)
