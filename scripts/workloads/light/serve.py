"""A service: it answers a request every 20 ms or so, until SIGTERM or so many of them.

    python serve.py [--requests N]

A request is 24 kernels and the wait for them.
"""

import argparse
import time

import gpu

# Of 120 us each: a request takes what the demo's does. Where a GPU takes turns, 0.1 ms of it is the
# switch to the service, whoever shares.
KERNELS, WIDTH = 24, 32
# Work of the host's own, or the wait for the next client.
PAUSE_S = 0.02
# Requests before it is called ready.
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
