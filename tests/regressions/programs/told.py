# SPDX-License-Identifier: MIT OR Apache-2.0
"""A job that takes and frees device memory by the orders in a file, and writes the results.

  told.py FOLDER NAME

  take BYTES    cuMemAlloc_v2
  free          all that it took
  read          nothing but what is free
  end

Each line is answered by one of JSON: CUDA's result, and the free memory by cuMemGetInfo then. The
first answer is to its context.
"""

import ctypes
import json
import sys
import time
from pathlib import Path

cuda = ctypes.CDLL("libcuda.so.1")
orders, answers = (Path(sys.argv[1]) / f"{sys.argv[2]}.{kind}" for kind in ("orders", "answers"))
device, context, taken = ctypes.c_int(), ctypes.c_void_p(), []


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


def answer(order, *words):
    result = {"begin": begin, "take": take, "free": free, "read": int}[order](*words)
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
