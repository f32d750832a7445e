# SPDX-License-Identifier: MIT OR Apache-2.0
"""Device memory that weft moves while the job works on it. The job works until a file is gone, and
its results stay right."""

import sys
import time
from ctypes import c_uint64
from pathlib import Path

import plain

SIZE = 448 << 20
PIECE = 64 << 20
goes_on = Path(sys.argv[1])

gpu = plain.Gpu()
memory = gpu.memory(SIZE)
last = c_uint64(memory.value + SIZE - 4 * plain.COUNT)
gpu.fill(memory, 7)
while goes_on.exists():
    # All of it is named, piece by piece.
    for at in range(PIECE, SIZE, PIECE):
        gpu.fill(c_uint64(memory.value + at), 1)
    gpu.work(20, memory=last)
    time.sleep(0.01)
print(gpu.download(memory)[0], gpu.work(20, memory=last))
