# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs of this folder, named by the arguments, one after the other in one process.

To import PyTorch takes several times what one of them computes.
"""

import importlib
import sys

import client
import torch


def body():
    torch.manual_seed(0)
    results = {name: importlib.import_module(name).body() for name in sys.argv[2:]}
    torch.cuda.synchronize()
    return results


client.main(body)
