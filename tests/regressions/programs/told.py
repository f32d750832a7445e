# SPDX-License-Identifier: MIT OR Apache-2.0
"""A job that takes and frees device memory by the orders in a file, and writes the results.

  told.py FOLDER NAME

  take BYTES    cuMemAlloc_v2
  free          all that it took
  map BYTES     as engines with a sleep mode: cuMemCreate, cuMemMap
  sleep         unmaps and releases all that it mapped, and keeps the addresses
  wake          creates and maps all of it again, until CUDA refuses
  read          nothing but what is free
  end

Each line is answered by one of JSON: CUDA's result, and the free memory by cuMemGetInfo then. The
first answer is to its context.
"""

import ctypes
import json
import struct
import sys
import time
from pathlib import Path

cuda = ctypes.CDLL("libcuda.so.1")
orders, answers = (Path(sys.argv[1]) / f"{sys.argv[2]}.{kind}" for kind in ("orders", "answers"))
device, context, taken = ctypes.c_int(), ctypes.c_void_p(), []
# Address -> [bytes, handle, or None while it sleeps].
mapped = {}
# A CUmemAllocationProp: pinned memory of device 0.
PROPERTIES = struct.pack("=IIIIQQ", 1, 0, 1, 0, 0, 0)


def begin():
    result = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
    return result or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)


def take(size):
    address = ctypes.c_uint64()
    result = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(int(size)))
    if result == 0:
        taken.append(address)
    return result


def free():
    results = [cuda.cuMemFree_v2(taken.pop()) for _ in range(len(taken))]
    return max(results, default=0)


def back(address):
    """Puts memory behind an address."""
    size, handle = mapped[address][0], ctypes.c_uint64()
    result = cuda.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(size), PROPERTIES, ctypes.c_uint64(0))
    if result == 0:
        mapped[address][1] = handle
        result = cuda.cuMemMap(ctypes.c_uint64(address), ctypes.c_size_t(size), ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
    return result


def map_(size):
    address = ctypes.c_uint64()
    none = ctypes.c_uint64(0)
    result = cuda.cuMemAddressReserve(ctypes.byref(address), ctypes.c_size_t(int(size)), ctypes.c_size_t(0), none, none)
    if result == 0:
        mapped[address.value] = [int(size), None]
        result = back(address.value)
    return result


def sleep():
    results = []
    for address, of_it in mapped.items():
        size, handle = of_it
        if handle is not None:
            results.append(cuda.cuMemUnmap(ctypes.c_uint64(address), ctypes.c_size_t(size)))
            results.append(cuda.cuMemRelease(handle))
            of_it[1] = None
    return max(results, default=0)


def wake():
    asleep = [address for address, (_, handle) in mapped.items() if handle is None]
    return next(filter(None, map(back, asleep)), 0)


ORDERS = {"begin": begin, "take": take, "free": free, "map": map_, "sleep": sleep, "wake": wake, "read": int}


def answer(order, *words):
    result = ORDERS[order](*words)
    left, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda.cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(total))
    with answers.open("a") as out:
        print(json.dumps({"order": order, "result": result, "free": left.value}), file=out)


answer("begin")
done = 0
while True:
    text = orders.read_text() if orders.exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()
    for line in lines[done:]:
        if line.strip() == "end":
            sys.exit(0)
        answer(*line.split())
    done = len(lines)
    time.sleep(0.01)
