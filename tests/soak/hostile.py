# SPDX-License-Identifier: MIT OR Apache-2.0
"""One hostile user of a shared broker: every attack that a program without privileges can make
through its socket, all at once and again and again.

    hostile.py SOCKET UID UUID TOTAL SECONDS [KIND...]

Run as root: it becomes that user before it sends anything. UUID and TOTAL (bytes) are a device's
that others use. Each kind of attack has a process, all at nice 19: the CPU time that an attack
takes is not weft's matter. A kind that is refused, let go or hung up on begins anew; so the broker
may defend itself as it likes.
"""

import contextlib
import fcntl
import json
import os
import random
import resource
import signal
import socket
import struct
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "regressions"))
import wire  # noqa: E402

# Errors of an attack when the broker defends itself.
HUNG_UP = (OSError, ConnectionError, TimeoutError, AssertionError, IndexError, ValueError)
FOR_EVER = (1 << 64) - 1
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x1b[H\nINFO weft: client 1 (process 1) ended"


class Attack:
    """The data and helpers of all kinds."""

    def __init__(self, path, uuid, total, rng):
        self.path, self.uuid, self.total, self.rng = path, uuid, total, rng
        # Clients that were let go for nonsense and keep their end.
        self.keep = []

    def client(self, **said):
        one = wire.Client(self.path, timeout=2, priority=9, **said)
        if not one.welcome():
            one.close()
            raise ConnectionError("refused")
        one.socket.settimeout(1)
        return one

    # --- the kinds: each does something for a moment, and is called again until the time is over

    def lingers(self):
        """A descriptor whose close waits for a peer that does not read: on a question, on a
        message, on a Hello."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        for where in range(3):
            stuck = socket.socket()
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
            stuck.connect(listener.getsockname())
            peer, _ = listener.accept()
            stuck.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    stuck.send(b"x" * 65536)
            with contextlib.suppress(*HUNG_UP):
                if where == 0:
                    with wire.connected(self.path, 1) as one:
                        one.sendmsg([wire.question('"ping"')], wire.descriptors([stuck.fileno()]))
                elif where == 1:
                    one = self.client(command="lingers")
                    one.send(wire.note("hi"), [stuck.fileno()])
                    one.send(wire.note("hi"), [stuck.fileno()] * 3)
                else:
                    wire.Client(self.path, command="lingers", fds=[stuck.fileno()] * 2, timeout=1).welcome()
            stuck.close()
            time.sleep(0.3)
            peer.close()
        listener.close()

    def silent(self):
        """Connections that send nothing, as many as possible, ever new ones."""
        kept = []
        end = time.monotonic() + 2
        while time.monotonic() < end:
            one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            one.setblocking(False)
            try:
                one.connect(str(self.path))
                kept.append(one)
            except OSError:
                one.close()
                time.sleep(0.001)
            if len(kept) > 3000:
                kept.pop(0).close()
        for one in kept:
            one.close()

    def questions(self):
        """Questions whose answers are never read, and some whose answers are."""
        kept = []
        for _ in range(300):
            with contextlib.suppress(OSError):
                one = wire.connected(self.path, 0.5)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
                one.send(wire.question(json.dumps(self.rng.choice(["queue", "status", "ping", {"set": {"pid": 1, "priority": 0}}]))))
                kept.append(one)
        with contextlib.suppress(*HUNG_UP):
            wire.ask(self.path, "queue", timeout=1)
        for one in kept:
            one.close()

    def nonsense(self):
        """Bytes that are no packet, before the Hello, instead of it and after it; half of them look
        like one."""
        for _ in range(100):
            size = self.rng.choice((1, 17, 400, 50_000))
            noise = self.rng.randbytes(size)
            with contextlib.suppress(*HUNG_UP):
                with wire.connected(self.path, 0.5) as one:
                    one.send(noise if self.rng.random() < 0.5 else wire.packet(noise))
        for _ in range(20):
            with contextlib.suppress(*HUNG_UP):
                one = self.client(command="nonsense")
                for _ in range(5):
                    one.send(wire.say(self.rng.randbytes(30)))
                # Not closed here: a broker that has let it go must not keep its descriptors either.
                self.keep.append(one)
        while len(self.keep) > 200:
            self.keep.pop(0).close()

    def lanes(self):
        """Anything, anywhere in the memory that is shared; the magic gone; a thousand records a
        moment."""
        one = self.client(command="lies")
        size = len(one.lane)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            at = self.rng.randrange(size // 8) * 8 if self.rng.random() < 0.7 else self.rng.randrange(64, 700) // 8 * 8
            struct.pack_into("<Q", one.lane, at, self.rng.choice((0, 1, 7, FOR_EVER, self.rng.getrandbits(64), self.rng.getrandbits(20))))
        if self.rng.random() < 0.5:
            struct.pack_into("<Q", one.lane, 0, 0)
            time.sleep(0.05)
        one.close()

    def rings(self):
        """The doorbell without end, with no message."""
        one = self.client(command="rings", rings=True)
        ring = (1).to_bytes(8, "little")
        end = time.monotonic() + 1
        while time.monotonic() < end:
            for _ in range(100):
                os.write(one.bell, ring)
        one.close()

    def profiles(self):
        """60 MB as a profile: by a descriptor that all connections share, and in pieces, which
        never end or stop half-way."""
        kept = []
        for number in range(12):
            with contextlib.suppress(*HUNG_UP):
                one = wire.Client(self.path, profile=f"pieces{number}", timeout=0.5, command="profiles", priority=9)
                kept.append(one)
                for _ in range(self.rng.choice((1, 100, 1200))):
                    piece = self.rng.randbytes(50_000)
                    one.send(wire.packet(wire.number(wire.PROFILE) + wire.text(piece) + wire.truth(False)))
        for one in kept:
            one.close()
        memory = os.memfd_create("profile", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        with open(memory, "wb") as file:
            head = b"weftPROF" + bytes([5]) + bytes(7) + struct.pack("<QQ", (60 << 20), 7)
            file.write(head)
            block = self.rng.randbytes(1 << 20)
            for _ in range(60):
                file.write(block)
            file.flush()
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
            kept = []
            for number in range(12):
                with contextlib.suppress(*HUNG_UP):
                    one = wire.Client(self.path, profile=f"big{number}", fds=[memory], timeout=2, command="profiles", priority=9)
                    kept.append(one)
                    one.welcome()
            for one in kept:
                one.close()

    def ranges(self):
        """Terabytes of managed memory, and forecasts of all of it."""
        one = self.client(command="ranges")
        one.send(wire.device("ee" * 16, 80 << 30))
        for number in range(400):
            one.send(wire.backed((number + 1) << 43, 1 << 42))
        for number in range(20):
            one.send(wire.forecast(number, 1_000_000, [(at, at << 21, 65_536) for at in range(500)]))
        time.sleep(0.2)
        one.close()

    def names(self):
        """Ever new names of devices, long ones and short ones; places asked for on devices that are
        not there."""
        one = self.client(command="names")
        for _ in range(100):
            one.send(wire.device("%032x" % self.rng.getrandbits(128), 1))
            one.send(wire.device("%016x" % self.rng.getrandbits(64) + "u" * 50_000, 1))
            one.send(wire.wants("%032x" % self.rng.getrandbits(128), self.rng.getrandbits(40), memory=1 << 20))
        one.close()
        for memory in (4096, 1 << 60):
            with contextlib.suppress(*HUNG_UP):
                seeker = {"pid": os.getpid(), "gang": "", "user": "", "priority": 9, "memory": 1, "duration": None, "managed": False}
                wire.ask(self.path, {"place": {**seeker, "devices": [{"uuid": self.uuid, "memory": memory}]}}, timeout=1)

    def grows(self):
        """Claims that only the end of all others can satisfy, for ever; and many jobs that wait for
        the whole device."""
        kept = []
        for _ in range(6):
            one = self.client(command="grows")
            kept.append(one)
            one.send(wire.wants(self.uuid, self.total, memory=1 << 20))
            one.send(wire.more(self.total - (1 << 30), FOR_EVER))
        for _ in range(20):
            one = self.client(command="waits")
            kept.append(one)
            one.send(wire.wants(self.uuid, self.total, memory=self.total - (1 << 30), duration="short"))
        time.sleep(1.5)
        for one in kept:
            one.close()

    def looks(self):
        """A look at the device that finds nothing free, from the future, and a change of the held
        memory that never ends; another size of the device."""
        one = self.client(command="looks")
        one.send(wire.wants(self.uuid, self.rng.choice((self.total, 4096, 1 << 50)), memory=1 << 20))
        time.sleep(0.1)
        for _ in range(50):
            one.send(wire.context(0, 0, time.monotonic_ns() + self.rng.choice((0, 10**15))))
        # The place of "begun" and "done" in this build is unknown: near the admission slot, which
        # lies before the ring.
        for at in range(4096, 6144, 8):
            struct.pack_into("<Q", one.lane, at, self.rng.choice((6, 7)))
        time.sleep(0.5)
        one.close()

    def escapes(self):
        """Escape sequences and line breaks in all that people are shown."""
        memory = os.memfd_create("profile", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.write(memory, b"garbage" * 40)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, 0xF)
        with contextlib.suppress(*HUNG_UP):
            one = wire.Client(self.path, profile=ESCAPES, fds=[memory], command=ESCAPES * 100, timeout=2, priority=9)
            one.welcome()
            for _ in range(200):
                one.send(wire.note(ESCAPES))
            one.send(wire.wants(self.uuid, self.total, gang=ESCAPES, user=ESCAPES, duration=ESCAPES))
            time.sleep(0.2)
            one.close()
        os.close(memory)

    def rest(self):
        """Nothing: a run with it measures the measurement itself."""
        time.sleep(0.1)

    def spins(self):
        """Only CPU time, and no message to the broker: the cost of that part of an attack."""
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            pass

    def crowd(self):
        """As many attached clients as there may be, for some seconds."""
        kept = []
        with contextlib.suppress(*HUNG_UP):
            for _ in range(4000):
                kept.append(self.client(command="crowd"))
        time.sleep(0.5)
        for one in kept:
            one.close()


# All but `rest` and `spins`, with which the measurement is measured.
KINDS = ("lingers", "silent", "questions", "nonsense", "lanes", "rings", "profiles", "ranges", "names", "grows", "looks", "escapes", "crowd")


def one_kind(kind, attack, end):
    """A process's work: the attack again and again. Prints how often it came through and how often
    it was turned away."""
    through = away = 0
    while time.monotonic() < end:
        try:
            getattr(attack, kind)()
            through += 1
        except HUNG_UP:
            away += 1
            time.sleep(0.02)
    print(json.dumps({"kind": kind, "through": through, "away": away}), flush=True)


def stand_back():
    """Takes only CPU time that no other process wants. Linux shares cores among sessions first,
    then among the threads of each by their nice values; so both are set."""
    os.nice(19)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("19")


def main():
    path, uid, uuid, total, seconds, *kinds = sys.argv[1:]
    seed, uid = 1, int(uid)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    stand_back()
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    end = time.monotonic() + float(seconds)
    children = []
    for kind in kinds or KINDS:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            one_kind(kind, Attack(path, uuid, int(total), random.Random(f"{kind}-{seed}")), end)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
