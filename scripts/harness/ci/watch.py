# SPDX-License-Identifier: MIT OR Apache-2.0
"""Shows the state of a command that does not end: its processes, their threads, the calls in which
they wait; and ends it.

Reads only /proc (and uses gdb for backtraces if it is installed). It may not outlive the watched
command, nor touch a process that is not a descendant of it.
"""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

# Seconds for a debugger's backtrace, which usually takes a few; a slower one is left out.
DEBUGGER_SECONDS = 60
# Beyond this number of processes only names are shown.
BACKTRACES = 4


def _read(path):
    try:
        return Path(path).read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _parents():
    """pid -> parent, of every visible process."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            # The name in parentheses may itself contain parentheses.
            fields = _read(f"/proc/{entry}/stat").rpartition(")")[2].split()
            if len(fields) > 1:
                parents[int(entry)] = int(fields[1])
    return parents


def descendants(pid):
    """The processes below `pid`, parents before children. Orphans that init adopted are not found.
    """
    parents = _parents()
    found = [pid]
    for known in found:
        found.extend(child for child, parent in parents.items() if parent == known)
    return found[1:]


def command(pid):
    """The command line of a process, in one line; empty for a zombie or a process that is gone."""
    return _read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()


def cpu_seconds(pid):
    """CPU seconds of a process, with the children that it waited for; None if it is gone."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    # utime, stime, cutime and cstime are fields 14 to 17; two fields are before the parenthesis.
    return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK") if len(fields) > 14 else None


def threads(pid):
    """A line for each thread: name (a Rust test's thread has the test's), state, system call in
    which it waits. Only the first 40.
    """
    lines = []
    for thread in sorted(os.listdir(f"/proc/{pid}/task") if os.path.isdir(f"/proc/{pid}/task") else [])[:40]:
        base = f"/proc/{pid}/task/{thread}"
        state = _read(f"{base}/stat").rpartition(")")[2].split()[:1]
        lines.append(f"    thread {thread} {_read(f'{base}/comm').strip()}: {''.join(state)}, waits in {_read(f'{base}/wchan') or '-'}")
    return lines


def backtrace(pid):
    """The stacks of all threads; empty without a debugger."""
    if shutil.which("gdb") is None:
        return ""
    ask = ["gdb", "-p", str(pid), "-batch", "-nx", "-ex", "thread apply all bt 30"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=DEBUGGER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "\n".join(line for line in done.stdout.splitlines() if line.startswith(("#", "Thread")))


def diagnosis(pid):
    """The current state of the descendants of `pid`, for a person to read."""
    found = [child for child in descendants(pid) if command(child)]
    lines = []
    for child in found:
        lines.append(f"process {child}: {command(child)[:300]}")
        lines.extend(threads(child))
    for child in found[-BACKTRACES:]:
        stacks = backtrace(child)
        if stacks:
            lines.append(f"stacks of process {child}:\n{stacks}")
    return "\n".join(lines)


def end(pids):
    """Sends SIGTERM, waits a moment, sends SIGKILL."""
    for sign, patience in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
        for pid in pids:
            try:
                os.kill(pid, sign)
            except OSError:
                pass
        until = time.monotonic() + patience
        while time.monotonic() < until and any(command(pid) for pid in pids):
            time.sleep(0.05)
