# SPDX-License-Identifier: MIT OR Apache-2.0
"""NVIDIA Warp: compiled kernels, their gradient, a CUDA graph, a sort and a sum, in memory of the
driver's pool.
"""

import client
import numpy as np
import warp as wp

# Its lines on stdout have times in them.
wp.config.log_level = wp.LOG_WARNING
DEVICE = "cuda:0"
POINTS = 1024


@wp.kernel
def step(x: wp.array(dtype=wp.vec3), v: wp.array(dtype=wp.vec3), dt: float):
    i = wp.tid()
    v[i] = v[i] + wp.vec3(0.0, -9.8, 0.0) * dt
    x[i] = x[i] + v[i] * dt


@wp.kernel
def length(x: wp.array(dtype=wp.vec3), out: wp.array(dtype=float)):
    wp.atomic_add(out, 0, wp.length(x[wp.tid()]))


def body():
    x, v = (wp.zeros(POINTS, dtype=wp.vec3, device=DEVICE, requires_grad=True) for _ in range(2))
    out = wp.zeros(1, dtype=float, device=DEVICE, requires_grad=True)
    with wp.Tape() as tape:
        for _ in range(10):
            wp.launch(step, dim=POINTS, inputs=[x, v, 0.01], device=DEVICE)
        wp.launch(length, dim=POINTS, inputs=[x, out], device=DEVICE)
    tape.backward(out)
    with wp.ScopedCapture(device=DEVICE) as capture:
        for _ in range(5):
            wp.launch(step, dim=POINTS, inputs=[x, v, 0.01], device=DEVICE)
    for _ in range(5):
        wp.capture_launch(capture.graph)
    # Twice as many: a sort needs the room.
    keys, values = (wp.array(np.arange(2 * POINTS, dtype=np.int32), dtype=int, device=DEVICE) for _ in range(2))
    wp.utils.radix_sort_pairs(keys, values, POINTS)
    sums = wp.zeros(2 * POINTS, dtype=int, device=DEVICE)
    wp.utils.array_scan(keys, sums)
    assert x.numpy().shape == (POINTS, 3)
    client.kept("warp", [x, v, sums])


client.main(body)
