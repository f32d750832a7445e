"""A training job: steps of a vision model with SGD on random images.

A plain PyTorch program. It knows nothing of weft, of the simulated GPU, nor of the job beside it.

    python training.py [--steps N | --seconds S] [--model NAME] [--batch N] [--times FILE]

It ends after N steps, after S seconds, or at SIGTERM after the step it is in, and writes when each step ended to FILE as JSON.
The loss is read every few steps, as training loops do; in between, steps are only launched.
"""

import argparse
import json
import os
import signal
import time

import torch
import torchvision


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--warm-up", type=int, default=2, help="steps that are not timed")
    parser.add_argument("--report-every", type=int, default=1, help="steps between two reads of the loss")
    parser.add_argument("--times", help="write the times here, as JSON: when each step ended, and the process's own time at its end")
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
    for number in range(10**9):
        if number == arguments.warm_up:
            torch.cuda.synchronize()
            if arguments.ready:
                open(arguments.ready, "w").close()
            first = time.monotonic()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(images.cuda(non_blocking=True)), labels.cuda(non_blocking=True))
        loss.backward()
        optimizer.step()
        if number % arguments.report_every == 0:
            loss.item()
        if first is not None:
            ends.append(time.monotonic())
            spent.append(time.process_time())
            done = (arguments.steps and len(ends) >= arguments.steps) or (
                arguments.seconds and ends[-1] - first >= arguments.seconds
            )
            if done or stop:
                break
        elif stop:
            break
    torch.cuda.synchronize()
    if arguments.times:
        with open(arguments.times + ".new", "w") as file:
            times = {"pid": os.getpid(), "first": first, "ends": ends, "cpu": spent, "last": time.monotonic()}
            json.dump(times, file)
        os.replace(arguments.times + ".new", arguments.times)
    print(f"training: {len(ends)} steps")


main()
