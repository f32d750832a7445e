# SPDX-License-Identifier: MIT OR Apache-2.0
"""cupy: elementwise, reduction, a raw kernel, cuBLAS, streams."""

import client
import cupy
import numpy


def body():
    host = numpy.arange(1 << 14, dtype=numpy.float32)
    x = cupy.asarray(host)
    assert numpy.array_equal(cupy.asnumpy(x), host)
    y = x + x * 2
    y.sum().item()
    cupy.sqrt(y).max()
    raw = cupy.RawKernel(
        'extern "C" __global__ void saxpy(float* out, const float* x, float a, int n)'
        "{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) out[i] += a * x[i]; }",
        "saxpy",
    )
    for _ in range(20):
        raw((64,), (256,), (y, x, numpy.float32(2), numpy.int32(x.size)))
    with cupy.cuda.Stream(non_blocking=True) as stream:
        a = cupy.ones((128, 128), dtype=cupy.float32)
        b = a @ a
        stream.synchronize()
    assert b.shape == (128, 128)
    client.kept("cupy", [y, b])
    cupy.cuda.Device().synchronize()


client.main(body)
