# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs one phase within its share of the time and ends every process it started.

The supervisor becomes the process to which orphans are handed (PR_SET_CHILD_SUBREAPER). A daemon
that left its parent is then still its descendant. If the kernel does not support that, a mark in
the environment identifies the processes. Processes are ended by their ids, never by name, clients
before an MPS daemon.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

# Numbers for prctl, from linux/prctl.h.
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

# Seconds that a phase has to clean up after the signal that its time is over.
GRACE = 6.0
# Seconds between the request to end and the kill.
ASKED = 2.0

MARK = "GPU_SUITE_MARK"


def prctl(option, value):
    """True if the kernel did it."""
    try:
        return ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0
    except (OSError, AttributeError):
        return False


def die_with_parent():
    """Kills the calling child when its parent's thread ends. Only for children of the main thread.
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def process(pid):
    """(parent, state, words of the command line) of a process, or None."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    after = status.rpartition(")")[2].split()
    return int(after[1]), after[0], words


def all_processes():
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit() and (entry := process(int(name))):
                found[int(name)] = entry
    return found


def descendants(root):
    """Ids of all processes below `root` that have not ended."""
    everybody = all_processes()
    children = {}
    for pid, (parent, _, _) in everybody.items():
        children.setdefault(parent, []).append(pid)
    found, open_ = set(), [root]
    while open_:
        for pid in children.get(open_.pop(), ()):
            if pid not in found:
                found.add(pid)
                open_.append(pid)
    return {pid for pid in found if everybody[pid][1] != "Z"}


def marked(mark):
    """Ids of processes with our mark in their environment."""
    needle = f"{MARK}={mark}".encode()
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            try:
                if needle in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    entry = process(int(name))
                    if entry and entry[1] != "Z":
                        found.add(int(name))
            except OSError:
                continue
    return found


def reap():
    """Reaps children that ended, including orphans that were handed to us."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def born(pid):
    """The start time of a process, in the kernel's ticks: together with its id it names one process
    for good. None if there is no such process, or it ended.
    """
    try:
        after = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if after[0] == "Z" else int(after[19])


def is_mps(pid):
    entry = process(pid)
    return bool(entry) and entry[2][0].rsplit(b"/", 1)[-1].startswith(b"nvidia-cuda-mps")


def send(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_all(find, keep=()):
    """Ends every process that `find()` names: clients at once, then the daemons that serve them.
    Returns their number.
    """
    ended = set()
    for only_clients in (True, False):
        deadline = time.monotonic() + ASKED
        while True:
            reap()
            there = find() - set(keep)
            if only_clients:
                there = {pid for pid in there if not is_mps(pid)}
            if not there:
                break
            ended |= there
            # An MPS daemon that is killed during its clean-up may leave the device unusable. So it
            # is asked first.
            ask = not only_clients and time.monotonic() < deadline
            send(there, signal.SIGTERM if ask else signal.SIGKILL)
            send(there, signal.SIGCONT)
            if time.monotonic() > deadline + ASKED:
                break
            time.sleep(0.05)
    reap()
    return len(ended)


class Outcome:
    """The end of a phase's process."""

    def __init__(self, code, seconds, overran, killed, left_behind, log):
        self.code, self.seconds, self.overran, self.killed, self.left_behind, self.log = (
            code,
            seconds,
            overran,
            killed,
            left_behind,
            log,
        )


def run(command, environment, share, log, *, forward=sys.stderr, stop=None):
    """Runs `command` for at most `share` seconds. Then it gets SIGTERM; GRACE later it is killed
    with all processes it started.

    Its output goes to the file `log` and, as it arrives, to `forward`. If `stop()` is true it is
    ended at once. The grace is part of the share.
    """
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    mark = uuid.uuid4().hex
    begin = time.monotonic()
    grace = min(GRACE, share / 4)
    before = descendants(os.getpid())
    with open(log, "ab") as out:
        child = subprocess.Popen(
            [str(part) for part in command],
            env={**environment, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    told = killed = False
    with open(log, "rb") as reader:

        def pass_on():
            if text := reader.read():
                forward.write(text.decode(errors="replace"))
                forward.flush()

        while child.poll() is None:
            pass_on()
            elapsed = time.monotonic() - begin
            if not told and (elapsed > share - grace or (stop and stop())):
                told = True
                told_at = time.monotonic()
                send({child.pid}, signal.SIGTERM)
            if told and time.monotonic() - told_at > grace:
                killed = True
                break
            time.sleep(0.05)
        if killed:
            send({child.pid}, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(5)
        left = end_all(lambda: (descendants(os.getpid()) - before) | marked(mark))
        pass_on()
    return Outcome(child.returncode, time.monotonic() - begin, told, killed, left, Path(log))
