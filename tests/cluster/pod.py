# SPDX-License-Identifier: MIT OR Apache-2.0
"""A CUDA job in a container of the device plugin's tests: its result, and how weft knows it.

  pod.py WEFT       49 is right; then a line with this process's row of `weft status --json`
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from plain import Gpu

# Seconds for the kubelet's stand-in, on two busy cores.
PATIENCE = 60

answer = Gpu().work(50)
if named := os.environ.get("WAIT_FOR"):
    end = time.monotonic() + PATIENCE
    while not Path(named).exists() and time.monotonic() < end:
        time.sleep(0.01)
# The command itself is no job: weft must not be in it.
plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
words = [sys.argv[1], "status", "--json"]
status = json.loads(subprocess.run(words, env=plain, capture_output=True, text=True).stdout)
# The library itself may not be written, nor the socket's folder.
folders = [Path(os.environ["LD_PRELOAD"]).parent, Path(os.environ["WEFT_SOCKET"]).parent]


def writable(folder):
    try:
        (folder / "made-by-a-pod").touch()
        return True
    except OSError:
        return False


names = ("name", "priority", "launches", "device_uuid", "pod")
told = {
    "answer": answer,
    "clients": [{name: one[name] for name in names} for one in status["clients"]],
    "writable": [writable(folder) for folder in folders],
    "visible": os.environ["CUDA_VISIBLE_DEVICES"],
}
print(json.dumps(told))
