# SPDX-License-Identifier: MIT OR Apache-2.0
"""A training job: steps of a vision model with SGD on random images.

A plain PyTorch program. It knows nothing of weft, of the simulated GPU, nor of other jobs.

    python training.py [--steps N | --seconds S] [--model NAME] [--batch N] [--report-every N]
                       [--times FILE]

It ends after N steps, after S seconds, or at SIGTERM after the current step. It writes the time of
each step's end to FILE as JSON. The loss is read after every step, or after every few steps. In
between, steps are only launched; they count as ended at equal distances between two reads.
"""

import argparse
import json
import os
import signal
import time

import torch
import torchvision

from ending import settle


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--warm-up", type=int, default=2, help="steps that are not timed")
    parser.add_argument("--report-every", type=int, default=1, help="steps between two reads of the loss")
    parser.add_argument("--times", help="write the times here, as JSON: the end of each step, and the process's own time at that end")
    mark = "cuProfilerStart before each timed step: a step's mark in a launch trace"
    parser.add_argument("--mark", action="store_true", help=mark)
    parser.add_argument("--ready", help="write this file after the warm-up")
    arguments = parser.parse_args()

    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = getattr(torchvision.models, arguments.model)(weights=None).cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()
    images = torch.rand(arguments.batch, 3, 224, 224).pin_memory()
    labels = torch.randint(0, 1000, (arguments.batch,)).pin_memory()
    ends, spent, first = [], [], None
    last, launched = None, 0
    for number in range(10**9):
        if number == arguments.warm_up:
            torch.cuda.synchronize()
            if arguments.ready:
                open(arguments.ready, "w").close()
            first = time.monotonic()
            last = (first, time.process_time())
        if arguments.mark and first is not None:
            torch.cuda.profiler.start()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(images.cuda(non_blocking=True)), labels.cuda(non_blocking=True))
        loss.backward()
        optimizer.step()
        if first is None:
            if stop:
                break
            continue
        launched += 1
        done = stop or (arguments.steps and len(ends) + launched >= arguments.steps)
        if launched == arguments.report_every or done:
            loss.item()
            now = (time.monotonic(), time.process_time())
            for step in range(1, launched + 1):
                ends.append(last[0] + (now[0] - last[0]) * step / launched)
                spent.append(last[1] + (now[1] - last[1]) * step / launched)
            last, launched = now, 0
            if done or (arguments.seconds and now[0] - first >= arguments.seconds):
                break
    torch.cuda.synchronize()
    if arguments.times:
        with open(arguments.times + ".new", "w") as file:
            times = {"pid": os.getpid(), "first": first, "ends": ends, "cpu": spent, "last": time.monotonic()}
            json.dump(times, file)
        os.replace(arguments.times + ".new", arguments.times)
    print(f"training: {len(ends)} steps", flush=True)
    settle()


main()
