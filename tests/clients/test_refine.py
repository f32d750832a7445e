# SPDX-License-Identifier: MIT OR Apache-2.0
"""Learning of a job while weft serves it (`weft broker --refine`), and the service of an unknown
job.

Each case runs on a simulated GPU with kernel times of the case's own, and on a broker of its own.
The cases assert on the files, and on the order in which the broker decided.
"""

import json

from fixtures.scene import BOUND, COMPANION, weft
from harness import jobs, paths

# Samples of a served job after which its profile must follow: twelve are believed, and those from
# before its companions were known count for less.
SAMPLES = 60
# The companion's shortest and longest kernel times, ns.
SHORT, LONG = 200_000, 900_000
# Tolerance of a learnt time: one that counts another job's or the gate's time is at least twice
# as long, and a busy machine's device is slower by a tenth.
NEAR = 0.25


def kernels_take(scene, ns):
    """From the next start of the device on."""
    assert scene.device.wait_gone(), "the device is still there"
    config = scene.folder / "device.toml"
    config.write_text(f'[[kernel]]\nname = "simgpu_fill"\nns = {ns}\n')
    scene.device.settings["SIMGPU_CONFIG"] = str(config)


def broker(scene, *arguments):
    """A broker with these options."""
    scene.broker.arguments += arguments
    scene.broker.start()


def take_profile(scene, name="job"):
    done = weft(scene, "profile", "--name", name, "--", COMPANION, "--while", scene.running, "--at-most", 2, "--pause", 2000)
    assert done.returncode == 0, done.stderr
    return shown(scene, name)


def shown(scene, name="job"):
    done = weft(scene, "profile", "show", name, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def file_of(scene, name="job"):
    return scene.broker.profiles / f"{name}.profile"


def fill_time(profile):
    """The median time of the companion's kernel."""
    (found,) = [kernel for kernel in profile["kernels"] if kernel["symbol"] == "simgpu_fill"]
    return found["time"]["p50"]


def served(scene, role, samples=SAMPLES, **options):
    """Serves the job next to another one until `samples` of its launches were timed, and ends
    both."""
    foreground, background = ({"profile": "job"}, {}) if role == "foreground" else ({}, {"profile": "job"})
    first = scene.companion("first", priority=0, pause=3000, **foreground, **options)
    second = scene.companion("second", priority=5, pause=0, **background)
    job = first if role == "foreground" else second
    scene.attached(first, second)
    seen = jobs.wait_until(lambda: (scene.row(job) or {"samples": 0})["samples"] >= samples, BOUND, step=0.2)
    assert seen, f"too few launches were timed\n{scene.row(job)}"
    scene.progresses(job)
    scene.finish_companions(first, second)


def right_in_the_end(scene, role, wrong, true):
    broker(scene, "--refine")
    kernels_take(scene, wrong)
    before = take_profile(scene)
    assert abs(fill_time(before) - wrong) < wrong * NEAR, before
    kernels_take(scene, true)
    served(scene, role)
    written = jobs.wait_until(lambda: shown(scene)["refined"] == 1, BOUND, step=0.2)
    after = shown(scene)
    assert written, f"nothing was written\n{scene.broker.job.explain()}"
    assert abs(fill_time(after) - true) < true * NEAR, f"{fill_time(after)} ns, not {true}: {after}"
    same = ("name", "taken", "runs", "memory_peak", "ran_s", "gpu", "working_sets")
    assert [after[key] for key in same] == [before[key] for key in same], f"{before}\n{after}"
    left = [path.name for path in scene.broker.profiles.iterdir() if path.name.startswith(".")]
    assert not left, f"left behind: {left}"


def test_a_wrong_profile_of_a_foreground_job_becomes_right(scene):
    right_in_the_end(scene, "foreground", wrong=LONG, true=SHORT)


def test_a_wrong_profile_of_a_background_job_becomes_right(scene):
    right_in_the_end(scene, "background", wrong=SHORT, true=LONG)


def test_a_right_profile_stays_right(scene):
    broker(scene, "--refine")
    kernels_take(scene, LONG)
    take_profile(scene)
    for run in (1, 2):
        scene.running.touch()
        served(scene, "background")
        assert jobs.wait_until(lambda run=run: shown(scene)["refined"] == run, BOUND, step=0.2), scene.broker.job.explain()
        assert abs(fill_time(shown(scene)) - LONG) < LONG * NEAR, shown(scene)


def test_a_profile_of_other_code_stays_as_it_is(scene):
    broker(scene, "--refine")
    kernels_take(scene, LONG)
    # The checking client's profile knows none of the companion's launches.
    done = weft(scene, "profile", "--name", "job", "--", paths.BUILT / "weft-test-client", scene.folder / "profiled.json")
    assert done.returncode == 0, done.stderr
    before = file_of(scene).read_bytes()
    served(scene, "foreground")
    told = jobs.wait_until(lambda: "was not changed" in scene.broker.job.stderr(), BOUND, step=0.2)
    assert told, scene.broker.job.explain()
    assert file_of(scene).read_bytes() == before


def test_without_being_asked_nothing_is_timed_or_written(scene):
    broker(scene)
    kernels_take(scene, LONG)
    take_profile(scene)
    before = file_of(scene).read_bytes()
    kernels_take(scene, SHORT)
    first = scene.companion("first", priority=0, pause=3000, profile="job")
    second = scene.companion("second", priority=5, pause=0)
    scene.attached(first, second)
    scene.progresses(second)
    assert scene.row(first)["samples"] == 0, scene.row(first)
    scene.finish_companions(first, second)
    assert file_of(scene).read_bytes() == before


def test_a_job_without_a_profile_has_one_in_the_end(scene):
    broker(scene, "--refine")
    kernels_take(scene, SHORT)
    served(scene, "foreground")
    assert jobs.wait_until(lambda: file_of(scene).exists(), BOUND, step=0.2), scene.broker.job.explain()
    assert abs(fill_time(shown(scene)) - SHORT) < SHORT * NEAR, shown(scene)
    scene.running.touch()
    again = scene.companion("again", priority=0, profile="job")
    scene.attached(again)
    assert scene.row(again)["profile_trouble"] is None, scene.row(again)
    scene.finish_companions(again)


def test_a_background_job_of_which_nothing_is_known_has_one_kernel_at_a_time_until_it_is(scene):
    scene.broker.start()
    # Short compared with the charge of an unknown kernel (20 us), so that a later grant holds
    # several.
    kernels_take(scene, 30_000)
    first = scene.companion("first", priority=0, pause=8000)
    second = scene.companion("second", priority=5, pause=0)
    scene.attached(first, second)

    def told():
        lines = [line for line in jobs.lines_of(scene.broker.trace) if line.get("pid") == second.pid]
        return [line["event"] for line in lines if line.get("event") in ("grant", "launch")]

    def learnt():
        """Launches that went on one grant, later on."""
        events = told()
        return any(events[at : at + 3] == ["launch"] * 3 for at in range(len(events) - 2))

    assert jobs.wait_until(learnt, BOUND, step=0.5), f"it never has more than one: {told()[-40:]}"
    events = told()
    # Six ends must have been seen before it may run ahead. A grant that the foreground job's
    # return made void is followed by another one.
    sixth = [at for at, event in enumerate(events) if event == "launch"][5]
    begin = events.index("grant")
    ran_ahead = [at for at in range(begin, sixth) if events[at : at + 2] == ["launch"] * 2]
    assert begin < sixth and not ran_ahead, events[: sixth + 4]
    scene.finish_companions(first, second)
