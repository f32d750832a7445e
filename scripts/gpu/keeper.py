"""Keeps the driver initialised for as long as a run lasts.

Where nobody holds a device, the driver shuts it down with the last process and starts it anew with the next one, for a second or more each time.
As a program this holds cuInit and the device files, and makes no context, so it takes no memory of the device and is nobody's neighbour there.
No setting is changed. It ends when its stdin is closed, with its parent, and in any case after the seconds it is given.
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

# What the driver's first start after boot may take, seconds.
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
        said = {"initialised": code == 0, **({} if code == 0 else {"error": f"cuInit says {code}"})}
    except OSError as error:
        said = {"initialised": False, "error": str(error)}
    said.update(seconds=round(time.monotonic() - begin, 3), device_files=[file.name for file in files])
    print(json.dumps(said), flush=True)
    while (left := begin + seconds - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0] and not sys.stdin.buffer.raw.read(64):
            return


class Keeper:
    """The program, started and ended. Use with `with`, on the main thread; `said` is its first line, {"error": why} where it did not start."""

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
