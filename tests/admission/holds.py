# SPDX-License-Identifier: MIT OR Apache-2.0
"""A job that takes device memory, keeps it until its end is due, and reports each step.

  holds.py RESULT --take 3GiB [--take 1GiB ...] [--go FILE] [--while FILE] [--seconds S] [--torch]

Takes each amount in turn (before the second and later ones it waits for `--go FILE`), then waits
until `--while FILE` is gone or S seconds are over. RESULT gets a line of JSON at each step:
{"event": "begun" | "took" | "none" | "ended", "at": CLOCK_MONOTONIC in ns, ...}. "none" is CUDA's
out of memory. Exit code 3: no context or no first memory.
"""

import argparse
import ctypes
import json
import os
import sys
import time

OUT_OF_MEMORY = 2
UNITS = {"GiB": 1 << 30, "MiB": 1 << 20, "": 1}


def amount(text):
    unit = next(unit for unit in UNITS if text.endswith(unit))
    return int(float(text[: len(text) - len(unit)] or 0) * UNITS[unit])


class Driver:
    """Memory by the driver API, without a framework."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.check(self.cuda.cuInit(0))
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.check(self.cuda.cuDeviceGet(ctypes.byref(device), 0))
        self.check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self.check(self.cuda.cuCtxSetCurrent(context))

    @staticmethod
    def check(result):
        if result == OUT_OF_MEMORY:
            raise MemoryError
        if result:
            raise RuntimeError(f"CUDA error {result}")

    def take(self, bytes_):
        address = ctypes.c_uint64()
        self.check(self.cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(bytes_)))

    def info(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.check(self.cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
        return free.value, total.value


class Torch:
    """Memory as PyTorch takes it, and some work on it."""

    def __init__(self):
        import torch

        self.torch = torch
        self.kept = []
        self.guard(lambda: torch.zeros(8, device="cuda"))

    def guard(self, work):
        try:
            return work()
        except self.torch.OutOfMemoryError as error:
            raise MemoryError from error
        except RuntimeError as error:
            # The runtime's error if no context can be made.
            if "out of memory" in str(error):
                raise MemoryError from error
            raise

    def take(self, bytes_):
        self.kept.append(self.guard(lambda: self.torch.empty(bytes_, dtype=self.torch.uint8, device="cuda")))
        for _ in range(3):
            self.kept[-1][:1024].add_(1)
        self.torch.cuda.synchronize()

    def info(self):
        return self.torch.cuda.mem_get_info()


def wait(condition):
    while condition():
        time.sleep(0.01)


def main():
    options = argparse.ArgumentParser()
    options.add_argument("result")
    options.add_argument("--take", action="append", type=amount, default=[])
    options.add_argument("--go")
    options.add_argument("--while", dest="stay")
    options.add_argument("--seconds", type=float, default=0.0)
    options.add_argument("--torch", action="store_true")
    options.add_argument("--print", default="", help="written to stdout before anything else, and left in the buffer")
    options.add_argument("--stubborn", action="store_true", help="goes on without a device, as a program that has another way")
    options = options.parse_args()
    print(options.print, end="")

    def say(event, **more):
        with open(options.result, "a") as out:
            out.write(json.dumps({"event": event, "at": time.monotonic_ns(), "pid": os.getpid(), **more}) + "\n")

    say("asks")
    try:
        device = Torch() if options.torch else Driver()
    except MemoryError:
        say("none", bytes=0)
        if options.stubborn:
            ctypes.CDLL(None).printf(options.print.encode())
            wait(lambda: True)
        return 3
    say("begun", info=device.info())
    for number, bytes_ in enumerate(options.take):
        if number and options.go:
            wait(lambda: not os.path.exists(options.go))
        try:
            device.take(bytes_)
            say("took", bytes=bytes_, info=device.info())
        except MemoryError:
            say("none", bytes=bytes_)
            if number == 0:
                return 3
    time.sleep(options.seconds)
    if options.stay:
        wait(lambda: os.path.exists(options.stay))
    say("ended")
    return 0


if __name__ == "__main__":
    sys.exit(main())
