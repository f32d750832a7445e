# SPDX-License-Identifier: MIT OR Apache-2.0
"""A job of the replay (tests/fixtures/slurm_replay.py): a bare client of the driver.

  replayed.py service RESULT --image PTX --memory BYTES --requests N --kernels K --gap-s S --seed S
  replayed.py batch   RESULT --image PTX --memory BYTES --bursts N --kernels K --gap-s S

A service answers N requests, each K launches and a wait; the time between two is at random, S
seconds in the mean. A batch job launches N bursts, waits for each, and works S seconds on its host
after it. RESULT gets a line of JSON when it begins and one when it ends: a run that was ended by
Slurm leaves only the first. Times are CLOCK_MONOTONIC, in seconds.
"""

import ctypes
import json
import random
import sys
import time

# Launch shapes, by which the device's configuration knows whose kernel it is.
GRIDS = {"service": 2, "batch": 1}
THREADS = 32
# Numbers that the kernel fills: next to none, as the device's time is set anyway.
FILLED = 16


class Driver:
    """Device, context, module, kernel and stream."""

    def __init__(self, image):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self.function, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        with open(image, "rb") as file:
            text = ctypes.create_string_buffer(file.read())
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuModuleLoadData", ctypes.byref(module), text)
        self.call("cuModuleGetFunction", ctypes.byref(self.function), module, b"simgpu_fill")
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)

    def call(self, name, *arguments):
        code = getattr(self.cuda, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} answered {code}")

    def take(self, size):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def burst(self, address, grid, count):
        """Launches `count` times, and waits for all of it."""
        value, numbers = ctypes.c_uint32(7), ctypes.c_uint64(FILLED)
        pointers = [ctypes.addressof(each) for each in (address, value, numbers)]
        given = (ctypes.c_void_p * 3)(*pointers)
        shape = (grid, 1, 1, THREADS, 1, 1, 0)
        for _ in range(count):
            self.call("cuLaunchKernel", self.function, *shape, self.stream, given, None)
        self.call("cuStreamSynchronize", self.stream)


def main(kind, result, *words):
    options = dict(zip(words[::2], words[1::2], strict=True))
    gap_s, kernels = float(options["--gap-s"]), int(options["--kernels"])

    def say(event, **more):
        line = json.dumps({"event": event, "at": time.monotonic(), **more})
        with open(result, "a") as out:
            out.write(line + "\n")

    say("begin")
    driver = Driver(options["--image"])
    address = driver.take(int(options["--memory"]))
    grid, latencies = GRIDS[kind], []
    if kind == "service":
        chance = random.Random(int(options["--seed"]))
        for _ in range(int(options["--requests"])):
            time.sleep(chance.expovariate(1 / gap_s))
            begin = time.monotonic()
            driver.burst(address, grid, kernels)
            latencies.append(time.monotonic() - begin)
    else:
        for _ in range(int(options["--bursts"])):
            driver.burst(address, grid, kernels)
            time.sleep(gap_s)
    say("end", latencies=latencies)


main(*sys.argv[1:])
