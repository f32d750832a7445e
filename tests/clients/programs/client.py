# SPDX-License-Identifier: MIT OR Apache-2.0
"""The common part of every client program: it runs a body and writes the result as one JSON line to
the file named first on the command line.

With CLIENT_HASHES set the result also holds a hash of each piece of data that the body kept:
scripts/gpu-suite compares them between runs on a real GPU. The simulated GPU computes few values,
so the client matrix does not ask for them; without the variable `kept` does nothing.

The programs themselves are ordinary CUDA programs: they know nothing of weft nor of the simulated
GPU.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "scripts" / "workloads"))

from ending import settle  # noqa: E402

hashes = {}


def kept(name, data):
    """Notes the content of `data`: a tensor or array of any framework, or a sequence of them."""
    if not os.environ.get("CLIENT_HASHES"):
        return
    digest = hashlib.sha256()
    for piece in data if isinstance(data, (list, tuple)) else [data]:
        digest.update(raw(piece))
    hashes[name] = digest.hexdigest()[:16]


def raw(piece):
    """The bytes of a tensor or array, copied to the host."""
    if type(piece).__module__.startswith("torch"):
        import torch

        # As bytes: numpy has no bfloat16.
        return piece.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    for copy in ("get", "copy_to_host", "numpy"):
        if hasattr(piece, copy):
            return getattr(piece, copy)().tobytes()
    import numpy

    return numpy.asarray(piece).tobytes()


def main(body):
    if os.environ.get("CLIENT_HASHES") and "torch" in sys.modules:
        # Weights and inputs that the body draws are the same in every run.
        sys.modules["torch"].manual_seed(0)
    result = body() or {}
    if hashes:
        result = {**result, "hashes": hashes}
    path = sys.argv[1]
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(json.dumps({"ok": True, **result}) + "\n")
    os.replace(path + ".new", path)
    print(f"{os.path.basename(sys.argv[0])}: done", flush=True)
    if "torch" in sys.modules:
        settle()
