# SPDX-License-Identifier: MIT OR Apache-2.0
"""A ring of streams of different priorities, each waiting for the one before by events that take
times."""

from ctypes import byref, c_float

import plain

gpu = plain.Gpu()
streams = [gpu.stream(-(number % 3)) for number in range(6)]
memory = gpu.memory()
for turn in range(15):
    pairs = []
    for one, other in zip(streams, streams[1:] + streams[:1]):
        begin, end = gpu.event(), gpu.event()
        gpu.call("cuEventRecord", begin, one)
        for step in range(8):
            gpu.fill(memory, turn * 8 + step, one)
        gpu.call("cuEventRecord", end, one)
        gpu.call("cuStreamWaitEvent", other, end, 0)
        pairs.append((begin, end))
    gpu.call("cuCtxSynchronize")
    for begin, end in pairs:
        time = c_float()
        gpu.call("cuEventElapsedTime", byref(time), begin, end)
        assert time.value > 0, time.value
        gpu.call("cuEventDestroy_v2", begin)
        gpu.call("cuEventDestroy_v2", end)
print(gpu.download(memory)[0])
