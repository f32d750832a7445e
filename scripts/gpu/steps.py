# SPDX-License-Identifier: MIT OR Apache-2.0
"""A process that holds one model of scripts/workloads and works on order.

Two such processes can be measured in turn or side by side. Orders arrive on stdin. The answer to
each is one line of JSON on stdout:

    load MODEL infer|train [BATCH]    creates the model anew, drops the previous one
                                      {"ok": true, "client_priority": of MPS, or null}
    run SECONDS                       steps for that time, at least one: {"ms": [...]}
    serve SECONDS HOST_MS END [PRIO]  requests, each after HOST_MS of host work, on a stream of this
                                      priority; END, `wait` or `event`, is how an answer is detected
                                      {"begins": [...], "latencies": [...], "last": ...}
    train                             steps until the line `end` arrives: {"begins", "ends"}
    quit

Times are seconds of the machine's monotonic clock. The answer to a failed order is {"error":
reason}, and the process continues.
"""

import contextlib
import gc
import json
import os
import select
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workloads"))


class Holder:
    """The current model."""

    def __init__(self, torch, models, orders):
        self.torch, self.models, self.orders = torch, models, orders
        self.task = self.step = None

    def load(self, model, mode, batch="0"):
        self.task = self.step = None
        gc.collect()
        self.torch.cuda.empty_cache()
        self.torch.manual_seed(0)
        self.task = self.models[model](mode, int(batch) or None)
        self.step = self.task.infer if mode == "infer" else self.task.train
        for _ in range(3):
            self.step()
        self.torch.cuda.synchronize()
        return {"ok": True, "client_priority": os.environ.get("CUDA_MPS_CLIENT_PRIORITY")}

    def run(self, seconds):
        end, times = time.monotonic() + float(seconds), []
        while not times or time.monotonic() < end:
            begin = time.perf_counter()
            self.step()
            times.append((time.perf_counter() - begin) * 1e3)
        self.torch.cuda.synchronize()
        return {"ms": times}

    def serve(self, seconds, host_ms, end_by, priority=None):
        self.task.end = end_by
        stream = self.torch.cuda.stream(self.torch.cuda.Stream(priority=int(priority))) if priority else contextlib.nullcontext()
        end, begins, latencies = time.monotonic() + float(seconds), [], []
        with stream:
            while not begins or time.monotonic() < end:
                # Host work that needs no core, so that processes on few cores do not disturb each
                # other.
                time.sleep(float(host_ms) / 1e3)
                begins.append(time.monotonic())
                self.step()
                latencies.append(time.monotonic() - begins[-1])
        self.torch.cuda.synchronize()
        return {"begins": begins, "latencies": latencies, "last": time.monotonic()}

    def train(self):
        begins, ends = [], []
        while not begins or not select.select([self.orders], [], [], 0)[0]:
            begins.append(time.monotonic())
            self.step()
            ends.append(time.monotonic())
        self.orders.readline()
        self.torch.cuda.synchronize()
        return {"begins": begins, "ends": ends}


def main():
    # Output of libraries on stdout must not be taken for an answer.
    answers = sys.stdout
    sys.stdout = sys.stderr
    # Without a buffer: `select` on the file shows whether an order has arrived.
    lines = open(0, "rb", buffering=0)  # noqa: SIM115

    def answer(value):
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    try:
        import torch
        from zoo import MODELS

        torch.set_num_threads(1)
        torch.zeros(1, device="cuda")
    except Exception as error:  # noqa: BLE001
        answer({"error": f"{type(error).__name__}: {error}"})
        return
    holder = Holder(torch, MODELS, lines)
    orders = {name: getattr(holder, name) for name in ("load", "run", "serve", "train")}
    answer({"ok": True})
    for line in iter(lines.readline, b""):
        order, *words = line.decode().split()
        if order not in orders:
            break
        try:
            answer(orders[order](*words))
        except Exception as error:  # noqa: BLE001
            answer({"error": f"{type(error).__name__}: {error}"})


main()
