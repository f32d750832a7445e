# SPDX-License-Identifier: MIT OR Apache-2.0
"""Cases of admission's book: one user's job must not keep other users' jobs from the device by its
messages or acts, and reports about waiting jobs are true.

Users are numbers that no account has here; the cases are played by root, since only root can be
several users. Their jobs are raw clients (wire.py), since programs would not send these messages.
"""

import contextlib
import json
import os
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
import wire
from fixtures.scene import BOUND
from harness import jobs, paths

ANN, BEA, CID = 61001, 61002, 61003
UUID = "a0b1c2d3" * 4
GB = 1 << 30
TOTAL = 80 * GB
BOOK = "admission::tests"
ADMITTED = 2


@contextlib.contextmanager
def user(uid):
    """Connections made meanwhile are this user's."""
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def admission_slot(client, share):
    """Offset of a client's admission slot in its lane, found by its share
    (broker/protocol/src/admission_slot.rs: state, answers, quota); None if it has no such share."""
    at = client.lane[:].find(struct.pack("Q", share)) - 8
    return at if at >= 0 and struct.unpack_from("I", client.lane, at)[0] == ADMITTED else None


class Shared:
    """A shared broker of root's, without NVML, and raw clients of several users."""

    def __init__(self, folder, options, _policy, *, measured=True):
        """`measured`: a context's size is known, so that jobs need not begin one by one."""
        self.folder, self.options = Path(folder), options
        self.folder.chmod(0o755)
        self.place = self.folder / "broker"
        self.place.mkdir(mode=0o755)
        self.socket = self.place / "broker.sock"
        self.profiles = self.folder / "profiles"
        self.profiles.mkdir()
        self.clients, self.processes, self.broker, self.starts, self.more = [], [], None, 0, {}
        self.known = self.place / "broker.sock.known.json"
        if measured:
            self.known.write_text(json.dumps({"format": 1, "contexts": {UUID: 300 << 20}, "learnt": []}))

    def open(self):
        assert os.geteuid() == 0, "only root can be several users"
        self.start()

    def environment(self):
        said = {"WEFT_SOCKET": str(self.socket), "WEFT_PROFILE_DIR": str(self.profiles), "HOME": str(self.folder), "XDG_RUNTIME_DIR": str(self.folder), "WEFT_LOG": "info"}
        said = {**jobs.clean_environment(), **said}
        # No common state folder.
        said.pop("WEFT_STATE_DIR", None)
        return {**said, **self.more}

    def start(self):
        self.starts += 1
        command = [paths.WEFT, "broker", "--shared", "--socket", self.socket]
        self.broker = jobs.Job(command, environment=self.environment(), folder=self.folder, name=f"broker{self.starts}")

        def answers():
            with contextlib.suppress(OSError):
                return bool(wire.ask(self.socket, "ping", timeout=2))
            return False

        assert jobs.wait_until(lambda: answers() or not self.broker.running(), BOUND) and self.broker.running(), self.broker.explain()

    def close(self):
        for client in self.clients:
            client.close()
        for process in self.processes:
            process.kill()
            process.communicate()
        self.broker.terminate()

    def client(self, uid, command, **said):
        """An attached client that has sent nothing else."""
        with user(uid):
            client = wire.Client(self.socket, command=command, **said)
        self.clients.append(client)
        assert client.welcome(), f"{command} is not let in: {client.refusal}"
        return client

    def job(self, uid, command, memory, *, total=TOTAL, uuid=UUID, runs=None, **said):
        """A client that declares its memory."""
        client = self.client(uid, command, **said)
        client.send(wire.wants(uuid, total, memory=memory, runs=runs))
        return client

    def process(self, uid, command, memory, priority=5):
        """The same in a process of its own; its end frees its memory. A line into it hangs up."""
        script = Path(__file__).with_name("raw_job.py")
        line = [sys.executable, script, self.socket, uid, command, memory, UUID, TOTAL, priority]
        self.processes.append(subprocess.Popen(list(map(str, line)), stdin=subprocess.PIPE))
        return self.processes[-1]

    def queue(self):
        return wire.ask(self.socket, "queue")["queue"]

    def row(self, kind, command):
        return next((row for row in self.queue()[kind] if row["command"] == command), None)

    def until(self, what, condition):
        assert jobs.wait_until(condition, BOUND, step=0.05), f"{what}: not within {BOUND:.0f} s\n{json.dumps(self.queue(), indent=1)}\n{self.broker.explain()}"

    def runs(self, command):
        self.until(f"{command} runs", lambda: self.row("running", command))

    def waits(self, command):
        self.until(f"{command} waits", lambda: self.row("waiting", command))

    def weft(self, *words):
        done = subprocess.run([str(paths.WEFT), *words], env=self.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BOUND, check=False)
        assert done.returncode == 0, done
        return done.stdout


pytestmark = pytest.mark.scene(make=Shared)


@pytest.mark.finding("correctness-6")
def test_who_names_a_gpu_first_does_not_say_for_all_how_large_it_is(scene, rust):
    seeker = {"pid": os.getpid(), "gang": "x", "user": "", "priority": 5, "memory": None, "duration": None, "processes": 1, "managed": False, "either": False}
    with user(ANN):
        placed = wire.ask(scene.socket, {"place": {**seeker, "devices": [{"uuid": UUID, "memory": GB, "free": None}]}})
    assert "placed" in placed, placed
    assert scene.queue()["devices"] == [], "a question makes a device known"
    scene.job(ANN, "liar", 1024, total=GB)
    scene.runs("liar")
    scene.job(BEA, "bea", 8 * GB)
    scene.runs("bea")
    assert [row["memory"] for row in scene.queue()["devices"]] == [TOTAL], scene.queue()["devices"]
    # Nor over a restart, whose first client is this user's.
    scene.broker.kill()
    scene.start()
    scene.job(ANN, "again", 1024, total=GB)
    scene.runs("again")
    scene.job(CID, "cid", 8 * GB)
    scene.runs("cid")
    rust("weft-daemon", f"{BOOK}::shared::a_lie_about_a_device_ends_with_its_broker", f"{BOOK}::shared::where_nvml_tells_a_job_says_no_more_than_how_much_of_it_cuda_has")


@pytest.mark.finding("correctness-10")
def test_who_waits_for_more_keeps_out_only_whom_it_would_wait_longer_for(scene, rust):
    scene.job(ANN, "idle", 10 * GB)
    scene.runs("idle")
    grows = scene.job(ANN, "grows", GB)
    scene.runs("grows")
    context = scene.queue()["devices"][0]["context"]
    grows.send(wire.more(TOTAL - 3 * GB - 2 * context, (1 << 64) - 1))
    scene.until("it waits for more", lambda: scene.row("running", "grows")["waits_for"])
    # As soon as the idle one ends it has all that it wants, and two GiB are left next to it.
    scene.job(BEA, "bea", GB)
    scene.runs("bea")
    rust("weft-admission", "growing::tests::who_waits_for_more_keeps_others_out_for_a_minute_in_an_hour_and_no_longer", "growing::tests::who_leaves_him_who_grows_what_he_waits_for_begins")


@pytest.mark.finding("correctness-11")
def test_one_users_look_keeps_no_other_user_out_and_no_change_blinds_the_broker(scene, rust):
    share = (1 << 20) + 0x5EA7
    liar = scene.job(ANN, "liar", share)
    scene.until("the liar is let in", lambda: admission_slot(liar, share) is not None)
    liar.send(wire.context(0, 0, time.clock_gettime_ns(time.CLOCK_MONOTONIC)))
    scene.until("its look was taken in", lambda: scene.queue()["devices"][0]["foreign"] > 70 * GB)
    # A change that never ends: seven have begun and six ended, in the words behind the admission
    # slot, which has 64 bytes.
    struct.pack_into("QQQ", liar.lane, admission_slot(liar, share) + 64, 7, 6, 0)
    # The waiting job finds out for itself after some seconds, though no other job could look.
    bea = scene.job(BEA, "bea", GB)
    scene.waits("bea")
    scene.runs("bea")

    def sees():
        bea.send(wire.context(TOTAL - GB - (500 << 20), GB, time.clock_gettime_ns(time.CLOCK_MONOTONIC)))
        return scene.queue()["devices"][0]["foreign"] < GB

    liar.send(wire.context(0, 0, time.clock_gettime_ns(time.CLOCK_MONOTONIC)))
    scene.until("her look counts", sees)
    scene.job(CID, "cid", 8 * GB)
    scene.runs("cid")
    tests = ("a_change_that_does_not_end_keeps_nobody_from_seeing", "where_nvml_tells_a_look_is_only_the_reason_to_ask_it", "what_one_user_says_of_strangers_keeps_no_other_user_out_for_long")
    rust("weft-daemon", *(f"{BOOK}::shared::{test}" for test in tests))


@pytest.mark.finding("correctness-7")
def test_devices_that_are_made_up_are_bounded(scene, rust):
    scene.job(BEA, "bea", GB)
    scene.runs("bea")
    liar = scene.client(ANN, "liar")
    for number in range(500):
        liar.send(wire.wants(f"{number:032x}", TOTAL, memory=GB))
    offers = [{"uuid": f"{number:032x}", "memory": GB, "free": None} for number in range(1000, 1300)]
    with user(ANN):
        wire.ask(scene.socket, {"place": {"pid": os.getpid(), "gang": "", "user": "", "priority": 5, "memory": None, "duration": None, "processes": 1, "managed": False, "either": False, "devices": offers}})
    # A user has no more than sixteen, and a device that a job only asks a place on is not
    # counted.
    scene.until("the liar's words were heard", lambda: scene.row("running", "liar"))
    liar.send(wire.note("the last word"))
    scene.until("all of them were", lambda: any("the last word" in note for row in wire.ask(scene.socket, "status")["status"]["clients"] for note in row["notes"]))
    assert len(scene.queue()["devices"]) <= 17, len(scene.queue()["devices"])
    tests = ("tests::shared::devices_are_bounded_and_those_where_nobody_is_are_forgotten", "tests::shared::what_is_written_is_never_more_than_what_is_read", "device_facts::tests::what_is_kept_of_devices_is_bounded_and_those_that_are_there_stay")
    rust("weft-daemon", *(f"admission::{test}" for test in tests))


@pytest.mark.finding("correctness-22")
def test_jobs_that_grow_where_the_other_one_holds_do_not_wait_for_ever(rust):
    rust("weft-daemon", f"{BOOK}::jobs_that_grow_where_the_other_one_holds_do_not_wait_for_ever")


@pytest.mark.finding("correctness-25")
def test_a_look_of_tomorrow_is_one_of_now(rust):
    rust("weft-daemon", f"{BOOK}::shared::a_look_of_tomorrow_is_one_of_now")


@pytest.mark.finding("correctness-17")
def test_an_event_looks_at_all_who_run_a_few_times_however_many_wait(rust):
    tests = ("an_event_sums_up_a_few_times_however_many_wait", "sums_are_what_each_scan_would_find")
    rust("weft-admission", *(f"sums::tests::{test}" for test in tests))


@pytest.mark.finding("users-B6")
def test_who_waits_for_memory_has_no_role_and_is_shown_to_wait(scene, rust):
    scene.process(ANN, "trains", 60 * GB, 9)
    scene.runs("trains")

    def row(command):
        return next(row for row in wire.ask(scene.socket, "status")["status"]["clients"] if row["command"] == command)

    scene.until("it is alone", lambda: row("trains")["mode"] == "alone")
    service = scene.job(ANN, "service", 60 * GB, priority=5)
    scene.waits("service")
    scene.until("it is shown to wait", lambda: row("service")["mode"] == "waits for memory")
    assert row("service")["waits_for_memory_s"] >= 0 and row("trains")["waits_for_memory_s"] is None, row("service")
    scene.until("the one that runs is alone", lambda: row("trains")["mode"] == "alone")
    assert "waits for memory" in scene.weft("status") and "waits for memory" in scene.weft("top", "-n", "1", "-i", "0.1")
    # Once let in, it has the role of its priority.
    scene.job(ANN, "beside", GB, priority=9)
    scene.runs("beside")
    scene.processes[0].kill()
    scene.until("the service has its role", lambda: (row("service")["mode"], row("beside")["mode"]) == ("foreground", "background"))
    assert row("service")["waits_for_memory_s"] is None
    del service
    rust("weft-daemon", "scheduling::device_cores::tests::who_waits_for_memory_has_no_role_and_takes_nobodys")


@pytest.mark.finding("users-B7")
def test_who_waited_is_counted_as_it_begins_and_a_guess_is_called_one(scene):
    first = scene.process(ANN, "first", 60 * GB)
    scene.runs("first")
    scene.job(BEA, "second", 60 * GB)
    scene.waits("second")
    seen = scene.queue()
    assert (seen["admitted"], seen["waited"]) == (1, 0), seen
    page = scene.weft("queue", "-v")
    assert "min (guess)" in page and "1 admitted so far, 0 of them after a wait" in page, page
    first.kill()
    scene.runs("second")
    seen = scene.queue()
    assert (seen["admitted"], seen["waited"]) == (2, 1), seen


@pytest.mark.finding("attack-A2")
def test_who_hangs_up_or_spoils_its_lane_keeps_what_its_process_holds(scene, rust):
    holder = scene.process(ANN, "holder", 30 * GB)
    liar = scene.job(ANN, "liar", 30 * GB)
    for name in ("holder", "liar"):
        scene.runs(name)
    scene.job(BEA, "waiter", 40 * GB)
    scene.waits("waiter")
    holder.stdin.write(b"hang up\n")
    holder.stdin.flush()
    liar.lane[:8] = b"\0" * 8
    assert liar.is_let_go(), "no lane begins so"
    clients = lambda: wire.ask(scene.socket, "status")["status"]["clients"]  # noqa: E731
    scene.until("the waiter alone is a client", lambda: len(clients()) == 1)
    # Both processes run, and so both have their memory.
    seen = scene.queue()
    assert [row["command"] for row in seen["waiting"]] == ["waiter"], seen
    assert sorted(row["command"] for row in seen["running"]) == ["holder", "liar"], seen
    assert all(row["share"] >= 30 * GB for row in seen["running"]), seen
    holder.kill()
    scene.runs("waiter")
    assert scene.row("running", "liar"), scene.queue()
    rust("weft-daemon", f"{BOOK}::free_memory::who_is_let_go_keeps_its_share_until_its_process_ends")


@pytest.mark.finding("attack-A1")
def test_a_broker_that_ends_admits_nobody_and_the_next_one_knows_all(scene, rust):
    scene.process(ANN, "holder", 60 * GB)
    scene.runs("holder")
    waiter = scene.process(BEA, "waiter", 60 * GB)
    scene.waits("waiter")
    scene.broker.terminate()
    scene.start()
    seen = scene.queue()
    assert [row["command"] for row in seen["running"]] == ["holder"], seen
    assert [row["command"] for row in seen["waiting"]] == ["waiter"], seen
    waiter.kill()
    scene.until("who has ended waits no more", lambda: not scene.queue()["waiting"])
    rust("weft-daemon", f"{BOOK}::free_memory::an_ending_broker_admits_nobody_and_its_successor_knows_all")


@pytest.mark.finding("users5-L8")
def test_no_command_is_in_the_folder_that_containers_have(scene):
    state, command = scene.folder / "state", "job --key=SECRET"

    def names_it():
        return [file.name for file in scene.place.iterdir() if file.is_file() and b"SECRET" in file.read_bytes()]

    scene.job(ANN, command, 60 * GB)
    # No state folder: the files are next to the socket, as those of an earlier version.
    scene.until("the next broker can read it", lambda: "broker.sock.admission_slots" in names_it())
    scene.broker.terminate()
    for file in scene.place.glob("broker.sock.history*"):
        file.unlink()
    scene.more = {"WEFT_STATE_DIR": str(state)}
    scene.start()
    kept = state / (str(scene.socket).replace("/", "%") + ".admission_slots")
    assert not names_it() and kept.exists() and stat.S_IMODE(state.stat().st_mode) == 0o700
    scene.job(BEA, f"{command}2", 60 * GB)
    scene.until("it is kept for the next broker", lambda: b"SECRET2" in kept.read_bytes())
    assert not names_it()
    assert [row["command"] for row in scene.queue()["running"]] == [command]


@pytest.mark.finding("users-B10")
@pytest.mark.scene(measured=False)
def test_what_is_learnt_in_private_is_not_shown_to_all(scene, rust):
    private = scene.profiles / "known.json"
    took = {"family": 0, "pid": 77, "command": "python secret.py", "user": "0", "gpu": None, "peak": GB, "ran": 1, "denied": False}
    private.write_text(json.dumps({"format": 1, "contexts": {UUID: 5}, "learnt": [took]}))
    scene.broker.terminate()
    scene.start()
    first = scene.job(ANN, "first", 60 * GB)
    scene.runs("first")
    with user(BEA):
        seen = wire.ask(scene.socket, "queue")["queue"]
    assert seen["learnt"] == [] and seen["devices"][0]["context"] != 5, seen
    assert [row["uid"] for row in seen["running"]] == [ANN], seen
    # The facts that it learns itself lie next to its socket, and no other user can read them.
    first.send(wire.context(TOTAL - (300 << 20), 0, time.clock_gettime_ns(time.CLOCK_MONOTONIC)))
    scene.until("it has written what a context takes", scene.known.exists)
    for file in (scene.known, scene.place / "broker.sock.admission_slots"):
        mode = stat.S_IMODE(file.stat().st_mode)
        assert mode == 0o600, f"{file.name} has mode {mode:o}"
    assert json.loads(private.read_text())["contexts"] == {UUID: 5}
    rust("weft-daemon", "admission::device_facts::tests::what_was_learnt_is_known_to_the_next_and_what_is_broken_is_nothing")
