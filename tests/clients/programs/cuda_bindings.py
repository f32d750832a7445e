# SPDX-License-Identifier: MIT OR Apache-2.0
"""The driver API itself by cuda-bindings: module, launches, copies, events, host function,
graph."""

import ctypes

import client
import numpy as np
from cuda.bindings import driver as cu

PTX = rb"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry twice(.param .u64 data, .param .u32 n) { ret; }
"""


def check(result):
    error, *values = result
    assert error == cu.CUresult.CUDA_SUCCESS, error
    return values[0] if len(values) == 1 else tuple(values)


def body():
    check(cu.cuInit(0))
    device = check(cu.cuDeviceGet(0))
    context = check(cu.cuDevicePrimaryCtxRetain(device))
    check(cu.cuCtxSetCurrent(context))
    module = check(cu.cuModuleLoadData(PTX))
    kernel = check(cu.cuModuleGetFunction(module, b"twice"))
    stream = check(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))

    host = np.arange(4096, dtype=np.uint32)
    memory = check(cu.cuMemAlloc(host.nbytes))
    check(cu.cuMemcpyHtoDAsync(memory, host.ctypes.data, host.nbytes, stream))
    pointer, count = ctypes.c_uint64(int(memory)), ctypes.c_uint32(host.size)
    arguments = (ctypes.c_void_p * 2)(ctypes.addressof(pointer), ctypes.addressof(count))
    begin, end = check(cu.cuEventCreate(0)), check(cu.cuEventCreate(0))
    check(cu.cuEventRecord(begin, stream))
    for size in range(100):
        check(cu.cuLaunchKernel(kernel, 1 + size % 7, 1, 1, 64, 1, 1, 0, stream, ctypes.addressof(arguments), 0))
    check(cu.cuEventRecord(end, stream))
    back = np.zeros_like(host)
    check(cu.cuMemcpyDtoHAsync(back.ctypes.data, memory, host.nbytes, stream))
    check(cu.cuStreamSynchronize(stream))
    assert np.array_equal(host, back)
    client.kept("back", back)
    assert check(cu.cuEventElapsedTime(begin, end)) >= 0

    called = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: called.append(len(called)))
    address = cu.CUhostFn(ctypes.cast(function, ctypes.c_void_p).value)
    for _ in range(3):
        check(cu.cuLaunchHostFunc(stream, address, 0))
    check(cu.cuStreamSynchronize(stream))
    assert called == [0, 1, 2]

    check(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
    for _ in range(5):
        check(cu.cuLaunchKernel(kernel, 4, 1, 1, 32, 1, 1, 0, stream, ctypes.addressof(arguments), 0))
    graph = check(cu.cuStreamEndCapture(stream))
    executable = check(cu.cuGraphInstantiate(graph, 0))
    for _ in range(10):
        check(cu.cuGraphLaunch(executable, stream))
    check(cu.cuStreamSynchronize(stream))
    check(cu.cuGraphExecDestroy(executable))
    check(cu.cuGraphDestroy(graph))
    check(cu.cuMemFree(memory))
    check(cu.cuModuleUnload(module))
    return {"launches": 100, "graph_launches": 10}


client.main(body)
