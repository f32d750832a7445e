#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs a PyTorch program and writes down the tensors that each of its operations was given and
made, and its launches.

    python tests/clients/operands.py FILE PROGRAM [ARGUMENT...]
                       on the simulated GPU; tests/clients/test_prediction.py does it

The framework knows its tensors to the byte, whatever closed library runs an operation on them: a
convolution reads its whole input and weight and writes its whole output, with cuDNN or without.
`weft-lab memory prediction` takes it as exact for a launch of an operation if each of the launch's
pointers is the begin of one of the operation's tensors. If a pointer is something else (a library's
own workspace), the launch stays a guess. Excluded are operations that choose by data which bytes
they read (embeddings, indices, losses by label), and operations over lists of tensors, whose
launches each take some of them.

Each line has the number of the last launch before the operation, that of its last launch, its name,
whether it uses whole tensors, and its tensors. A tensor has its address, its access (0 read, 1
written, 2 both), and its runs of bytes: offset from the address and size.

It watches operations as they reach the device (a dispatch mode, also for the backward pass), so the
program makes the same launches as without it.
"""

import ctypes
import functools
import json
import os
import runpy
import sys

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# The data decide which parts of its operands such an operation uses.
BY_DATA = (
    "embedding",
    "index",
    "gather",
    "scatter",
    "nll_loss",
    "take",
    "masked",
    "nonzero",
    "multinomial",
    "topk",
    "sort",
    "unique",
    "put",
    "grid_sampler",
    "roi",
    "nms",
)

# Operations over lists of tensors.
LISTS = ("_foreach", "_fused_ad", "_fused_sgd", "_amp_")

# Most runs of bytes of one tensor; a tensor with more is left out.
RUNS = 1024


@functools.cache
def runs_of(sizes, strides, element):
    """Offset and size of each run of bytes of a tensor, or None if there are too many."""
    dimensions = sorted((stride * element, size) for size, stride in zip(sizes, strides) if size > 1 and stride > 0)
    run, starts = element, [0]
    for stride, size in dimensions:
        if len(starts) == 1 and stride <= run:
            run += (size - 1) * stride
        elif len(starts) * size > RUNS:
            return None
        else:
            starts = [start + n * stride for n in range(size) for start in starts]
    return [[start, run] for start in sorted(starts)]


def driver():
    """The simulated driver, past weft: by its own name, which weft does not take."""
    return ctypes.CDLL(os.path.realpath(os.environ["WEFT_CUDA_LIBRARY"]))


class Operands(TorchDispatchMode):
    """Writes a line for each operation that launched something."""

    def __init__(self, file):
        super().__init__()
        self.file = file
        self.launches = driver().simgpuLaunches
        self.launches.restype = ctypes.c_uint64

    def __torch_dispatch__(self, operation, types, arguments=(), named=None):
        before = self.launches()
        result = operation(*arguments, **(named or {}))
        after = self.launches()
        if after > before:
            self.write(operation, before, after, arguments, named or {}, result)
        return result

    def write(self, operation, before, after, arguments, named, result):
        schema = operation._schema.arguments
        found = {}

        def add(value, access):
            if not isinstance(value, torch.Tensor) or value.device.type != "cuda" or value.numel() == 0:
                return True
            runs = runs_of(tuple(value.shape), tuple(value.stride()), value.element_size())
            if runs is None:
                return False
            key = value.data_ptr()
            if key in found and found[key][1] != runs:
                # Two tensors that begin together: the pointer does not identify the one that a
                # launch means.
                return False
            known = found.get(key)
            found[key] = (access if known is None or known[0] == access else 2, runs)
            return True

        whole = not any(name in operation.name() for name in BY_DATA + LISTS)
        given = [(schema[at], value) for at, value in enumerate(arguments)]
        given += [(argument, named[argument.name]) for argument in schema if argument.name in named]
        for argument, value in given:
            writes = argument.alias_info is not None and argument.alias_info.is_write
            for one in tree_leaves(value):
                whole &= add(one, 2 if writes else 0)
        for one in tree_leaves(result):
            known = isinstance(one, torch.Tensor) and found.get(one.data_ptr())
            whole &= add(one, known[0] if known else 1)
        tensors = [[address, access, runs] for address, (access, runs) in found.items()]
        self.file.write(json.dumps([before, after, operation.name(), whole, tensors]) + "\n")


def main():
    if len(sys.argv) < 3:
        sys.exit("operands: give FILE PROGRAM [ARGUMENT...]")
    path, program = sys.argv[1:3]
    sys.argv = sys.argv[2:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(program)))
    with open(path, "x") as file, Operands(file):
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
