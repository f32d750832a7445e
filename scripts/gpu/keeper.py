# SPDX-License-Identifier: MIT OR Apache-2.0
"""Keeps the driver initialised for the duration of a run.

If no process holds a device, the driver shuts it down with the last process and starts it again
with the next one, for a second or more each time. As a program this module holds cuInit and the
device files. It makes no context, so it takes no memory of the device and does not share it. No
setting is changed. It ends when its stdin is closed, when its parent ends, and at the latest after
the given number of seconds.
"""

import contextlib
import ctypes
import glob
import json
import re
import select
import subprocess
import sys
import time
from pathlib import Path

# Longest first start of the driver after boot, seconds.
START = 60.0


def main(seconds):
    begin = time.monotonic()
    # Held open until this process ends.
    files = []
    for path in sorted(glob.glob("/dev/nvidia*")):
        if re.fullmatch(r"/dev/nvidia\d+", path):
            with contextlib.suppress(OSError):
                files.append(open(path, "rb"))  # noqa: SIM115
    try:
        code = ctypes.CDLL("libcuda.so.1").cuInit(0)
        said = {"initialised": code == 0, **({} if code == 0 else {"error": f"cuInit returned {code}"})}
    except OSError as error:
        said = {"initialised": False, "error": str(error)}
    said.update(seconds=round(time.monotonic() - begin, 3), device_files=[file.name for file in files])
    print(json.dumps(said), flush=True)
    while (left := begin + seconds - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0] and not sys.stdin.buffer.raw.read(64):
            return


class Keeper:
    """Starts and ends the program. Use with `with`, on the main thread. `said` is its first line,
    or {"error": reason} if it did not start.
    """

    def __init__(self, environment, seconds):
        self.environment, self.seconds = environment, seconds
        self.process, self.said = None, {}

    def __enter__(self):
        from . import supervise

        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), str(self.seconds)],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=supervise.die_with_parent,
        )
        line = b""
        if select.select([self.process.stdout], [], [], min(START, self.seconds))[0]:
            line = self.process.stdout.readline()
        try:
            self.said = {**json.loads(line), "pid": self.process.pid}
        except ValueError:
            self.said = {"error": "it did not start in time" if self.process.poll() is None else f"it ended with {self.process.returncode}"}
            self.end()
        return self

    def end(self):
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        self.process.stdout.close()

    def __exit__(self, *_):
        if not self.process.stdout.closed:
            self.end()


if __name__ == "__main__":
    main(float(sys.argv[1]))
