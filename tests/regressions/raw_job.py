# SPDX-License-Identifier: MIT OR Apache-2.0
"""A raw client in a process of its own, which keeps what it was given until it is ended.

  raw_job.py SOCKET UID COMMAND MEMORY UUID TOTAL PRIORITY
"""

import os
import signal
import sys

import wire


def main(path, uid, command, memory, uuid, total, priority):
    os.setegid(int(uid))
    os.seteuid(int(uid))
    client = wire.Client(path, command=command, priority=int(priority))
    assert client.welcome(), client.refusal
    client.send(wire.wants(uuid, int(total), memory=int(memory)))
    # A line hangs the client up; its process stays.
    if sys.stdin.readline():
        client.close()
    signal.pause()


main(*sys.argv[1:])
