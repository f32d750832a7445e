# SPDX-License-Identifier: MIT OR Apache-2.0
"""All kinds of memory, and calls that must fail: the answers are the driver's own."""

from ctypes import Structure, byref, c_int, c_size_t, c_ubyte, c_uint64, c_void_p, create_string_buffer

import plain

gpu = plain.Gpu()
stream = gpu.stream()


def answer(name, *arguments):
    print(name, getattr(gpu.cuda, name)(*arguments))


class Properties(Structure):
    _fields_ = [("type", c_int), ("handles", c_int), ("location", c_int * 2), ("meta", c_void_p), ("flags", c_ubyte * 8)]


class Access(Structure):
    _fields_ = [("location", c_int * 2), ("flags", c_int)]


address, pitch = c_uint64(), c_size_t()
for value in range(30):
    gpu.call("cuMemAllocAsync", byref(address), c_size_t(1 << 20), stream)
    gpu.fill(address, value, stream)
    assert gpu.download(address, stream, 64) == [value] * 64
    gpu.call("cuMemFreeAsync", address, stream)
pool = c_void_p()
answer("cuDeviceGetDefaultMemPool", byref(pool), 0)
answer("cuMemPoolTrimTo", pool, c_size_t(0))
host = create_string_buffer(1 << 16)
answer("cuMemHostRegister_v2", host, c_size_t(1 << 16), 0)
answer("cuMemHostUnregister", host)
answer("cuMemAllocManaged", byref(address), c_size_t(4096), 1)
gpu.fill(address, 5, stream)
print(gpu.download(address, stream, 4))
answer("cuMemFree_v2", address)
answer("cuMemFree_v2", address)
answer("cuMemAllocPitch_v2", byref(address), byref(pitch), c_size_t(100), c_size_t(10), 4)
print(pitch.value)
answer("cuMemFree_v2", address)
answer("cuMemFree_v2", c_uint64(0))
answer("cuMemFree_v2", c_uint64(12345))
answer("cuMemAlloc_v2", byref(address), c_size_t(1 << 60))
answer("cuMemAlloc_v2", byref(address), c_size_t(0))
answer("cuMemAlloc_v2", None, c_size_t(10))

properties = Properties(1, 0, (c_int * 2)(1, 0))
granule, handle, place = c_size_t(), c_uint64(), c_uint64()
answer("cuMemGetAllocationGranularity", byref(granule), byref(properties), 0)
size = c_size_t(2 * granule.value)
answer("cuMemCreate", byref(handle), size, byref(properties), c_uint64(0))
answer("cuMemAddressReserve", byref(place), size, c_size_t(0), c_uint64(0), c_uint64(0))
answer("cuMemMap", place, size, c_size_t(0), handle, c_uint64(0))
answer("cuMemSetAccess", place, size, byref(Access((c_int * 2)(1, 0), 3)), c_size_t(1))
gpu.fill(place, 9, stream)
print(gpu.download(place, stream, 4))
answer("cuMemUnmap", place, size)
answer("cuMemRelease", handle)
answer("cuMemAddressFree", place, size)
print(gpu.work(10, stream))
