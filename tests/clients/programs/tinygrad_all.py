# SPDX-License-Identifier: MIT OR Apache-2.0
"""tinygrad: it opens libcuda by an absolute path that it finds itself, and compiles its kernels."""

import client
from tinygrad import Device, Tensor, dtypes


def body():
    assert Device.DEFAULT.startswith("CUDA") or Device["CUDA"]
    x = Tensor(list(range(1024)), dtype=dtypes.float32, device="CUDA").realize()
    assert x.tolist()[:5] == [0.0, 1.0, 2.0, 3.0, 4.0]
    for _ in range(10):
        y = (x * 2 + 1).relu().sum().realize()
    a = Tensor.ones(64, 64, device="CUDA").contiguous().realize()
    product = (a @ a).realize()
    y.numpy()
    client.kept("tinygrad", [x, y, product])
    Device["CUDA"].synchronize()


client.main(body)
