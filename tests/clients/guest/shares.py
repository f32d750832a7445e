# SPDX-License-Identifier: MIT OR Apache-2.0
"""Device memory and an event that another process opens (CUDA IPC): each sees the other's writes,
in both directions. The other process is this program again.

Managed memory cannot be shared so: the driver refuses, and the job continues.
"""

import ctypes
import subprocess
import sys
from ctypes import byref, c_uint, c_uint64, c_void_p

import plain


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


gpu = plain.Gpu()
# By value: the handle is an argument of 64 bytes.
gpu.cuda.cuIpcOpenMemHandle_v2.argtypes = [c_void_p, Handle, c_uint]
gpu.cuda.cuIpcOpenEventHandle.argtypes = [c_void_p, Handle]
stream = gpu.stream()

if len(sys.argv) > 1:
    memory, event = c_uint64(), c_void_p()
    gpu.call("cuIpcOpenMemHandle_v2", byref(memory), Handle.from_buffer_copy(bytes.fromhex(sys.argv[1])), 1)
    gpu.call("cuIpcOpenEventHandle", byref(event), Handle.from_buffer_copy(bytes.fromhex(sys.argv[2])))
    # Not by the host: the fills may still be on their way.
    gpu.call("cuStreamWaitEvent", stream, event, c_uint(0))
    print("other sees", gpu.download(memory, stream)[0])
    print("other writes", gpu.work(200, stream, memory, first=1000))
    gpu.call("cuEventRecord", event, stream)
    gpu.call("cuIpcCloseMemHandle", memory)
    sys.exit()

memory, told, marked = gpu.memory(), Handle(), Handle()
answer = gpu.cuda.cuIpcGetMemHandle(byref(told), memory)
print("handle", answer)
if answer == 0:
    for value in range(100):
        gpu.fill(memory, value, stream)
    # CU_EVENT_DISABLE_TIMING and CU_EVENT_INTERPROCESS.
    event = gpu.event(2 | 4)
    gpu.call("cuEventRecord", event, stream)
    gpu.call("cuIpcGetEventHandle", byref(marked), event)
    print("own", gpu.cuda.cuIpcOpenMemHandle_v2(byref(c_uint64()), told, c_uint(1)))
    command = [sys.executable, __file__, bytes(told).hex(), bytes(marked).hex()]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    print(done.stdout, end="")
    # The last record of the other process.
    gpu.call("cuEventSynchronize", event)
    print("this one sees", gpu.download(memory, stream)[0])
print(gpu.work(50, stream))
