# SPDX-License-Identifier: MIT OR Apache-2.0
"""Ends a PyTorch program that ran a backward pass without a race inside PyTorch.

PyTorch's autograd threads drop a pass's Python objects after the pass has returned. If the
interpreter ends meanwhile, Python ends such a thread by unwinding it, and C++ then calls
std::terminate (pytorch/pytorch issues 38230 and 190489, open): "terminate called without an active
exception", exit by SIGABRT, with weft and without it. On two busy cores 10 of 100 runs of an LSTM
without weft ended so.
"""

import os
import time


def settle(bound=5.0):
    """Lets the autograd threads drop their objects. Returns once all of them slept in each of four
    samples 5 ms apart, or after `bound` s.

    Sampling releases the interpreter's lock, so a thread that sleeps in all samples does not wait
    for that lock.
    """
    end = time.monotonic() + bound
    quiet = 0
    while quiet < 4 and time.monotonic() < end:
        time.sleep(0.005)
        quiet = 0 if any(map(busy, os.listdir("/proc/self/task"))) else quiet + 1


def busy(thread):
    """Whether it is an autograd thread that runs or could run."""
    try:
        with open(f"/proc/self/task/{thread}/stat") as file:
            name, _, state = file.read().partition("(")[2].rpartition(") ")
    except OSError:
        return False
    return name.startswith("pt_autograd") and not state.startswith("S")
