# SPDX-License-Identifier: MIT OR Apache-2.0
"""The launch queue and the hooks around it: their effect on a job's call, and their leftovers."""

import itertools

import pytest
from built import compiled
from fixtures.scene import BOUND, Scene
from harness import devicelog, jobs, paths


class Strict:
    """A driver that follows its handles (programs/strict_driver.c) in the place of a device."""

    simulated = False
    log = None
    dilation = 1

    def __init__(self, library):
        self.library = library

    def environment(self, libraries=()):
        return {"STRICT": str(self.library)}

    def weft_environment(self):
        return {"WEFT_CUDA_LIBRARY": str(self.library)}

    def wait_gone(self, bound=10.0):
        return True


class StrictScene(Scene):
    """A scene whose clients have the strict driver."""

    def open(self):
        self.device = self.broker.device = Strict(compiled(self, "strict_driver.c", "-shared", "-fPIC"))

    def plain(self, program, *arguments, more=None):
        """The same program without weft."""
        environment = {**jobs.clean_environment(), **self.device.environment(), "DRIVER": str(self.device.library), **(more or {})}
        self.number += 1
        job = jobs.Job([program, *arguments], environment=environment, folder=self.folder, name=f"plain{self.number}")
        self.jobs.append(job)
        return job

    def strict(self, program, *arguments, more=None, **preload):
        """Under weft. Kernels take some time: if their times are known, those that take none go at
        once."""
        more = {"DRIVER": "libcuda.so.1", "STRICT_KERNEL_US": "30", **(more or {})}
        return self.job([program, *arguments], more=more, **preload)


def ended(scene, job):
    """The broker's record of a job that has ended."""
    found = []

    def there():
        found[:] = [entry["last"] for entry in (scene.broker.status() or {"ended": []})["ended"] if entry["last"]["pid"] == job.pid]
        return bool(found)

    assert jobs.wait_until(there, BOUND, step=0.1), f"the broker never saw {job.name} end"
    return found[0]


def beside_foreground(scene, pause=0):
    """A broker, and a job that keeps the device busy and matters more than any other."""
    scene.broker.start()
    return scene.companion("foreground", priority=0, pause=pause)


@pytest.mark.finding("clients-F2")
@pytest.mark.scene(make=StrictScene)
def test_who_lists_kernels_may_have_room_for_more_than_there_are(scene):
    program = compiled(scene, "enumerate.c")
    plain, under = scene.plain(program), scene.strict(program, more={"WEFT_LOG": "error"})
    scene.finish(plain)
    scene.finish(under)
    assert plain.stdout() == under.stdout() != b"", f"{plain.stdout()} and {under.stdout()}"
    assert b"others" not in plain.stdout(), plain.stdout()


@pytest.mark.finding("correctness-13", "clients-F6")
def test_a_thread_that_is_cancelled_at_the_gate_ends_alone(scene):
    program = compiled(scene, "cancel.c", f"-I{paths.CLIENTS / 'guest'}")
    # A foreground job without pauses: the thread stands at the gate nearly always.
    beside_foreground(scene)
    for queue in ("on", "off"):
        job = scene.job([program, "6"], more={"WEFT_QUEUE": queue})
        scene.finish(job)
        assert job.stdout() == b"all cancelled\n", job.stdout()
        last = ended(scene, job)
        waited = last["left_behind"] if queue == "on" else last["waits"]
        assert waited > 5, f"queue {queue}: it hardly ever was at the gate: {waited}"
        assert last["troubles"] == 0, last["troubles"]


@pytest.mark.finding("correctness-13", "clients-F6")
@pytest.mark.scene(make=StrictScene)
def test_a_thread_that_is_cancelled_in_the_driver_ends_as_without_weft(scene):
    program = compiled(scene, "cancel_in_driver.c")
    wanted = b"cancelled, cleaned up\n" * 3
    scene.broker.start()
    for where in ("cuStreamSynchronize", "cuCtxSynchronize", "cuMemFree_v2", "cuLaunchKernel"):
        more = {"STRICT_WAIT": where}
        plain = scene.plain(program, more=more)
        under = scene.strict(program, more=more)
        traced = scene.strict(program, more=more, mode="trace")
        movable = scene.strict(program, more={**more, "WEFT_BACKING": "movable"})
        for job in (plain, under, traced, movable):
            scene.finish(job)
            assert job.stdout() == wanted, f"{job.name}, {where}: {job.stdout()}"


def holds(scene, program):
    """A broker, and a client of the strict driver that launches without pauses and matters more
    than any other."""
    scene.broker.start()
    job = scene.strict(program, "hold", scene.running, priority=0)
    scene.attached(job)
    return job


@pytest.mark.finding("clients-F3")
@pytest.mark.scene(make=StrictScene)
def test_what_failed_in_the_queue_is_told_unless_its_context_has_really_ended(scene):
    program = compiled(scene, "references.c")
    holds(scene, program)
    job = scene.strict(program, "forgive")
    scene.finish(job)
    said = dict(line.rsplit(": ", 1) for line in job.stdout().decode().splitlines())
    assert said == {
        "one of two references given back": "701",
        "another context ended": "719",
        "and then": "0",
        "the context itself ended": "0",
    }, said
    assert ended(scene, job)["left_failed"] >= 3


@pytest.mark.finding("clients-F4")
@pytest.mark.scene(make=StrictScene)
def test_a_reference_that_comes_and_goes_costs_no_events_and_no_launch_its_place_in_the_queue(scene):
    program = compiled(scene, "references.c")
    holds(scene, program)
    rounds = 240
    job = scene.strict(program, "retain", rounds)
    scene.finish(job)
    made, gone = map(int, job.stdout().split())
    # Marks, as many as can be under way at once, and the events of a window of timed launches.
    assert made - gone <= 64 + 66, f"{made} events were made, {gone} destroyed"
    # First launches of a kernel and timed ones are its own thread's; others may be left behind.
    left = ended(scene, job)["left_behind"]
    assert left > rounds, f"{left} launches of {rounds} rounds were left behind"


@pytest.mark.finding("correctness-14")
def test_a_stream_that_is_asked_about_is_ready_whatever_other_threads_launch_elsewhere(scene):
    program = compiled(scene, "poll.c", f"-I{paths.CLIENTS / 'guest'}")
    beside_foreground(scene)
    elsewhere = scene.job([program, "1"])
    scene.finish(elsewhere)
    # Nothing ever ran on its own stream. The other one is fed without end, and seen at rest all
    # the same, within the time in which a thread that waits for it would be served.
    assert elsewhere.stdout() == b"of its own: 4000\nthe other's came to rest: 1\n", elsewhere.stdout()
    waited_for = scene.job([program, "0"])
    scene.finish(waited_for)
    assert waited_for.stdout() == b"what it waits for came to rest: 1\n", waited_for.stdout()
    for job in (elsewhere, waited_for):
        assert ended(scene, job)["left_behind"] > 64, "nothing was left behind, so nothing was tested"


@pytest.mark.finding("clients-S3")
@pytest.mark.scene(make=StrictScene)
def test_a_job_that_ends_by_itself_has_made_its_launches(scene):
    program = compiled(scene, "leave.c")
    holds(scene, compiled(scene, "references.c"))
    tally = scene.folder / "tally"

    def played(how, code):
        tally.write_bytes(bytes(8))
        job = scene.strict(program, how, more={"STRICT_TALLY": str(tally)})
        scene.finish(job, code)
        made, left = map(int, job.stdout().split())
        assert left > 0, f"{how}: nothing was in the queue"
        return made, int.from_bytes(tally.read_bytes(), "little")

    for how in ("_exit", "_Exit", "quick_exit", "exit"):
        made, arrived = played(how, 7)
        assert made == arrived, f"{how}: {arrived} of {made} launches reached the driver"
    # If no thread can do it any more, the process ends all the same, and by its own code.
    made, arrived = played("handler", 7)
    assert arrived >= made, f"in a handler: {arrived} of {made} launches reached the driver"
    # A child that shares the memory makes none of its parent's launches, and does not stop the
    # queue.
    made, arrived = played("vfork", -9)
    assert arrived < made, f"after a child's end {arrived} of {made} launches reached the driver"


@pytest.mark.finding("correctness-19")
@pytest.mark.scene(make=StrictScene)
def test_no_call_of_a_function_newer_than_weft_overtakes_a_launch(scene):
    program = compiled(scene, "newer.c")
    holds(scene, compiled(scene, "references.c"))
    for how in ("dlsym", "lookup"):
        job = scene.strict(program, how)
        scene.finish(job)
        assert job.stdout() == b"overtaken: 0\novertaken later: 0\n", f"{how}: {job.stdout()}"
        assert job.stderr().count("cuStrictNews is newer than this weft") == 1, job.explain()


@pytest.mark.finding("correctness-20")
@pytest.mark.scene(make=StrictScene)
def test_a_job_that_shut_itself_in_leaves_launches_behind_without_a_new_thread(scene):
    program = compiled(scene, "shut_in.c")
    plain = scene.plain(program, "plain")
    scene.finish(plain)
    holds(scene, compiled(scene, "references.c"))
    job = scene.strict(program, "background")
    scene.finish(job)
    assert job.stdout() == plain.stdout() == b"0 left\n", f"{job.stdout()} and {plain.stdout()}"
    assert ended(scene, job)["left_behind"] > 0


@pytest.mark.finding("correctness-26")
def test_what_detaches_ends_something_and_calls_of_weft_spoil_no_capture(rust):
    rust(
        "weft-interposer",
        "deferred::tests::what_ends_something_is_told_from_what_does_not",
        "driver::capture::tests::calls_of_ours_are_made_in_relaxed_capture_mode",
    )


@pytest.mark.finding("clients-S1")
def test_tens_of_thousands_of_executable_graphs_have_names(rust):
    rust("weft-interposer", "hooks::graph::tests::tens_of_thousands_of_graphs_that_live_at_once_are_told_apart")


@pytest.mark.finding("hardware-F11")
def test_an_updated_graph_is_followed_by_a_few_looks_at_a_time(rust):
    tests = "hooks::graph::tests"
    rust("weft-interposer", f"{tests}::within_a_round_of_updates_every_node_is_looked_at_and_few_after_each", f"{tests}::a_graph_that_differs_each_time_is_read_ever_more_rarely")


# Tables that weft knows: the runtime's, two of compilers and cuBLAS, cuFFT's, cuSPARSELt's, and the
# one that each runtime asks for before cuInit.
KNOWN_TABLES = [
    "c693336e1121df11a8c368f355d89593",
    "da9151d33ae6cc41a5c04f26d533e328",
    "1734dc26800d47458726c0f1e7dd8bca",
    "6e163fbeb958444d835ce182aff1991e",
    "cd3ea2c67076db4b882e52ae6c2d86f7",
    "f8cff95121468b4eb9e2fb469e7c0dd9",
]
# And a table that no driver has.
UNKNOWN_TABLE = "5a" * 16


@pytest.mark.finding("hardware-F7")
@pytest.mark.scene(make=StrictScene)
def test_on_newer_devices_no_call_by_an_unknown_private_table_overtakes_a_launch(scene):
    program = compiled(scene, "tables.c")
    holds(scene, compiled(scene, "references.c"))
    in_order = b"overtaken: 0\novertaken later: 0\n"
    known = ",".join(KNOWN_TABLES)
    for major, tables, when, wanted in (
        ("9", UNKNOWN_TABLE, "later", in_order),
        ("10", UNKNOWN_TABLE, "later", in_order),
        ("9", UNKNOWN_TABLE, "early", b"overtaken later: 0\n"),
        ("9", known, "later", b"left behind\n"),
        ("9", known, "early", b"left behind\n"),
        ("8", UNKNOWN_TABLE, "later", b"left behind\n"),
    ):
        what = f"tables {tables}, {when}, on compute capability {major}"
        job = scene.strict(program, tables, when, "leaves" if wanted == b"left behind\n" else "waits", more={"STRICT_MAJOR": major})
        scene.finish(job)
        assert job.stdout() == wanted, f"{what}: {job.stdout()}"
        assert "not deferred" not in job.stderr() and "private" not in job.stderr(), f"{what}: {job.stderr()}"
    # A user may request that nothing goes through it.
    job = scene.strict(program, UNKNOWN_TABLE, "later", "leaves", more={"STRICT_MAJOR": "9", "WEFT_QUEUE": "always"})
    scene.finish(job)
    assert job.stdout() == b"left behind\n", job.stdout()
    # The log names the table.
    job = scene.strict(program, UNKNOWN_TABLE, "later", "waits", more={"STRICT_MAJOR": "9", "WEFT_LOG": "debug"})
    scene.finish(job)
    assert "private table 5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a: handed out, not known" in job.stderr(), job.explain()


@pytest.mark.finding("hardware-F17")
@pytest.mark.scene(make=StrictScene)
def test_a_collective_does_not_wait_at_the_gate_and_overtakes_nothing(scene, rust):
    program = compiled(scene, "collective.c")
    holds(scene, compiled(scene, "references.c"))
    job = scene.strict(program)
    scene.finish(job)
    assert job.stdout() == b"rounds with a queue: some, left when the collective was launched: 0\n", job.stdout()
    last = ended(scene, job)
    assert last["unsplit"] > 0 and last["left_behind"] >= 20, last
    rust("weft-kernel-id", "collective::tests::collectives_are_told_from_other_kernels")
    rust(
        "weft-interposer",
        "throttle::tests::gate::a_collective_goes_past_who_waits_at_the_gate_and_is_charged",
    )


def test_dependent_launches_wait_at_the_gate_and_overlap_behind_it(scene):
    program = compiled(scene, "dependent.c", f"-I{paths.CLIENTS / 'guest'}")
    log = scene.folder / "device.log"
    # Devices before compute capability 9.0 have no such launches.
    scene.device.settings |= {"SIMGPU_MODEL": "h100", "SIMGPU_LOG": str(log)}
    foreground = beside_foreground(scene, pause=500)
    ran = []
    for queue in ("on", "off"):
        job = scene.job([program], more={"WEFT_QUEUE": queue})
        scene.finish(job)
        assert job.stdout() == b"in order\n", job.stdout()
        last = ended(scene, job)
        waited = last["left_behind"] if queue == "on" else last["waits"]
        assert waited > 5 and last["troubles"] == 0, f"queue {queue}: {last}"
        ran.append(job.pid)
    scene.finish_companions(foreground)
    assert scene.device.wait_gone()
    kernels = [record for record in devicelog.read(log, without=foreground.pid) if record["op"] == "kernel"]
    for pid in ran:
        of_first = [record for record in kernels if record["pid"] == pid and record["grid"] == [20_000, 1, 1]]
        early = sum(after["t"] < before["end"] for before, after in itertools.pairwise(of_first))
        assert len(of_first) == 360 and early > 10, f"{early} of {len(of_first)} begin before the end of the one before"
