# SPDX-License-Identifier: MIT OR Apache-2.0
"""A job at a terminal: works until a signal ends it, and notes in a file the signals that came and
that it continues.

    terminal.py NOTES dies|handles

INT, TERM and similar signals have their default effect (`dies`), or each causes a note and an end
with exit code 7 (`handles`).
"""

import os
import signal
import sys
import time

import plain

notes = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
came = []


def tell(*words):
    """In one step: a signal may come in between."""
    os.write(notes, (" ".join(map(str, words)) + "\n").encode())


def note(number, _):
    came.append(number)
    tell(signal.Signals(number).name)


for number in ENDS:
    signal.signal(number, note if sys.argv[2] == "handles" else signal.SIG_DFL)
signal.signal(signal.SIGWINCH, lambda *_: tell("size", *os.get_terminal_size(0)))
signal.signal(signal.SIGCONT, lambda *_: tell("continued"))
gpu = plain.Gpu()
tell("ready", os.getpid())
while not came:
    gpu.work(20)
    time.sleep(0.005)
# A second delivery of a signal comes now.
until = time.monotonic() + 0.3
while time.monotonic() < until:
    gpu.work(20)
tell("ends", len(came))
os._exit(7)
