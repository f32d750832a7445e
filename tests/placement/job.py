# SPDX-License-Identifier: MIT OR Apache-2.0
"""A job that reports its devices, takes memory on one of them or on two, works there on request,
and stays until its end is due.

  job.py RESULT [--device N] [--take 3GiB] [--also N:2GiB] [--work [--only N]] [--before FILE]
                [--while FILE]

RESULT gets a line of JSON at each step: {"event": "sees", "devices": [UUID, ...], "memory": [BYTES,
...]}, then "begun", "took" or "none" (CUDA's out of memory), "ended". `--before FILE`: no context
is made before FILE is there. `--also N:AMOUNT`: on device N as well, reported as "also" (or "also
none"; then it stays with the first). `--work`: memsets, one after another, with a synchronisation
every hundred, on each of its devices in turn, or only on device `--only`.
"""

import argparse
import ctypes
import json
import os
import sys
import time

OUT_OF_MEMORY, NO_DEVICE = 2, 100
UNITS = {"GiB": 1 << 30, "MiB": 1 << 20, "": 1}
# However long the creator of FILE forgets this job: longer than a case waits for anything.
BOUND = 3600.0


def amount(text):
    unit = next(unit for unit in UNITS if text.endswith(unit))
    return int(float(text[: len(text) - len(unit)] or 0) * UNITS[unit])


def also(cuda, check, say, device, take):
    """Memory on another device as well: the device, its context and the address, in a list that is
    empty if there was none."""
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    result = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), int(device))
    if result == 0:
        check(cuda.cuCtxSetCurrent(context))
        result = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(amount(take)))
    if result == OUT_OF_MEMORY:
        say("also none")
        return []
    check(result)
    check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    say("also", free=free.value, total=total.value)
    return [(int(device), context, address)]


def main():
    options = argparse.ArgumentParser()
    options.add_argument("result")
    options.add_argument("--device", type=int, default=0)
    options.add_argument("--take", type=amount, default=0)
    options.add_argument("--also")
    options.add_argument("--work", action="store_true")
    options.add_argument("--only", type=int)
    options.add_argument("--before")
    options.add_argument("--while", dest="stay")
    options = options.parse_args()

    def say(event, **more):
        with open(options.result, "a") as out:
            out.write(json.dumps({"event": event, "at": time.monotonic_ns(), **more}) + "\n")

    cuda = ctypes.CDLL("libcuda.so.1")

    def check(result):
        if result == OUT_OF_MEMORY:
            say("none")
            sys.exit(3)
        if result:
            raise RuntimeError(f"CUDA error {result}")

    count, uuid, total, free = ctypes.c_int(), (ctypes.c_ubyte * 16)(), ctypes.c_size_t(), ctypes.c_size_t()
    uuids, sizes = [], []
    result = cuda.cuInit(0)
    if result != NO_DEVICE:
        check(result)
        check(cuda.cuDeviceGetCount(ctypes.byref(count)))
    for device in range(count.value):
        check(cuda.cuDeviceGetUuid_v2(uuid, device))
        check(cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device))
        uuids.append(bytes(uuid).hex())
        sizes.append(total.value)
    say("sees", devices=uuids, memory=sizes, variable=os.environ.get("CUDA_VISIBLE_DEVICES"))
    if not uuids:
        return
    end = time.monotonic() + BOUND
    while options.before and not os.path.exists(options.before) and time.monotonic() < end:
        time.sleep(0.01)
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), options.device))
    check(cuda.cuCtxSetCurrent(context))
    say("begun")
    if options.take:
        check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(options.take)))
    check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    say("took", free=free.value, total=total.value)
    places = [(options.device, context, address)]
    if options.also:
        places += also(cuda, check, say, *options.also.split(":"))
    places = [place for place in places if options.only in (None, place[0])]
    rounds = 0
    while options.stay and os.path.exists(options.stay) and time.monotonic() < end:
        if options.work:
            _, context, address = places[rounds % len(places)]
            check(cuda.cuCtxSetCurrent(context))
            for _ in range(100):
                check(cuda.cuMemsetD8Async(address, ctypes.c_ubyte(rounds & 255), ctypes.c_size_t(1 << 20), None))
            check(cuda.cuCtxSynchronize())
            rounds += 1
        else:
            time.sleep(0.02)
    say("ended", rounds=rounds)


main()
