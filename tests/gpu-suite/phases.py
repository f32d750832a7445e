# SPDX-License-Identifier: MIT OR Apache-2.0
"""Phases that the tests put into scripts/gpu-suite: each does one thing that a phase on a real GPU
may do wrong."""

import os
import signal
import subprocess
import sys
import time


def measures(phase):
    phase.case("measured", lambda: phase.value("answer", 42, "things", n=1))


def fails(phase):
    """One case that raises, one that holds."""
    phase.case("breaks", lambda: 1 // 0)
    phase.case("holds", lambda: phase.value("after the failure", 1, "things"))


def crashes(phase):
    phase.value("before the crash", 7, "things")
    print("the last words of a dying phase", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def hangs(phase):
    """Deaf to signals, with a daemon in a session of its own that is deaf as well."""
    phase.value("before it hung", 3, "things")
    daemon = "import os,signal,sys,time; signal.signal(15, signal.SIG_IGN)\nif os.fork(): os._exit(0)\nos.setsid()\nopen(sys.argv[1],'w').write(str(os.getpid()))\ntime.sleep(900)"
    pid_file = phase.out / "daemon.pid"
    subprocess.run([sys.executable, "-c", daemon, str(pid_file)], check=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end = time.monotonic() + 900
    while time.monotonic() < end:
        time.sleep(1)


def run(phase):
    {"measures": measures, "fails": fails, "crashes": crashes, "hangs": hangs, "last": measures}[phase.name](phase)
