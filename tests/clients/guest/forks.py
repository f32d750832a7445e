# SPDX-License-Identifier: MIT OR Apache-2.0
"""Forks while other threads launch. The driver refuses a child's calls at once; a fork server's
children are processes of their own."""

import ctypes
import multiprocessing
import os
import subprocess
import threading

import plain


def child(number):
    return plain.Gpu().work(40 + number)


def refused(gpu):
    """The answers in a forked child: none is success."""
    address = ctypes.c_uint64()
    return [
        gpu.cuda.cuInit(0),
        gpu.cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(64)),
        gpu.cuda.cuLaunchKernel(gpu.fill_kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None),
        gpu.cuda.cuCtxSynchronize(),
    ]


def main():
    with multiprocessing.get_context("forkserver").Pool(2) as pool:
        print(pool.map(child, range(4)))
    gpu, going = plain.Gpu(), True

    def busy():
        gpu.enter()
        stream = gpu.stream()
        while going:
            gpu.work(30, stream)

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    ends = []
    for number in range(20):
        pid = os.fork()
        if pid == 0:
            os._exit(0 if all(refused(gpu)) else 1)
        ends.append(os.waitpid(pid, 0)[1])
        if number % 10 == 0:
            subprocess.run(["true"], check=True)
    going = False
    for thread in threads:
        thread.join()
    print(ends == [0] * 20, gpu.work(10))


if __name__ == "__main__":
    main()
