# SPDX-License-Identifier: MIT OR Apache-2.0
"""A model server that is idle between its requests.

It answers a request for each file MOVED_READY.N that appears, and writes MOVED_READY.N.answer. The
weights are 72 MiB, of which it computes with parts: the simulated GPU computes no arithmetic on
whole large tensors. It compares all of them with the host's at the end.
"""

import hashlib
import os
import time
from pathlib import Path

import client
import numpy
import torch

MIB = 1 << 20
PART = 64


def body():
    ready, running = os.environ["MOVED_READY"], Path(os.environ["MOVED_RUNNING"])
    torch.manual_seed(0)
    host = [numpy.arange(mib * MIB // 4, dtype=numpy.float32) % 1024 for mib in (8, 24, 40)]
    weights = [torch.from_numpy(one).cuda() for one in host]
    layer = torch.nn.Linear(1024, 1024).cuda()
    graph, batch = torch.cuda.CUDAGraph(), torch.ones(PART, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        doubled = batch * 2.0

    @torch.inference_mode()
    def answer(number):
        batch.copy_(torch.arange(PART) + number % 2)
        graph.replay()
        layer(torch.ones(1024, 1024, device="cuda"))
        sums = [weights[at][number % 2 * PART :][:PART] + doubled for at in range(3)]
        found = b"".join(one.cpu().numpy().tobytes() for one in sums)
        expected = [one[number % 2 * PART :][:PART] + 2 * (numpy.arange(PART, dtype=numpy.float32) + number % 2) for one in host]
        assert found == b"".join(one.tobytes() for one in expected), number
        return hashlib.sha256(found).hexdigest()

    answers = []
    Path(ready).touch()
    while running.exists():
        asked = Path(f"{ready}.{len(answers)}")
        if not asked.exists():
            time.sleep(0.005)
            continue
        begun = time.monotonic()
        answers.append(answer(len(answers)))
        took = time.monotonic() - begun
        part = asked.with_suffix(".part")
        part.write_text(f"{answers[-1]} {took}")
        part.rename(f"{asked}.answer")
    for one, expected in zip(weights, host, strict=True):
        assert numpy.array_equal(one.cpu().numpy(), expected)
    return {"answers": answers}


client.main(body)
