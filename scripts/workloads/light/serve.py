# SPDX-License-Identifier: MIT OR Apache-2.0
"""A service: it answers a request about every 20 ms, until SIGTERM or for N requests.

    python serve.py [--requests N]

A request is 24 kernels and the wait for them.
"""

import argparse
import time

import gpu

# Kernels of 120 us each: a request takes as long as the demo's. If a GPU takes turns, 0.1 ms of it
# is the switch to the service, with weft or without.
KERNELS, WIDTH = 24, 32
# Host work, or the wait for the next client.
PAUSE_S = 0.02
# Requests before the service counts as ready.
WARM = 5


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=0)
    arguments = parser.parse_args()
    device = gpu.Gpu()
    kernel = device.kernel_of(WIDTH)
    until, times = gpu.Until(arguments.requests), []
    while until.goes_on():
        began = gpu.now()
        for _ in range(KERNELS):
            kernel()
        device.finish()
        times.append((began, gpu.now()))
        if len(times) == WARM:
            gpu.tell(times, so_far=True)
        time.sleep(PAUSE_S)
    gpu.tell(times)
    until.linger()
    print("requests", len(times))


main()
