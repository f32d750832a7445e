# SPDX-License-Identifier: MIT OR Apache-2.0
"""A timer's signal every millisecond and children that end, while launches wait; then another
user's rights (the C library sends every thread a signal for them)."""

import os
import signal
import subprocess

import plain

came = 0


def note(*_):
    global came
    came += 1


signal.signal(signal.SIGALRM, note)
signal.signal(signal.SIGCHLD, note)
gpu = plain.Gpu()
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
while came < 50:
    assert gpu.work(50) == 49
signal.setitimer(signal.ITIMER_REAL, 0)
for _ in range(3):
    subprocess.run(["true"], check=True)
    assert gpu.work(10) == 9
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
print(gpu.work(100))
