# SPDX-License-Identifier: MIT OR Apache-2.0
"""A service: it answers requests one after another with a vision model, and works on the host
between them.

A plain PyTorch program. It knows nothing of weft, of the simulated GPU, nor of other jobs.

    python service.py [--requests N | --seconds S] [--host-ms MS | --arrivals FILE] [--model NAME]
                      [--times FILE]

A request has these steps: prepare the image on the host (--host-ms of work, like decoding and
resizing), copy it to the GPU, run the model, copy the answer back. The measured time is the time
that a client waits: from the copy to the answer on the host. The times go to FILE as JSON.

With --arrivals requests arrive at their own times, whether or not the previous one is answered.
Then a client waits from its request's arrival to the answer.
"""

import argparse
import json
import os
import signal
import time

import torch
import torchvision


def prepare(seconds, image):
    """Works on the host for the time of decoding and resizing an image."""
    end = time.monotonic() + seconds
    # A part is real work on the image; for the rest of the time the service waits, as for its next
    # client.
    image.add_(1e-6)
    sleep_until(end)


def sleep_until(end):
    while (left := end - time.monotonic()) > 0:
        time.sleep(left)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0, help="seconds to run, instead of a number of requests")
    parser.add_argument("--warm-up", type=int, default=5, help="requests that are not timed")
    parser.add_argument("--host-ms", type=float, default=5, help="host work before each request")
    arrivals = "times between two arrivals of timed requests, s: a list in JSON"
    parser.add_argument("--arrivals", metavar="FILE", help=arrivals)
    parser.add_argument("--batch", type=int, default=1)
    mark = "cuProfilerStart before each timed request: a step's mark in a launch trace"
    parser.add_argument("--mark", action="store_true", help=mark)
    parser.add_argument("--times", help="write the times here, as JSON")
    parser.add_argument("--ready", help="write this file after the warm-up")
    arguments = parser.parse_args()

    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = getattr(torchvision.models, arguments.model)(weights=None).cuda().eval()
    image = torch.rand(arguments.batch, 3, 224, 224)
    latencies, begins = [], []
    distances = None
    if arguments.arrivals:
        with open(arguments.arrivals) as file:
            distances = json.load(file)
    with torch.inference_mode():
        for number in range(10**9):
            if number == arguments.warm_up:
                if arguments.ready:
                    open(arguments.ready, "w").close()
                first = arrival = time.monotonic()
            if distances and number >= arguments.warm_up:
                arrival += distances[len(latencies) % len(distances)]
                sleep_until(arrival)
                begin = arrival
            else:
                prepare(arguments.host_ms / 1e3, image)
                begin = time.monotonic()
            if arguments.mark and number >= arguments.warm_up:
                torch.cuda.profiler.start()
            answer = model(image.cuda()).argmax(dim=1).cpu()
            end = time.monotonic()
            if number >= arguments.warm_up:
                latencies.append(end - begin)
                begins.append(begin)
                enough = end - first >= arguments.seconds if arguments.seconds else len(latencies) >= arguments.requests
                if enough or stop:
                    break
    assert answer.shape == (arguments.batch,)
    if arguments.times:
        # Write, then rename: a reader never finds a partial file.
        with open(arguments.times + ".new", "w") as file:
            json.dump({"pid": os.getpid(), "first": first, "last": end, "begins": begins, "latencies": latencies}, file)
        os.replace(arguments.times + ".new", arguments.times)
    print(f"service: {len(latencies)} requests answered")


main()
