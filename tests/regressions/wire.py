# SPDX-License-Identifier: MIT OR Apache-2.0
"""A client of the broker that speaks the packets of the rendezvous socket by itself, as an
unfriendly program would.

Packets are those of broker/protocol/src/transport/wire.rs (a header, then postcard), messages those
of broker/protocol/src/control.rs. Only a shared broker takes all of them: a private one's control
channel is another. Nothing here is checked before it is sent; that is the point.

  client = wire.Client(socket, command="job")     a Hello
  client.welcome()                                True: it has its lane, in `client.lane`
  client.send(wire.note("a line"))
  wire.ask(socket, "status")                      a question as `weft status --json` asks it
"""

import array
import contextlib
import json
import mmap
import os
import re
import socket
import struct
import time
from pathlib import Path

PROTOCOL = Path(__file__).resolve().parents[2] / "broker" / "protocol" / "src" / "lib.rs"
VERSION = int(re.search(r"pub const VERSION: u32 = (\d+);", PROTOCOL.read_text()).group(1))
LONGEST = 60 * 1024
HEADER = 16
# The first number of a packet's body.
HELLO, QUESTION, REFUSED, LANE, CONNECTED, ANSWER, WELCOME, SAY, TELL, PROFILE = range(10)
# Longest time for anything that takes a millisecond on an idle machine.
BOUND = 30.0


def number(value):
    """An unsigned integer."""
    out = bytearray()
    while True:
        low, value = value & 0x7F, value >> 7
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


def text(value):
    """A string, or bytes that need not be one."""
    value = value.encode() if isinstance(value, str) else value
    return number(len(value)) + value


def option(value, form):
    """Something that may be missing."""
    return b"\0" if value is None else b"\1" + form(value)


def truth(value):
    """A boolean."""
    return b"\1" if value else b"\0"


def packet(body, version=None):
    """A packet of this body."""
    return b"weftRDVZ" + struct.pack("<II", VERSION if version is None else version, 0) + body


def hello(*, priority=5, profile=None, profiling=False, command="job", slowdown=None, slo=None, at_least=None, name=None, version=None):
    """The first packet of a client."""
    said = [number(VERSION if version is None else version), number(os.getpid()), bytes([priority])]
    return packet(number(HELLO) + b"".join(said) + option(profile, text) + truth(profiling) + text(command) + option(slowdown, number) + option(slo, number) + option(at_least, number) + option(name, text))


def question(what):
    """A question for people: the JSON of `broker/api/src/admin.rs`, as text."""
    return packet(number(QUESTION) + text(what))


def say(body):
    """A control message."""
    return packet(number(SAY) + body)


def device(uuid, memory, name="GPU", driver=13000, mps=None):
    """The device that the client uses."""
    return say(number(2) + text(name) + text(uuid) + number(memory) + number(driver) + option(mps, truth))


def backed(start, size):
    """A managed range."""
    return say(number(3) + number(start) + number(size))


def forecast(which, period, uses, ends=True):
    """A part of a forecast; `uses`: (at, first granule, granules)."""
    listed = b"".join(number(at) + number(first) + number(count) + number(0) for at, first, count in uses)
    return say(number(6) + number(which) + number(period) + number(len(uses)) + listed + truth(ends))


def wants(uuid, total, *, further=0, devices=1, memory=None, duration=None, gang="", processes=1, user="", managed=False, either=False, host=None, runs=None, limit=None):
    """May it begin?"""
    said = [number(9), text(uuid), number(total), number(further), number(devices), option(memory, number), option(duration, text), text(gang)]
    said += [number(processes), text(user), truth(managed), truth(either), option(host, number), option(runs, number)]
    return say(b"".join([*said, option(limit, number)]))


def more(size, patience):
    """A request for `size` more bytes; it waits for `patience` ns."""
    return say(number(10) + number(size) + number(patience))


def no_more():
    """It waits no longer for the additional memory."""
    return say(number(11))


def context(free, held, at, own=0):
    """Its first context is there, and it looked."""
    return say(number(14) + number(free) + number(held) + number(own) + number(at))


def note(line):
    """A line for people."""
    return say(number(15) + text(line))


def goodbye():
    """A clean end."""
    return say(number(16))


def profile(content, last):
    """A piece of the profile that a client of a shared broker brings after a Hello that names
    one."""
    return packet(number(PROFILE) + text(content) + truth(last))


def descriptors(fds):
    """Descriptors as they go together with a packet."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())] if fds else []


def connected(path, timeout=BOUND):
    """A connection that has sent nothing yet."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.settimeout(timeout)
    end = time.monotonic() + timeout
    while True:
        try:
            one.connect(str(path))
            return one
        except BlockingIOError:
            # As many as the socket holds stand before it: a socket with a bound does not wait
            # there by itself.
            assert time.monotonic() < end, f"not connected within {timeout:.0f} s"
            time.sleep(0.001)


class Client:
    """A connection with a Hello (`raw`: with other bytes first instead). `rings`: it keeps its
    user's doorbell, as `bell`."""

    def __init__(self, path, *, raw=None, fds=(), timeout=BOUND, rings=False, **said):
        self.rings = rings
        self.socket = connected(path, timeout)
        self.lane, self.refusal, self.bell = None, None, None
        self.send(hello(**said) if raw is None else raw, fds)

    def send(self, what, fds=()):
        """Sends a packet together with these descriptors."""
        self.socket.sendmsg([what], descriptors(fds))

    def welcome(self):
        """Whether it is let in; `refusal` has the reason if not (the body of the packet, empty if
        the broker hung up)."""
        data, beside, _, _ = self.socket.recvmsg(LONGEST, socket.CMSG_SPACE(3 * 4))
        fds = array.array("i")
        for level, kind, what in beside:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(what[: len(what) // 4 * 4])
        if not fds:
            self.refusal = data[HEADER:]
            return False
        self.lane = mmap.mmap(fds[0], os.fstat(fds[0]).st_size)
        if self.rings:
            self.bell = fds.pop()
        for fd in fds:
            os.close(fd)
        while data[HEADER] != WELCOME:
            data = self.socket.recv(LONGEST)
            if not data:
                self.refusal = b""
                return False
        return True

    def heard(self, within=0.05):
        """The bodies of the packets that are there, or come within this many seconds of each
        other."""
        out = []
        self.socket.settimeout(within)
        with contextlib.suppress(TimeoutError, BlockingIOError, ConnectionError):
            while said := self.socket.recv(LONGEST):
                out.append(said[HEADER:])
        self.socket.settimeout(BOUND)
        return out

    def is_let_go(self, within=BOUND):
        """Whether the broker hangs up within this many seconds."""
        self.socket.settimeout(within)
        try:
            while self.socket.recv(LONGEST):
                pass
            return True
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        finally:
            self.socket.settimeout(BOUND)

    def close(self):
        """Ends the connection."""
        self.socket.close()
        if self.lane is not None:
            self.lane.close()
        if self.bell is not None:
            os.close(self.bell)
            self.bell = None


def read_number(data, at):
    """An unsigned integer out of a body: its value, and the offset behind it."""
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not data[at - 1] & 0x80:
            return value, at


def ask(path, what, timeout=BOUND):
    """The broker's answer to a question: `what` is its name ("ping", "status", "queue") or its JSON
    as Python has it."""
    with connected(path, timeout) as one:
        one.send(question(json.dumps(what)))
        answer = b""
        while True:
            data = one.recv(LONGEST)
            if not data:
                raise ConnectionError("the broker hung up")
            assert data[HEADER] == ANSWER, data[HEADER : HEADER + 40]
            length, at = read_number(data, HEADER + 1)
            answer += data[at : at + length]
            if data[at + length]:
                return json.loads(answer)


def resident(pid):
    """Bytes of a process that are in memory."""
    return figure(pid, "VmRSS") << 10


def threads(pid):
    """Threads of a process."""
    return figure(pid, "Threads")


def cpu_seconds(pid):
    """CPU time that a process has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def figure(pid, name):
    """A number of /proc/PID/status."""
    return next(int(line.split()[1]) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(f"{name}:"))


def open_files(pid):
    """Descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))
