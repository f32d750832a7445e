# SPDX-License-Identifier: MIT OR Apache-2.0
"""Graphs with conditional nodes: IF with an else, WHILE, SWITCH, one inside another, bodies filled
node by node and by capture, made into an executable graph, updated, launched many times.

The values are those that a launch begins with: the simulated device's kernels set none.
"""

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p

import plain

IF, WHILE, SWITCH = range(3)
CONDITIONAL, ASSIGN_DEFAULT = 13, 1


class Parameters(ctypes.Structure):
    """CUgraphNodeParams of a conditional node."""

    _fields_ = [
        ("kind", c_int),
        ("reserved", c_int * 3),
        ("handle", c_uint64),
        ("choice", c_int),
        ("size", c_uint),
        ("bodies", ctypes.POINTER(c_void_p)),
        ("context", c_void_p),
        ("rest", ctypes.c_char * 256),
    ]


gpu = plain.Gpu()
stream = gpu.stream()
taken, other = gpu.memory(), gpu.memory()


def value(graph, default):
    """A value on the device that is `default` at each launch."""
    handle = c_uint64()
    gpu.call("cuGraphConditionalHandleCreate", byref(handle), graph, gpu.context, c_uint(default), c_uint(ASSIGN_DEFAULT))
    return handle


def conditional(graph, choice, default, size, after=None, name="cuGraphAddNode"):
    """Adds a conditional node; its bodies, and itself."""
    node = c_void_p()
    parameters = Parameters(kind=CONDITIONAL, handle=value(graph, default), choice=choice, size=size, context=gpu.context)
    dependencies = (c_void_p * 1)(after) if after else None
    edges = [None] if name.endswith("_v2") else []
    gpu.call(name, byref(node), graph, dependencies, *edges, c_size_t(1 if after else 0), byref(parameters))
    return [c_void_p(parameters.bodies[at]) for at in range(size)], node


def filled(graph, memory, number, launches=3):
    """Captures fills into a graph that there is already."""
    gpu.call("cuStreamBeginCaptureToGraph", stream, graph, None, None, c_size_t(0), c_int(2))
    for at in range(launches):
        gpu.fill(memory, number + at, stream)
    ended = c_void_p()
    gpu.call("cuStreamEndCapture", stream, byref(ended))


def made(graph):
    executable = c_void_p()
    gpu.call("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
    return executable


def graph_of(default, number):
    """IF (with an else), then SWITCH, then WHILE with an IF inside."""
    graph = c_void_p()
    gpu.call("cuGraphCreate", byref(graph), 0)
    (yes, no), first = conditional(graph, IF, default, 2)
    filled(yes, taken, number)
    filled(no, other, number)
    cases, second = conditional(graph, SWITCH, default, 3, after=first, name="cuGraphAddNode_v2")
    for at, body in enumerate(cases):
        filled(body, taken if at == default else other, number + 10 * at)
    (loop,), _ = conditional(graph, WHILE, default, 1, after=second)
    (inner,), _ = conditional(loop, IF, 1, 1)
    filled(inner, taken, number + 50)
    return graph


for default in (0, 1, 2):
    executable = made(graph_of(default, 100))
    for turn in range(40):
        gpu.call("cuGraphLaunch", executable, stream)
        gpu.fill(other, turn, stream)
    print("launched", default, gpu.download(taken, stream)[0], gpu.download(other, stream)[0])
    again = graph_of(default, 200)
    print("update", gpu.cuda.cuGraphExecUpdate_v2(executable, again, (c_uint64 * 4)()))
    gpu.call("cuGraphLaunch", executable, stream)
    print("updated", default, gpu.download(taken, stream)[0], gpu.download(other, stream)[0])
    gpu.call("cuGraphDestroy", again)
    gpu.call("cuGraphExecDestroy", executable)

print("clone", gpu.cuda.cuGraphClone(byref(c_void_p()), graph_of(1, 300)))

# A node that is added while its stream captures.
gpu.call("cuStreamBeginCapture_v2", stream, c_int(2))
gpu.fill(other, 7, stream)
status, number, graph, nodes, count = c_int(), c_uint64(), c_void_p(), c_void_p(), c_size_t()
gpu.call("cuStreamGetCaptureInfo_v2", stream, byref(status), byref(number), byref(graph), byref(nodes), byref(count))
before = ctypes.cast(nodes, ctypes.POINTER(c_void_p))[0]
(body,), node = conditional(graph, IF, 1, 1, after=before)
gpu.call("cuStreamUpdateCaptureDependencies", stream, (c_void_p * 1)(node), c_size_t(1), c_uint(1))
gpu.fill(other, 9, stream)
gpu.call("cuStreamEndCapture", stream, byref(graph))
filled(body, taken, 400)
executable = made(graph)
for _ in range(10):
    gpu.call("cuGraphLaunch", executable, stream)
print("captured", gpu.download(taken, stream)[0], gpu.download(other, stream)[0], gpu.work(20, stream))
