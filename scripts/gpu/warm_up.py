# SPDX-License-Identifier: MIT OR Apache-2.0
"""The first start of PyTorch on a machine, timed: later starts find the files in memory. Prints one
JSON line.
"""

import importlib.util
import json
import sys
import time


def main():
    said, begin = {}, time.perf_counter()

    def lap(name):
        nonlocal begin
        said[name] = round(time.perf_counter() - begin, 3)
        begin = time.perf_counter()

    import torch

    lap("import_torch")
    if importlib.util.find_spec("torchvision"):
        import torchvision  # noqa: F401

        lap("import_torchvision")
    for name in ("first_product", "second_product"):
        x = torch.ones(64, 64, device="cuda")
        (x @ x).sum().item()
        lap(name)
    json.dump(said, sys.stdout)
    print(flush=True)


if __name__ == "__main__":
    main()
