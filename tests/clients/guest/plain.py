# SPDX-License-Identifier: MIT OR Apache-2.0
"""The driver API by ctypes, for the jobs of the guest cases: a context, streams, memory, the test
kernels, and a piece of work whose result shows whether any launch was lost or came too early.
"""

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from pathlib import Path

KERNELS = Path(__file__).resolve().parents[2] / "simgpu" / "driver" / "src" / "kernels" / "simgpu.ptx"
COUNT = 256


class Gpu:
    """The first device, with the test kernels loaded."""

    def __init__(self, library="libcuda.so.1"):
        self.cuda = ctypes.CDLL(library)
        self.call("cuInit", 0)
        self.context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(self.context), 0)
        self.enter()
        self.module = c_void_p()
        self.call("cuModuleLoadData", byref(self.module), KERNELS.read_bytes() + b"\0")
        self.fill_kernel = self.kernel("simgpu_fill")

    def call(self, name, *arguments):
        result = getattr(self.cuda, name)(*arguments)
        if result:
            raise RuntimeError(f"{name} answers {result}")

    def enter(self):
        """Makes the context the calling thread's."""
        self.call("cuCtxSetCurrent", self.context)

    def kernel(self, name):
        function = c_void_p()
        self.call("cuModuleGetFunction", byref(function), self.module, name.encode())
        return function

    def stream(self, priority=0):
        stream = c_void_p()
        self.call("cuStreamCreateWithPriority", byref(stream), 1, c_int(priority))
        return stream

    def memory(self, size=COUNT * 4):
        address = c_uint64()
        self.call("cuMemAlloc_v2", byref(address), c_size_t(size))
        return address

    def launch(self, kernel, arguments, stream=None, grid=1, block=32):
        places = (c_void_p * len(arguments))(*(ctypes.cast(ctypes.pointer(a), c_void_p) for a in arguments))
        self.call("cuLaunchKernel", kernel, grid, 1, 1, block, 1, 1, 0, stream, places, None)

    def fill(self, memory, value, stream=None):
        self.launch(self.fill_kernel, [memory, c_uint32(value), c_uint64(COUNT)], stream)

    def synchronize(self, stream=None):
        self.call("cuStreamSynchronize", stream)

    def download(self, memory, stream=None, count=COUNT):
        data = (c_uint32 * count)()
        self.call("cuMemcpyDtoHAsync_v2", data, memory, c_size_t(4 * count), stream)
        self.synchronize(stream)
        return list(data)

    def event(self, flags=0):
        event = c_void_p()
        self.call("cuEventCreate", byref(event), c_uint(flags))
        return event

    def work(self, launches=50, stream=None, memory=None, first=0):
        """Fills one memory again and again, each time with another number, and looks at the last.
        An answer to print."""
        memory = memory or self.memory()
        for value in range(first, first + launches):
            self.fill(memory, value, stream)
        seen = self.download(memory, stream)
        assert seen == [first + launches - 1] * COUNT, f"the last fill is not there: {seen[:4]}"
        return seen[0]
