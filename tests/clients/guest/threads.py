# SPDX-License-Identifier: MIT OR Apache-2.0
"""Two dozen threads, each with a stream of its own and a priority of three, on a stack of 64
KiB."""

import threading

import plain

threading.stack_size(64 * 1024)
gpu = plain.Gpu()
right = []


def work(number):
    gpu.enter()
    stream, memory = gpu.stream(-(number % 3)), gpu.memory()
    right.extend(gpu.work(20, stream, memory, first=100 * turn) == 100 * turn + 19 for turn in range(5))


threads = [threading.Thread(target=work, args=(number,)) for number in range(24)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(right), all(right))
