#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs a model from models.py for a launch trace, and writes the cost of each PyTorch operation of
a step in arithmetic and in bytes.

    weft profile --trace resnet50.trace -- python record.py resnet50 --mode infer --out costs.json

The first step of the trace is the counted one, the others are plain. With --varied there is a
counted step for each of the task's sizes, and the plain ones have any of them. In a counted step a
fill of MARKER bytes on the device announces each operation. In the launch trace it stands before
the operation's own launches, so scripts/traces knows the operation of each launch. Arithmetic is
counted by PyTorch's own formulas (torch.utils.flop_counter) for matrix products, convolutions and
attention, and by ours for cuDNN's LSTM. Bytes are those of all tensors that go in and come out.
"""

import argparse
import ctypes
import json
import random

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.flop_counter import flop_registry

from ending import settle
from zoo import MODELS

# A size that no other operation has: odd, no power of two, larger than a scalar.
MARKER = 4099


def tensors(tree):
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


# Operations that read some rows of a table: the table itself does not count.
LOOKUPS = ("aten::embedding", "aten::index", "aten::index_select", "aten::gather")


def moved(name, args, kwargs, out):
    """Bytes that an operation reads and writes."""
    written = sum(size(tensor) for tensor in tensors(out))
    if name in LOOKUPS:
        return 2 * written
    return written + sum(size(tensor) for tensor in tensors((args, kwargs)))


def size(tensor):
    # An expanded tensor is read once, whatever its shape.
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def lstm(x, hidden, layers):
    """Arithmetic of a forward pass: four gates, from the input and from the state, two operations
    per weight.
    """
    steps = x.shape[0] * x.shape[1]
    return sum(2 * steps * 4 * hidden * ((x.shape[-1] if layer == 0 else hidden) + hidden) for layer in range(layers))


def arithmetic(func, args, kwargs, out):
    formula = flop_registry.get(func._overloadpacket)
    if formula is not None:
        return formula(*args, **kwargs, out_val=out)
    name = func._schema.name
    # aten::lstm(input, hx, params, has_biases, num_layers, ...)
    if name == "aten::lstm":
        return lstm(args[0], args[1][0].shape[-1], args[4])
    # aten::_cudnn_rnn(input, weight, weight_stride0, weight_buf, hx, cx, mode, hidden_size,
    # proj_size, num_layers, batch_first, ...)
    if name == "aten::_cudnn_rnn":
        return lstm(args[0], args[7], args[9])
    if name == "aten::_cudnn_rnn_backward":
        # (input, weight, weight_stride0, weight_buf, hx, cx, output, grad_output, grad_hy, grad_cy,
        # mode, hidden_size, proj_size, num_layers, ...)
        return 2 * lstm(args[0], args[11], args[13])
    return 0


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.operations = []
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.fill = self.driver.cuMemsetD8Async
        self.fill.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p]
        self.room = torch.empty(MARKER, dtype=torch.uint8, device="cuda")

    def mark(self):
        if self.fill(self.room.data_ptr(), 0, MARKER, None) != 0:
            raise RuntimeError("the marking fill failed")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func._schema.name.startswith("profiler::"):
            return func(*args, **kwargs)
        # In inference mode composite operations arrive whole (a convolution by its dimensions, a
        # linear layer). They are decomposed here, except those that PyTorch does not decompose: it
        # has kernels for them, or decomposes them in C++ although there is Python code too.
        keys = torch._C.DispatchKey
        whole = func.has_kernel_for_dispatch_key(keys.CUDA) or keys.CompositeImplicitAutograd in func.py_kernels
        if func._overloadpacket not in flop_registry and not whole:
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        place = len(self.operations)
        self.operations.append(None)
        self.mark()
        out = func(*args, **kwargs)
        self.operations[place] = {
            "name": func._schema.name,
            "flops": int(arithmetic(func, args, kwargs, out) or 0),
            "bytes": int(moved(func._schema.name, args, kwargs, out)),
        }
        return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=list(MODELS))
    parser.add_argument("--mode", choices=["infer", "train"], default="infer")
    parser.add_argument("--graph", action="store_true", help="the plain steps with a CUDA graph; the counted one never has one")
    parser.add_argument("--varied", action="store_true", help="requests of different sizes")
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="number of plain steps (default: by --operations)")
    parser.add_argument("--operations", type=int, default=120_000, help="approximate number of operations in all (default: 120000)")
    parser.add_argument("--least", type=int, default=40, help="fewest steps (default: 40)")
    parser.add_argument("--most", type=int, default=300, help="most steps (default: 300)")
    parser.add_argument("--out", required=True, help="file for the operations' costs, as JSON")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)

    def step_of(**options):
        """A function that runs a step of a size, and the sizes."""
        task = MODELS[arguments.model](arguments.mode, **options)
        run = task.infer if arguments.mode == "infer" else task.train
        sizes = list(task.sizes) if arguments.varied else [None]

        def step(size):
            task.take(size)
            run()

        for size in sizes * arguments.warm_up:
            step(size)
        torch.cuda.synchronize()
        return step, sizes

    step, sizes = step_of()
    counting = Counting()
    # Once without marks: loads everything that the counting itself loads at its first use.
    with counting:
        step(sizes[0])
    torch.cuda.synchronize()
    counted = []
    for size in sizes:
        counting.operations = []
        torch.cuda.profiler.start()
        with counting:
            step(size)
        counted.append(counting.operations)
    torch.cuda.profiler.stop()
    by_size = arguments.operations // max(len(counted[0]), 1)
    steps = arguments.steps or min(max(by_size, arguments.least), arguments.most)
    choose = random.Random(arguments.model)
    order = [choose.randrange(len(sizes)) for _ in range(steps)]
    with open(arguments.out, "w") as file:
        json.dump({"operations": counted, "order": order}, file)

    if arguments.graph:
        step, _ = step_of(graph=True)
    # Refills the caches that the counting used.
    for size in sizes * 2:
        step(size)
    for place in order:
        torch.cuda.profiler.start()
        step(sizes[place])
    torch.cuda.profiler.stop()
    settle()


if __name__ == "__main__":
    main()
