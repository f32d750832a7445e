# SPDX-License-Identifier: MIT OR Apache-2.0
"""Records the use of this machine's CPU during a measurement: a thread samples it twice a second.

Simulated time is wall time divided by a factor. If a job, the broker or the device loses a core for
10 ms, it loses half a millisecond of its simulated time. Two things take cores: other work, and the
host of a virtual machine, which gives them to others (steal). A load average shows neither.
"""

import os
import threading
import time
from pathlib import Path

# Seconds between two samples. A sample takes a millisecond.
PAUSE = 0.5

# If more than this part of the CPU time went elsewhere, figures in simulated time include that
# (measured: with a quarter stolen, gaps of 60 us took 1200).
MUCH = 0.05


class Machine:
    """Counts the CPU time of all cores: ours, others', stolen. Ours: this process, and processes
    whose command or environment names the folder.
    """

    def __init__(self, folder):
        self.mark = str(folder).encode()
        self.looks = []
        self.ours = {}
        self.others = set()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch, name="machine", daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join(5)

    def _watch(self):
        while not self.over.is_set():
            self._look()
            self.over.wait(PAUSE)

    def _look(self):
        now = time.monotonic()
        try:
            fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        except (OSError, ValueError):
            return
        user, nice, system, idle, iowait, irq, softirq, steal = fields
        busy = user + nice + system + irq + softirq
        # A process that ended keeps its last seen value.
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if self._is_ours(pid):
                used = used_by(pid)
                if used is not None:
                    self.ours[pid] = used
        self.looks.append((now, busy + idle + iowait + steal, busy, steal, sum(self.ours.values())))

    def _is_ours(self, pid):
        if pid in self.ours:
            return True
        if pid in self.others:
            return False
        try:
            said = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        ours = self.mark in said or int(pid) == os.getpid()
        # A very young process is examined again: between fork and exec it does not have its final
        # command.
        if not ours and age(pid) > 2 * PAUSE:
            self.others.add(pid)
        return ours

    def between(self, begin, end):
        """The parts of the CPU time of all cores that the host took and that other work used,
        between two times (`time.monotonic`). None if there are too few samples.
        """
        inside = [look for look in self.looks if begin - PAUSE <= look[0] <= end + PAUSE]
        if len(inside) < 2:
            return None
        all_, busy, steal, ours = (last - first for first, last in zip(inside[0][1:], inside[-1][1:]))
        if all_ <= 0:
            return None
        return {"stolen": steal / all_, "others": max(busy - ours, 0) / all_}


def used_by(pid):
    """Clock ticks that a process has used, or None if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return int(fields[11]) + int(fields[12])


def age(pid):
    """Seconds since a process was started, 0 if it is gone."""
    try:
        started = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
        return float(Path("/proc/uptime").read_text().split()[0]) - started
    except (OSError, IndexError, ValueError):
        return 0.0
