# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a job hears of its streams' priorities, in all ways there are.

A stream's handle brings nothing along from the stream that had it before.
"""

from ctypes import byref, c_int, c_void_p

import plain

PRIORITY = 8

gpu = plain.Gpu()


def heard(stream):
    said, value = c_int(99), (c_int * 16)()
    gpu.call("cuStreamGetPriority", stream, byref(said))
    gpu.call("cuStreamGetAttribute", stream, PRIORITY, value)
    assert said.value == value[0], (said.value, value[0])
    return said.value


def put(stream, priority):
    gpu.call("cuStreamSetAttribute", stream, PRIORITY, (c_int * 16)(priority))


least, greatest = c_int(), c_int()
gpu.call("cuCtxGetStreamPriorityRange", byref(least), byref(greatest))
print("range", least.value, greatest.value)

# The last two are out of the range.
streams = [gpu.stream(priority) for priority in (-5, 0, -1, -3, -100, 7)]
print("made", *map(heard, streams))
print("default", heard(None), heard(c_void_p(1)), heard(c_void_p(2)))

put(streams[1], -4)
put(streams[0], 0)
put(streams[2], -200)
print("set", *map(heard, streams))
gpu.call("cuStreamCopyAttributes", streams[5], streams[3])
print("copied", *map(heard, streams))

for stream in streams:
    print("work", gpu.work(20, stream))

# A handle may be the next stream's.
for _ in range(3):
    for stream in streams:
        gpu.call("cuStreamDestroy_v2", stream)
    plain_ones = []
    for _ in streams:
        stream = c_void_p()
        gpu.call("cuStreamCreate", byref(stream), 0)
        plain_ones.append(stream)
    print("plain", *map(heard, plain_ones))
    for stream in plain_ones:
        gpu.call("cuStreamDestroy_v2", stream)
    streams = [gpu.stream(priority) for priority in (-2, -5)]
    print("again", *map(heard, streams))

# So may it be after a context's end, which takes its streams along.
for _ in range(3):
    context = c_void_p()
    gpu.call("cuCtxCreate_v2", byref(context), 0, 0)
    print("elsewhere", heard(gpu.stream(-5)), heard(gpu.stream(0)))
    gpu.call("cuCtxDestroy_v2", context)
    gpu.enter()
    stream = c_void_p()
    gpu.call("cuStreamCreate", byref(stream), 1)
    print("after", heard(stream), *map(heard, streams))
