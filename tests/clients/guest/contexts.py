# SPDX-License-Identifier: MIT OR Apache-2.0
"""Six contexts in addition to the primary one, in turns; each with a module, all destroyed at the
end; the driver closed and opened again in between."""

import _ctypes
from ctypes import byref, c_void_p

import plain

gpu = plain.Gpu()
contexts = []
for _ in range(6):
    context = c_void_p()
    gpu.call("cuCtxCreate_v2", byref(context), 0, 0)
    contexts.append(context)
for turn in range(3):
    for context in contexts:
        gpu.call("cuCtxPushCurrent_v2", context)
        gpu.call("cuModuleLoadData", byref(gpu.module), plain.KERNELS.read_bytes() + b"\0")
        gpu.fill_kernel = gpu.kernel("simgpu_fill")
        assert gpu.work(40) == 39
        gpu.call("cuModuleUnload", gpu.module)
        gpu.call("cuCtxPopCurrent_v2", byref(c_void_p()))
    if turn == 1:
        _ctypes.dlclose(gpu.cuda._handle)
        gpu.cuda = plain.Gpu().cuda
for context in contexts:
    gpu.call("cuCtxDestroy_v2", context)
print(plain.Gpu().work())
