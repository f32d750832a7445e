# SPDX-License-Identifier: MIT OR Apache-2.0
"""A process that ends in the way named by its argument while four threads launch."""

import atexit
import os
import signal
import sys
import threading

import plain

gpu = plain.Gpu()


def busy():
    gpu.enter()
    stream = gpu.stream()
    while True:
        gpu.work(50, stream)


def terminated(*_):
    print("terminated", gpu.work(20), flush=True)
    os._exit(5)


for _ in range(4):
    threading.Thread(target=busy, daemon=True).start()
print(gpu.work(100), flush=True)
match sys.argv[1]:
    case "exit":
        atexit.register(lambda: print("last", gpu.work(20)))
    case "_exit":
        os._exit(3)
    case "abort":
        os.abort()
    case "exec":
        os.execvp("sh", ["sh", "-c", "echo another; exit 4"])
    case "signal":
        signal.signal(signal.SIGTERM, terminated)
        os.kill(os.getpid(), signal.SIGTERM)
        while True:
            gpu.work(50)
    case "interrupt":
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
        try:
            while True:
                gpu.work(50)
        except KeyboardInterrupt:
            print("interrupted", gpu.work(7), flush=True)
            os._exit(6)
