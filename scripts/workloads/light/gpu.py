# SPDX-License-Identifier: MIT OR Apache-2.0
"""The driver API by ctypes, for serve.py and train.py: launches that cost a microsecond or two.

A kernel is named by its block's width: the simulated device's settings give each width a time.
"""

import json
import os
import signal
import sys
import time
from ctypes import byref, c_int, c_size_t, c_uint32, c_uint64, c_void_p, cast, pointer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests" / "clients" / "guest"))
import plain  # noqa: E402

# The file for the begin and end of each request or stretch of steps, as JSON.
TIMES = os.environ.get("TIMES")


class Gpu(plain.Gpu):
    """The first device, with one stream."""

    def __init__(self):
        super().__init__()
        self.work = self.stream()
        self.data = self.memory(64)
        arguments = [self.data, c_uint32(7), c_uint64(16)]
        places = [cast(pointer(argument), c_void_p) for argument in arguments]
        self.places = (c_void_p * len(arguments))(*places)
        self.launches = self.cuda.cuLaunchKernel
        one, none = c_uint32(1), c_uint32(0)
        self.fixed = (one, one, one), (one, one, none, self.work, self.places, None)

    def kernel_of(self, width):
        """A call that launches the kernel of this width."""
        launch, kernel, width = self.launches, self.fill_kernel, c_uint32(width)
        grid, rest = self.fixed

        def go():
            if code := launch(kernel, *grid, width, *rest):
                raise RuntimeError(f"cuLaunchKernel answers {code}")

        return go

    def copy_of(self, size):
        """A call that copies `size` bytes of pinned memory to the device."""
        here, there = c_void_p(), self.memory(size)
        self.call("cuMemAllocHost_v2", byref(here), c_size_t(size))

        def go():
            self.call("cuMemcpyHtoDAsync_v2", there, here, c_size_t(size), self.work)

        return go

    def graph_of(self, calls):
        """A call that launches a graph of these calls."""
        self.call("cuStreamBeginCapture_v2", self.work, c_int(1))
        for call in calls:
            call()
        graph, executable = c_void_p(), c_void_p()
        self.call("cuStreamEndCapture", self.work, byref(graph))
        self.call("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))

        def go():
            self.call("cuGraphLaunch", executable, self.work)

        return go

    def finish(self):
        """Waits for the stream."""
        self.synchronize(self.work)


class Until:
    """Whether a job continues: until SIGTERM, or for `turns` turns."""

    def __init__(self, turns=0):
        self.turns, self.done, self.asked = turns, 0, 0
        signal.signal(signal.SIGTERM, self.end)

    def end(self, *_):
        self.asked += 1

    def goes_on(self):
        self.done += 1
        return not self.asked and not 0 < self.turns < self.done

    def linger(self, bound=60.0):
        """If LINGER is set, stays without work until the second SIGTERM.

        All figures of the job are final then.
        """
        end = time.monotonic() + bound
        while os.environ.get("LINGER") and self.asked < 2 and time.monotonic() < end:
            time.sleep(0.02)


def now():
    """CLOCK_MONOTONIC, ns."""
    return time.monotonic_ns()


def tell(times, so_far=False):
    """Writes the times to their file. `so_far`: no times yet, but the job is under way."""
    if TIMES:
        place = Path(TIMES + (".ready" if so_far else ".new"))
        place.write_text(json.dumps(times) + "\n")
        if not so_far:
            place.rename(TIMES)
