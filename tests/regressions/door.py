"""What one user of a shared broker cannot do to it, or to the jobs of others: the door, the control thread, what is kept of each.

The attacker is user MEAN, who speaks the broker's packets by himself (wire.py). Bounds are far above what an idle machine needs.
"""

import contextlib
import errno
import json
import os
import signal
import socket
import struct
import time

from stage import BOUND, finding
from users import ANN, BEA, becomes
from users import Scene as Users

import wire

MEAN = 61003
ROW = struct.Struct("ii")


class Mean:
    """A process of user MEAN's that does `work(say)`: what it says is heard by `heard`. It stays until the case ends."""

    def __init__(self, work, uid=MEAN):
        self.out, theirs = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.out)
            try:
                raise_limits()
                becomes(uid)()
                work(lambda what: os.write(theirs, json.dumps(what).encode() + b"\n"))
                signal.pause()
            except BaseException as error:  # noqa: BLE001
                os.write(theirs, json.dumps({"error": repr(error)}).encode() + b"\n")
            finally:
                os._exit(0)
        os.close(theirs)
        self.lines = os.fdopen(self.out)

    def heard(self):
        """The next thing it says."""
        line = self.lines.readline()
        said = json.loads(line) if line else {"error": "it ended"}
        assert not (isinstance(said, dict) and "error" in said), said
        return said

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.lines.close()


def raise_limits():
    import resource

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Scene(Users):
    """The scene of tests/admission/users.py, with what the broker takes."""

    def __init__(self, folder, options, policy, **more):
        assert os.geteuid() == 0, "only root can start jobs of several users"
        super().__init__(folder, options, policy, **more)

    @property
    def pid(self):
        return self.broker.pid

    def pings(self, times=5):
        """An honest user is answered, as often as he asks."""
        for _ in range(times):
            assert "pong" in wire.ask(self.socket, "ping")

    def status(self):
        return wire.ask(self.socket, "status")["status"]

    def until(self, what, condition, bound=BOUND):
        end = time.monotonic() + bound
        while not condition():
            assert time.monotonic() < end, f"{what}: not within {bound:.0f} s; {self.broker.stderr()[-2000:]}"
            time.sleep(0.02)


def hostile(*findings, **more):
    return finding(*findings, scene=Scene, **more)


def lingering():
    """A descriptor whose last close waits ten minutes, and what keeps it so."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    lingers = socket.socket()
    lingers.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ROW.pack(1, 600))
    lingers.connect(listener.getsockname())
    peer, _ = listener.accept()
    lingers.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            lingers.send(b"x" * 65536)
    return lingers, (listener, peer)


def passed(send):
    """Sends a packet with a descriptor: whether this kernel let it."""
    try:
        send()
        return True
    except OSError as error:
        # From Linux 6.16 on the broker has the kernel refuse it.
        assert error.errno == errno.EPERM, error
        return False


def slips_in(path, packets, say):
    """Connects, and sends each packet with a descriptor of which no copy stays here."""
    kept = []
    for make in packets:
        lingers, beside = lingering()
        client = make(path)
        taken = passed(lambda client=client, lingers=lingers: client.socket.sendmsg([client.next], wire.descriptors([lingers.fileno()])))
        lingers.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ROW.pack(1, 600 if taken else 0))
        lingers.close()
        kept.append((client, beside))
    say(len(kept))
    signal.pause()


class Connection:
    """A connection, and the packet that goes next."""

    def __init__(self, path, following):
        self.socket, self.next = wire.connected(path), following


def silent(following):
    return lambda path: Connection(path, following)


def attached(following):
    def make(path):
        client = wire.Client(path, command="linger")
        assert client.welcome(), client.refusal
        client.next = following
        return client

    return make


@hostile("correctness-1")
def a_descriptor_whose_close_hangs_holds_up_neither_the_door_nor_the_control_thread(scene):
    packets = [
        silent(wire.question('"ping"')),
        silent(wire.hello(command="one")),
        silent(wire.hello(profile="p", command="two")),
        silent(b"nonsense"),
        attached(wire.note("hi")),
        attached(b"nonsense"),
    ]
    with Mean(lambda say: slips_in(scene.socket, packets, say)) as mean:
        assert mean.heard() == len(packets)
        scene.pings()
        # The control thread hears an honest job, and answers.
        honest = wire.Client(scene.socket, command="honest")
        assert honest.welcome(), honest.refusal
        honest.send(wire.note("heard"))
        scene.until("it is heard", lambda: any("heard" in row["notes"] for row in scene.status()["clients"]))
        honest.close()
    scene.until("whoever ends is missed", lambda: scene.status()["clients"] == [])


@hostile("correctness-1")
def nobody_who_waits_for_memory_begins_beside_it(scene):
    holder = scene.holder(ANN, "holder", "6GiB")
    waiter = scene.waiter(BEA, "waiter", "5GiB")
    with Mean(lambda say: slips_in(scene.socket, [attached(wire.note("hi"))], say)) as mean:
        assert mean.heard() == 1
        assert scene.row("waiting", waiter), scene.query()
        # Were the queue not kept any more, the end of this one would not be heard of, and the other would begin after ten seconds without its broker's word.
        scene.finish(holder)
        scene.until("it begins", lambda: "took" in scene.events(waiter))
        assert "keeps no queue" not in waiter.stderr(), waiter.stderr()
        assert scene.row("running", waiter), scene.query()
        scene.finish(waiter)


@hostile("correctness-1")
def closing_counting_and_beating_hold_where_no_kernel_helps(_):
    from stage import rust

    rust(
        "weft-broker",
        "daemon::beat::tests::a_queue_that_stands_for_a_moment_lets_nobody_go_and_one_that_nobody_keeps_holds_nobody",
        "transport::server::callers::tests::a_close_that_hangs_holds_up_its_own_user_alone_and_counts_until_it_is_done",
        "transport::server::listener::tests::on_a_kernel_that_cannot_a_descriptor_whose_close_hangs_holds_up_nobody",
    )


# What a client of a user keeps the broker from, or has it keep, may take so many descriptors: none of them after it was let go.
SLACK = 64


@hostile("correctness-8")
def who_is_let_go_keeps_nothing(scene):
    before = wire.open_files(scene.pid)

    def many(say):
        kept = []
        for at in range(300):
            client = wire.Client(scene.socket, command=f"p{at}")
            assert client.welcome(), client.refusal
            if at % 2:
                client.send(b"nonsense")
            else:
                # No lane begins so.
                client.lane[:8] = b"\0" * 8
            kept.append(client)
        end = time.monotonic() + BOUND
        say(sum(client.is_let_go(max(end - time.monotonic(), 0.001)) for client in kept))

    with Mean(many) as mean:
        assert mean.heard() == 300, "all of them are told by their connection"
        assert scene.status()["broker"]["detached"] == 300, scene.status()["broker"]
        scene.until("nothing of them is open", lambda: wire.open_files(scene.pid) < before + SLACK)
        scene.pings()


@hostile("correctness-8")
def a_user_has_so_many_clients_and_others_have_room(scene):
    def many(say):
        kept = []
        for at in range(1500):
            client = wire.Client(scene.socket, command=f"p{at}")
            if not client.welcome():
                break
            kept.append(client)
        say(len(kept))

    with Mean(many) as mean:
        count = mean.heard()
        # A quarter of 4,096, or of what this machine lets the broker open.
        files = int(next(line for line in open(f"/proc/{scene.pid}/limits") if line.startswith("Max open files")).split()[3])
        assert count == min(4096, (files - 256) // 5) // 4, (count, files)
        honest = wire.Client(scene.socket, command="honest")
        assert honest.welcome(), honest.refusal
        scene.pings()
