# SPDX-License-Identifier: MIT OR Apache-2.0
"""Estimates the durations of a step's launches on an A100, from the arithmetic and bytes of their
PyTorch operations.

An estimate, not a measurement. scripts/workloads/estimate.py knows only the launch's shape; this
program also knows the tensors. So a kernel identity has one duration for each place in the model
with other tensors (the case in FIKIT's figure 5).

* An operation with arithmetic (matrix product, convolution, attention, LSTM) spreads it over its
  matrix kernels by their threads. The time of each is its arithmetic over the rate of its unit
  (TF32 on tensor cores if the name says so, else FP32), less the part of an incomplete last wave of
  blocks that stays idle. It is at least its bytes over the memory's rate. The operation's other
  kernels (layout changes, sums of partial products) move 16 bytes per thread, at most the
  operation's bytes.
* Any other operation spreads its bytes over its kernels by their threads.
* Every kernel takes START in addition.
* Variation between runs: each step runs at its own clock, each launch varies round that, and a few
  are delayed. No available source gives these spreads for an A100 at fixed clocks. They are
  assumptions, and each trace's note states them. All of them come from a seed.
"""

import math
import random
import re

# A100-SXM4-40GB, from its data sheet: multiprocessors; operations a nanosecond with TF32 on tensor
# cores and with FP32 without them; bytes a nanosecond.
PROCESSORS = 108
TF32 = 156_000
FP32 = 19_500
MEMORY = 1_555
# The fraction of that which large kernels of cuBLAS and cuDNN reach; the fraction of the memory's
# rate that streaming kernels reach.
TF32_REACHED, FP32_REACHED, MEMORY_REACHED = 0.55, 0.75, 0.80
# Duration of an empty kernel, ns.
START = 2_000
# PCIe 4 x16 with pinned memory, bytes a nanosecond; fixed time of a copy, ns.
LINK, COPY_START = 24, 1_500

MATRIX = re.compile(r"gemm|gemv|xmma|cutlass|conv|wgrad|dgrad|fprop|scudnn|fmha|flash|winograd", re.IGNORECASE)
# Kernels inside convolutions that do no arithmetic themselves.
BESIDE = re.compile(r"elementwise|Nhwc|Nchw|splitKreduce|computeOffsets|kernel_helper|ReduceSplitK|reduce_kernel", re.IGNORECASE)
TENSOR = re.compile(r"tensorop|tf32|s1688|s16816|h884|fmha|flash|bf16", re.IGNORECASE)

# Assumed spreads: sigma of a step's clock, of a launch of matrix kernels and of other launches
# (both lognormal); the part of launches that are delayed, and the largest factor of a delay.
STEP, MATRIX_SPREAD, OTHER_SPREAD, HELD_UP, HELD_UP_BY = 0.01, 0.02, 0.04, 0.002, 2.5

NOTE = (
    f"device times are estimates for an A100 (roofline of the tensors), spread by assumption: sigma {STEP:.0%} a step, {MATRIX_SPREAD:.0%}/{OTHER_SPREAD:.0%} "
    f"a matrix/other launch, {HELD_UP:.1%} held up by up to {HELD_UP_BY}x"
)


def is_matrix(symbol):
    return bool(MATRIX.search(symbol)) and not BESIDE.search(symbol)


def threads(kernel):
    return max(math.prod(kernel["grid"]) * math.prod(kernel["block"]), 1)


def matrix_time(kernel, flops, moved):
    rate = TF32 * TF32_REACHED if TENSOR.search(kernel["symbol"]) else FP32 * FP32_REACHED
    waves = math.prod(kernel["grid"]) / PROCESSORS
    full = waves / math.ceil(waves) if waves > 0 else 1
    return max(flops / (rate * full), moved / (MEMORY * MEMORY_REACHED))


def operation_times(kernels, flops, moved):
    """Durations of the kernels of one operation, ns."""
    memory = MEMORY * MEMORY_REACHED
    matrix = [is_matrix(kernel["symbol"]) for kernel in kernels] if flops else [False] * len(kernels)
    # If no name reveals a matrix kernel, all of the operation's kernels count as such.
    if flops and not any(matrix):
        matrix = [True] * len(kernels)
    total = sum(threads(kernel) for kernel, counts in zip(kernels, matrix) if counts) or 1
    everything = sum(threads(kernel) for kernel in kernels) or 1
    times = []
    for kernel, counts in zip(kernels, matrix):
        if counts:
            share = threads(kernel) / total
            times.append(START + matrix_time(kernel, flops * share, moved * share))
        elif flops:
            times.append(START + min(16 * threads(kernel), moved) / memory)
        else:
            times.append(START + moved * threads(kernel) / everything / memory)
    return times


def copy_time(direction, size):
    if direction in ("HostToDevice", "DeviceToHost"):
        return COPY_START + size / LINK
    return START + (size if direction == "Fill" else 2 * size) / (MEMORY * MEMORY_REACHED)


class Spread:
    """Durations with their variation from step to step."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.clock = 1.0

    def next_step(self):
        self.clock = math.exp(self.random.gauss(0, STEP))

    def vary(self, time, matrix):
        factor = math.exp(self.random.gauss(0, MATRIX_SPREAD if matrix else OTHER_SPREAD))
        if self.random.random() < HELD_UP:
            factor *= self.random.uniform(1.2, HELD_UP_BY)
        return max(int(time * factor * self.clock), 500)
