"""A job at a terminal: works until a signal ends it, and notes in a file what came and that it goes on.

    terminal.py NOTES dies|handles      what INT, TERM and the like do: what they do to any program, or a note each and an end with exit code 7
"""

import os
import signal
import sys
import time

import plain

notes = open(sys.argv[1], "w", buffering=1, encoding="utf-8")
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
came = []


def note(number, _):
    came.append(number)
    print(signal.Signals(number).name, file=notes)


for number in ENDS:
    signal.signal(number, note if sys.argv[2] == "handles" else signal.SIG_DFL)
signal.signal(signal.SIGWINCH, lambda *_: print("size", *os.get_terminal_size(0), file=notes))
signal.signal(signal.SIGCONT, lambda *_: print("continued", file=notes))
gpu = plain.Gpu()
print("ready", os.getpid(), file=notes)
while not came:
    gpu.work(20)
    time.sleep(0.005)
# One that comes twice comes now.
until = time.monotonic() + 0.3
while time.monotonic() < until:
    gpu.work(20)
print("ends", len(came), file=notes)
os._exit(7)
