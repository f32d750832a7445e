# SPDX-License-Identifier: MIT OR Apache-2.0
"""Prints the data of torch_matmul.py's chains, computed on the CPU, as JSON.

With the argument `early` each 50th operation takes the result that its predecessor of the same
shape had, as a launch would that overtook the one before it.
"""

import itertools
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "clients" / "programs"))

import client
import torch
import torch_matmul
from torch.utils._python_dispatch import TorchDispatchMode

EVERY = 50


class Early(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.before, self.numbers = {}, itertools.count(1)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, torch.Tensor):
            return result
        key = (func, result.shape, result.dtype)
        before, self.before[key] = self.before.get(key), result
        return result if before is None or next(self.numbers) % EVERY else before


found = {}
client.kept = lambda name, data: found.update({name: data.float().tolist()})
if sys.argv[1:] == ["early"]:
    with Early():
        torch_matmul.products("cpu", width=256)
else:
    torch_matmul.products("cpu", width=256)
json.dump(found, sys.stdout)
