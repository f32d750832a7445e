# SPDX-License-Identifier: MIT OR Apache-2.0
"""Graphs that change: captured again and updated, of several streams, in one another, cloned, with
memory of their own, spoilt, destroyed on their way."""

from ctypes import byref, c_size_t, c_uint64, c_void_p

import plain

gpu = plain.Gpu()
left, right = gpu.stream(), gpu.stream()
here, there = gpu.memory(), gpu.memory()


def capture(launches, first=0, both=False, mode=1):
    gpu.call("cuStreamBeginCapture_v2", left, mode)
    for value in range(first, first + launches):
        gpu.fill(here, value, left)
    if both:
        fork, join = gpu.event(), gpu.event()
        gpu.call("cuEventRecord", fork, left)
        gpu.call("cuStreamWaitEvent", right, fork, 0)
        for value in range(first, first + launches):
            gpu.fill(there, value, right)
        gpu.call("cuEventRecord", join, right)
        gpu.call("cuStreamWaitEvent", left, join, 0)
    graph = c_void_p()
    gpu.call("cuStreamEndCapture", left, byref(graph))
    return graph


def made(graph):
    executable = c_void_p()
    gpu.call("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
    return executable


def answer(name, *arguments):
    """The driver's answer, success or error: the same without weft."""
    print(name, getattr(gpu.cuda, name)(*arguments))


small = capture(10)
executable = made(small)
for turn in range(20):
    again = capture(10, first=100 * turn)
    gpu.call("cuGraphExecUpdate_v2", executable, again, (c_uint64 * 4)())
    gpu.call("cuGraphLaunch", executable, left)
    assert gpu.download(here, left)[0] == 100 * turn + 9
    gpu.call("cuGraphDestroy", again)
answer("cuGraphExecUpdate_v2", executable, capture(12), (c_uint64 * 4)())

forked = capture(30, first=7, both=True)
wide = made(forked)
for _ in range(10):
    gpu.call("cuGraphLaunch", wide, left)
print(gpu.download(here, left)[0], gpu.download(there, left)[0])

top, child, second = c_void_p(), c_void_p(), c_void_p()
gpu.call("cuGraphCreate", byref(top), 0)
gpu.call("cuGraphAddChildGraphNode", byref(child), top, None, c_size_t(0), small)
gpu.call("cuGraphAddChildGraphNode", byref(second), top, (c_void_p * 1)(child), c_size_t(1), forked)
nested = made(top)
for _ in range(10):
    gpu.call("cuGraphLaunch", nested, left)
print(gpu.download(here, left)[0])
copy = c_void_p()
gpu.call("cuGraphClone", byref(copy), forked)
gpu.call("cuGraphLaunch", made(copy), right)
print(gpu.download(there, right)[0])

gpu.call("cuStreamBeginCapture_v2", left, 1)
address, graph = c_uint64(), c_void_p()
gpu.call("cuMemAllocAsync", byref(address), c_size_t(4096), left)
gpu.fill(address, 3, left)
gpu.call("cuMemFreeAsync", address, left)
gpu.call("cuStreamEndCapture", left, byref(graph))
own = made(graph)
for _ in range(3):
    gpu.call("cuGraphLaunch", own, left)
gpu.synchronize(left)

gpu.call("cuStreamBeginCapture_v2", left, 0)
gpu.fill(here, 1, left)
answer("cuStreamSynchronize", left)
answer("cuStreamEndCapture", left, byref(graph))
print(gpu.work(10, left))

for _ in range(5):
    gpu.call("cuGraphLaunch", wide, left)
answer("cuGraphUpload", wide, left)
gpu.call("cuGraphExecDestroy", wide)
gpu.call("cuGraphDestroy", forked)
print(gpu.work(10, left))
