# SPDX-License-Identifier: MIT OR Apache-2.0
"""numba-cuda: a compiled kernel, device arrays, a stream and events."""

import client
import numpy as np
from numba import cuda


@cuda.jit
def axpy(out, x, a):
    i = cuda.grid(1)
    if i < out.size:
        out[i] += a * x[i]


def body():
    x = np.arange(1 << 20, dtype=np.float32)
    stream = cuda.stream()
    device_x = cuda.to_device(x, stream=stream)
    out = cuda.device_array_like(x, stream=stream)
    begin, end = cuda.event(), cuda.event()
    begin.record(stream)
    for _ in range(25):
        axpy[32, 128, stream](out, device_x, 2.0)
    end.record(stream)
    end.synchronize()
    assert cuda.event_elapsed_time(begin, end) >= 0
    assert np.array_equal(device_x.copy_to_host(stream=stream), x)
    stream.synchronize()
    client.kept("axpy", out)


client.main(body)
