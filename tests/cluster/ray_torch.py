# SPDX-License-Identifier: MIT OR Apache-2.0
"""A serving actor and a training actor of PyTorch on one GPU, for ray_started.py.

TORCH names the folder with PyTorch: it is not in Ray's own environment.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import ray

import weft_gpu
import weft_gpu.ray

# Requests of the service, seconds between two, and rows and width of both models.
REQUESTS, GAP_S = 20, 0.01
ROWS, WIDTH = 32, 256
# Seconds for one answer, on two busy cores: PyTorch's start is most of it.
BOUND_S = 240


def model():
    """PyTorch and a small model on the GPU."""
    sys.path.append(os.environ["TORCH"])
    import torch

    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)]
    return torch, torch.nn.Sequential(*layers).cuda()


@ray.remote(num_gpus=0.5, runtime_env=weft_gpu.ray.runtime_env(priority="high", name="serving"))
class Serving:
    """Answers requests."""

    def __init__(self):
        self.torch, self.model = model()

    def answer(self):
        """Seconds of each request."""
        taken = []
        with self.torch.no_grad():
            for _ in range(REQUESTS):
                time.sleep(GAP_S)
                begin = time.monotonic()
                self.model(self.torch.ones(ROWS, WIDTH, device="cuda")).sum().item()
                taken.append(time.monotonic() - begin)
        return taken


@ray.remote(num_gpus=0.5, runtime_env=weft_gpu.ray.runtime_env(priority="low", name="training"))
class Training:
    """Trains until there is a file `end`."""

    def __init__(self):
        self.torch, self.model = model()

    def train(self, folder):
        """Steps until there is a file `end`; `trains` is there once the first is done."""
        parts = self.model.parameters()
        optimizer, steps = self.torch.optim.SGD(parts, lr=0.01), 0
        end = time.monotonic() + BOUND_S
        while not (folder / "end").exists() and time.monotonic() < end:
            optimizer.zero_grad()
            out = self.model(self.torch.ones(ROWS, WIDTH, device="cuda"))
            out.square().mean().backward()
            optimizer.step()
            self.torch.cuda.synchronize()
            steps += 1
            (folder / "trains").touch()
        return steps


def clients():
    """The broker's figures of both actors, by name."""
    words = [str(weft_gpu.program()), "status", "--json"]
    status = json.loads(subprocess.run(words, capture_output=True, text=True).stdout)
    kept = ("priority", "mode", "launches", "device_uuid")
    rows = [one for one in status["clients"] if one["name"] in ("serving", "training")]
    return {one["name"]: {name: one[name] for name in kept} for one in rows}


def play(folder):
    """The service without other jobs, then together with the training."""
    folder = Path(folder)
    serving = Serving.remote()
    told = {"alone": ray.get(serving.answer.remote(), timeout=BOUND_S)}
    training = Training.remote()
    trained = training.train.remote(folder)
    end = time.monotonic() + BOUND_S
    while not (folder / "trains").exists() and time.monotonic() < end:
        ray.wait([trained], timeout=0.1)
    before = clients()
    told["beside"] = ray.get(serving.answer.remote(), timeout=BOUND_S)
    told["clients"] = clients()
    told["launched"] = {
        name: row["launches"] - before[name]["launches"] for name, row in told["clients"].items()
    }
    (folder / "end").touch()
    told["steps"] = ray.get(trained, timeout=BOUND_S)
    return told
