#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Estimates the durations of the kernels in a simulated device's log on an A100, and prints a table
for SIMGPU_CONFIG.

    scripts/workloads/estimate.py device.log... > scripts/workloads/durations.toml

The estimate is an assumption, not a measurement. By a kernel's name and launch shape only, it
distinguishes matrix kernels (a time per tile and wave) from kernels that move memory (bytes per
thread over the memory's rate). Absolute times are right within a factor of two or three at best.
The demo needs only their spread (a few microseconds to a few hundred), their order, and that each
kernel of a job takes about the same time in every launch.
"""

import json
import math
import re
import sys

# A100: 108 multiprocessors, 1.55 TB/s (1.2 of it in practice).
PROCESSORS = 108
BYTES_PER_NS = 1200
# No kernel is shorter than this: start, one pass over little data, end.
SHORTEST_NS = 2500

MATRIX = re.compile(r"gemm|xmma|cutlass|conv|wgrad|dgrad|fprop", re.IGNORECASE)
# A tile of 128 x 128 over a depth of 600 at two thirds of the TF32 rate, one per multiprocessor.
TILE_NS = 16_000
# Batch normalisation in training walks whole channels in few blocks. The launch does not show the
# amount of work.
NORMALISE_TRAINING_NS = 55_000

# Bytes that a thread reads and writes, by the kernel's name; the first match counts.
BYTES_PER_THREAD = [
    (re.compile(r"vectorized_elementwise|elementwise_kernel|nchwToNhwc|nhwcToNchw"), 16),
    (re.compile(r"multi_tensor_apply"), 1600),
    (re.compile(r"pool"), 12),
    (re.compile(r"reduce|softmax|bn_fw_inf|nll_loss|CatArray"), 48),
    (re.compile(r""), 32),
]


def estimate(name, grid, block):
    blocks, threads = math.prod(grid), math.prod(grid) * math.prod(block)
    if re.search(r"bn_fw_tr|bn_bw|batch_norm", name):
        return NORMALISE_TRAINING_NS
    # Layout changes around convolutions have no "conv" in their names, but their helpers may.
    if MATRIX.search(name) and "elementwise" not in name and blocks > 1:
        return SHORTEST_NS + math.ceil(blocks / PROCESSORS) * TILE_NS * min(math.prod(block), 256) // 256
    size = next(size for pattern, size in BYTES_PER_THREAD if pattern.search(name))
    return SHORTEST_NS + threads * size // BYTES_PER_NS


def main():
    kernels = {}
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            for line in file:
                record = json.loads(line)
                if record["op"] == "kernel":
                    kernels[record["name"], tuple(record["grid"]), tuple(record["block"])] = True
    print("# Kernel times of the demo's jobs on the simulated GPU. Estimated for an A100 from names and launch shapes by")
    print("# scripts/workloads/estimate.py (which explains the method); an assumption, not a measurement. Other kernels take the device's default.")
    print("\n[device]\n# Kernel times vary a little on a real device too.\njitter = 0.03\n")
    for name, grid, block in sorted(kernels):
        ns = estimate(name, grid, block)
        # TOML allows one line per entry only as a whole inline array.
        print(f'[[kernel]]\nname = "{name}"\ngrid = {list(grid)}\nblock = {list(block)}\nns = {ns}')


main()
