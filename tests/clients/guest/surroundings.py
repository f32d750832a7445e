# SPDX-License-Identifier: MIT OR Apache-2.0
"""A job that changes its surroundings once it runs, and works on: FOLDER is one of its own, GO a
file that appears when something has happened.

    surroundings.py HOW FOLDER GO
"""

import ctypes
import os
import sys
import time

import plain

how, folder, go = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
PR_SET_DUMPABLE, MS_REC, MS_PRIVATE = 4, 0x4000, 1 << 18
CLONE_NEWNS, CLONE_NEWNET, CLONE_NEWIPC, CLONE_NEWUTS, CLONE_NEWPID = 0x20000, 0x40000000, 0x8000000, 0x4000000, 0x20000000


def must(answer):
    if answer:
        print("not permitted here")
        sys.exit()


if how == "undumpable":
    # Before the first call: a look at the process from outside by /proc finds it root's.
    must(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))
gpu = plain.Gpu()
print(gpu.work(50))
# Opened before: afterwards no path of the old world is found.
watch = os.open(os.path.dirname(go), os.O_RDONLY)
match how:
    case "unshared":
        must(libc.unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS))
        must(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
        must(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
    case "children elsewhere":
        must(libc.unshare(CLONE_NEWPID))
        if os.fork() == 0:
            os._exit(0 if os.getpid() == 1 else 9)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
    case "chroot":
        must(libc.chroot(folder.encode()))
        os.chdir("/")
    case "nowhere":
        os.chdir(folder)
        os.rmdir(folder)
        os.umask(0o777)
print(gpu.work(50), flush=True)
end = time.monotonic() + 60
while time.monotonic() < end and os.path.basename(go) not in os.listdir(watch):
    gpu.work(20)
    time.sleep(0.01)
print(gpu.work(100))
