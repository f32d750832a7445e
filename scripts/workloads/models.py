#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs one of twelve models, in inference or in training, with random weights. The traces, the GPU
suite and the benchmarks use it.

A plain PyTorch program. It knows nothing of weft, of the simulated GPU, nor of other jobs.

    python models.py --list
    python models.py resnet50 --mode infer --requests 200
    python models.py gpt2 --mode train --requests 20 --times times.json
    python models.py llama --mode infer --graph --requests 50        # each token is one CUDA graph
    python models.py llama --mode infer --pace-us 100 --requests 50  # on a slow host
    weft profile --trace resnet50.trace -- python models.py resnet50 --mode infer --mark

A request has these steps: host work (--host-ms: the time of decoding and resizing, or the wait for
the next client), a copy to the GPU, the model, the answer back on the host. An iteration adds a
loss, a backward pass and an optimizer, and the loss is read. The measured time is the time that a
client waits: from the end of the host work to the answer. The program ends with one line of JSON.
"""

import argparse
import inspect
import json
import os
import signal
import sys
import time


def arguments_of(names):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="one of: " + ", ".join(names))
    parser.add_argument("--list", action="store_true", help="print the models' names and exit")
    parser.add_argument("--mode", choices=["infer", "train"], default="infer")
    parser.add_argument("--requests", type=int, default=100, help="requests or iterations that are timed (default: 100)")
    parser.add_argument("--seconds", type=float, default=0, help="seconds to run, instead of a number of requests")
    parser.add_argument("--warm-up", type=int, default=3, help="requests before the timed ones (default: 3)")
    parser.add_argument("--batch", type=int, default=0, help="batch size, instead of the model's own")
    parser.add_argument("--host-ms", type=float, default=0, help="host work before each request (default: 0)")
    pace = "pause before each PyTorch operation, as on a slower host (default: 0)"
    parser.add_argument("--pace-us", type=float, default=0, help=pace)
    parser.add_argument("--graph", action="store_true", help="with a CUDA graph, if the model supports it (llama)")
    parser.add_argument("--end", choices=["wait", "event"], default="wait", help="how the host detects a request's end: by waiting for the stream, or by an event (default: wait)")
    parser.add_argument("--mark", action="store_true", help="cuProfilerStart before each timed request: a step's mark in a launch trace")
    parser.add_argument("--times", metavar="FILE", help="write the times here, as JSON")
    parser.add_argument("--ready", metavar="FILE", help="write this file after the warm-up")
    arguments = parser.parse_args()
    if not arguments.list and arguments.model not in names:
        parser.error(f"no model {arguments.model!r}: one of {', '.join(names)}" if arguments.model else "which model? see --list")
    return arguments


def wait(seconds):
    """Host work that does not use the GPU. It sleeps, so that many jobs on few cores do not disturb
    each other's measurements.
    """
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(left)


def paced(step, seconds):
    """The step with a pause before each operation, as on a slower host."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Pace(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            time.sleep(seconds)
            return func(*args, **(kwargs or {}))

    def slowly():
        with Pace():
            return step()

    return slowly


def quantile(values, q):
    ordered = sorted(values)
    return ordered[min(int(q * len(ordered)), len(ordered) - 1)]


def run(task, arguments, mark):
    """Runs the requests. Returns the begin and the duration of each."""
    step = task.infer if arguments.mode == "infer" else task.train
    if arguments.pace_us:
        step = paced(step, arguments.pace_us / 1e6)
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    begins, latencies = [], []
    for number in range(10**9):
        timed = number >= arguments.warm_up
        if number == arguments.warm_up:
            if arguments.ready:
                open(arguments.ready, "w").close()
            first = time.monotonic()
        if arguments.host_ms:
            wait(arguments.host_ms / 1e3)
        if timed and arguments.mark:
            mark()
        begin = time.monotonic()
        step()
        end = time.monotonic()
        if timed:
            begins.append(begin)
            latencies.append(end - begin)
            if stop or (end - first >= arguments.seconds if arguments.seconds else len(latencies) >= arguments.requests):
                break
        elif stop:
            sys.exit(0)
    return begins, latencies


def main():
    # The names without torch: --help and --list answer at once.
    names = ["resnet50", "resnet152", "vgg19", "inception_v3", "densenet201", "vit_b_16"]
    names += ["bert_base", "gpt2", "llama", "unet", "detection", "lstm"]
    arguments = arguments_of(names)
    if arguments.list:
        print("\n".join(names))
        return

    import torch
    from zoo import MODELS

    assert list(MODELS) == names
    if not torch.cuda.is_available():
        sys.exit("models: PyTorch finds no GPU: is there a driver on LD_LIBRARY_PATH?")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    make = MODELS[arguments.model]
    options = {}
    if arguments.graph:
        if "graph" not in inspect.signature(make).parameters or arguments.mode != "infer":
            sys.exit(f"models: {arguments.model} in {arguments.mode} mode has no CUDA graph: leave --graph out")
        options["graph"] = True
    task = make(arguments.mode, arguments.batch or None, **options)
    task.end = arguments.end
    begins, latencies = run(task, arguments, torch.cuda.profiler.start)
    torch.cuda.synchronize()
    last = time.monotonic()
    if arguments.times:
        # Write, then rename: a reader never finds a partial file.
        with open(arguments.times + ".new", "w") as file:
            ends = [begin + latency for begin, latency in zip(begins, latencies)]
            json.dump({"pid": os.getpid(), "first": begins[0], "last": last, "begins": begins, "ends": ends, "latencies": latencies}, file)
        os.replace(arguments.times + ".new", arguments.times)
    figures = {
        "model": arguments.model,
        "mode": arguments.mode,
        "graph": arguments.graph,
        "requests": len(latencies),
        "p50_ms": quantile(latencies, 0.5) * 1e3,
        "p99_ms": quantile(latencies, 0.99) * 1e3,
        "mean_ms": sum(latencies) / len(latencies) * 1e3,
        "per_s": len(latencies) / (last - begins[0]),
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
