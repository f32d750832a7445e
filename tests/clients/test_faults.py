# SPDX-License-Identifier: MIT OR Apache-2.0
"""The effects of faults: brokers and jobs that are killed, stopped, forked, started by the hundred;
bad files, full disks.

  pytest tests/clients/test_faults.py --kills 200      200 SIGKILLs at random moments (default 60)

Each case runs on a simulated GPU and a broker of its own.
"""

import os
import random
import resource
import signal
import socket
import sys
import time

import pytest
from fixtures.scene import BOUND, CLIENT, says, weft
from harness import jobs

# A background job whose host waits at the gate, and leaves no launch behind there.
UNQUEUED = {"WEFT_QUEUE": "off"}


def leaves_behind(scene, job, count=50):
    """Waits until it has left `count` launches behind."""
    seen = jobs.wait_until(lambda: (scene.row(job) or {"left_behind": 0})["left_behind"] >= count, BOUND, step=0.1)
    assert seen, f"{job.name} leaves nothing behind: nothing is tested\n{scene.row(job)}"


def let_go(count, *companions):
    """Waits until each has noticed `count` times that its broker is gone."""
    for job in companions:
        seen = jobs.wait_until(lambda job=job: job.stderr().count("the broker is lost") >= count or not job.running(), BOUND)
        assert seen and job.running(), job.explain()


# --- brokers --------------------------------------------------------------------------------------


@pytest.mark.also_under("fikit")
def test_broker_killed_while_both_run_then_restarted(scene):
    scene.broker.start()
    foreground, background = scene.companion("foreground", priority=0), scene.companion("background", priority=5)
    scene.attached(foreground, background)
    scene.broker.kill()
    let_go(1, foreground, background)
    scene.broker.start()
    scene.attached(foreground, background)
    scene.progresses(foreground)
    scene.progresses(background)
    scene.finish_companions(foreground, background)


@pytest.mark.also_under("fikit")
def test_broker_killed_and_never_back(scene):
    scene.broker.start()
    foreground, background = scene.companion("foreground", priority=0, pause=0), scene.companion("background", priority=5, pause=0)
    scene.attached(foreground, background)
    scene.broker.kill()
    let_go(1, foreground, background)
    scene.finish_companions(foreground, background)


def test_broker_started_after_the_jobs(scene):
    foreground, background = scene.companion("foreground", priority=0), scene.companion("background", priority=5)
    scene.broker.start()
    scene.attached(foreground, background)
    scene.finish_companions(foreground, background)


def test_no_broker_at_all(scene):
    job = scene.client(priority=5)
    scene.finish(job)
    assert job.stdout() == b"weft-test-client: done\n", job.stdout()
    says(job, "weft", "broker")


@pytest.mark.also_under("fikit")
def test_broker_stopped_by_a_signal_lets_background_jobs_go(scene):
    scene.broker.start()
    foreground, background = scene.companion("foreground", priority=0, pause=0), scene.companion("background", priority=5, pause=0)
    scene.attached(foreground, background)
    os.kill(scene.broker.job.pid, signal.SIGSTOP)
    try:
        # No broker grants credit now. The checking client has some 300 launches to make: each
        # wait must end by itself.
        job = scene.client(priority=7)
        scene.finish(job)
        scene.finish_companions(foreground, background)
    finally:
        os.kill(scene.broker.job.pid, signal.SIGCONT)


def test_broker_killed_while_launches_are_left_behind(scene):
    scene.broker.start()
    told = {"WEFT_LOG": "info"}
    foreground, background = scene.companion("foreground", priority=0, pause=2000, more=told), scene.companion("background", priority=5, pause=0, more=told)
    leaves_behind(scene, background)
    for turn in range(1, 4):
        scene.broker.kill()
        let_go(turn, foreground, background)
        scene.broker.start()
        scene.attached(foreground, background)
        scene.progresses(background)
    leaves_behind(scene, background)
    scene.broker.kill()
    scene.finish_companions(foreground, background)


def test_broker_stopped_by_a_signal_while_launches_are_left_behind(scene):
    scene.broker.start()
    foreground, background = scene.companion("foreground", priority=0, pause=2000), scene.companion("background", priority=5, pause=0)
    leaves_behind(scene, background)
    os.kill(scene.broker.job.pid, signal.SIGSTOP)
    try:
        scene.finish(scene.client(priority=7))
        scene.finish_companions(foreground, background)
    finally:
        os.kill(scene.broker.job.pid, signal.SIGCONT)


def test_stale_socket_is_taken_over(scene):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(scene.broker.socket))
    assert scene.broker.socket.exists()
    # A plain file of that name would be a user's data; a socket without a listener is a dead
    # broker's.
    scene.broker.start()
    job = scene.client(priority=0)
    scene.finish(job)
    assert scene.status()["broker"]["attached"] >= 1


def test_second_broker_refuses_in_one_line(scene):
    scene.broker.start()
    second = weft(scene, "broker")
    assert second.returncode not in (0, 101), second
    lines = [line for line in second.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, second.stderr
    assert scene.status()["broker"]["pid"] == scene.broker.job.pid


# --- jobs -----------------------------------------------------------------------------------------


def test_jobs_killed_at_random_moments(scene):
    seed = scene.options.seed
    rng = random.Random(seed)
    scene.broker.start()
    survivor = scene.companion("survivor", priority=3)
    scene.attached(survivor)
    for number in range(scene.options.kills):
        victim = scene.client(f"victim{number}", priority=rng.choice((0, 5, 9)), more=rng.choice((None, UNQUEUED)))
        time.sleep(rng.uniform(0.0, 0.12))
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait(BOUND)
        scene.jobs.remove(victim)
        assert survivor.running(), f"seed {seed}, kill {number}: the survivor ended\n{survivor.explain()}"
        assert scene.broker.job.running(), f"seed {seed}, kill {number}: the broker ended\n{scene.broker.job.explain()}"
    gone = jobs.wait_until(lambda: len(scene.status()["clients"]) == 1, BOUND, step=0.1)
    assert gone, f"seed {seed}: dead clients are still attached: {[row['pid'] for row in scene.status()['clients']]}"
    scene.progresses(survivor)
    # All that the dead jobs had on the device is free: a client that checks its data still finds
    # room and order.
    scene.finish(scene.client("after", priority=5))
    scene.finish_companions(survivor)


@pytest.mark.also_under("fikit")
def test_fork_after_init_leaves_the_parent_whole(scene):
    scene.broker.start()
    program = scene.folder / "fork.py"
    program.write_text(
        "import ctypes, os, sys\n"
        "cuda = ctypes.CDLL('libcuda.so.1')\n"
        "assert cuda.cuInit(0) == 0\n"
        "context = ctypes.c_void_p()\n"
        "assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0\n"
        "assert cuda.cuCtxSetCurrent(context) == 0\n"
        "for _ in range(20):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        os._exit(0 if cuda.cuInit(0) == 3 else 1)  # CUDA_ERROR_NOT_INITIALIZED, as without weft\n"
        "    assert os.waitpid(child, 0)[1] == 0, 'the child saw something else'\n"
        "    assert cuda.cuCtxSynchronize() == 0\n"
        "print('whole')\n"
    )
    job = scene.job([sys.executable, program], "forks", priority=5)
    scene.finish(job)
    assert job.stdout() == b"whole\n", job.stdout()


def test_fork_before_init_gives_two_clients(scene):
    scene.broker.start()
    program = scene.folder / "fork.py"
    program.write_text(
        "import os, subprocess, sys\n"
        "child = os.fork()\n"
        "end = subprocess.run([sys.argv[1], sys.argv[2] + ('child' if child == 0 else 'parent')], stdout=subprocess.DEVNULL).returncode\n"
        "if child == 0: os._exit(end)\n"
        "sys.exit(end or os.waitpid(child, 0)[1])\n"
    )
    scene.finish(scene.job([sys.executable, program, CLIENT, scene.folder / "r"], "forks", priority=5))
    assert scene.status()["broker"]["attached"] >= 2


def test_exec_after_init(scene):
    scene.broker.start()
    program = scene.folder / "exec.py"
    program.write_text(
        "import ctypes, os, sys\n"
        "assert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0\n"
        "os.execv(sys.argv[1], sys.argv[1:])\n"
    )
    job = scene.job([sys.executable, program, CLIENT, scene.folder / "exec.json"], "execs", priority=5)
    scene.finish(job)
    assert job.stdout() == b"weft-test-client: done\n", job.stdout()


def test_three_hundred_processes_at_once(scene):
    scene.broker.start()
    count = 300
    program = scene.folder / "many.py"
    program.write_text(
        "import ctypes, sys\n"
        "cuda = ctypes.CDLL('libcuda.so.1')\n"
        "result = cuda.cuInit(0)\n"
        "assert result == 0, result\n"
        "context, memory = ctypes.c_void_p(), ctypes.c_uint64()\n"
        "assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0\n"
        "assert cuda.cuCtxSetCurrent(context) == 0\n"
        "assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 20)) == 0\n"
        "assert cuda.cuMemsetD8_v2(memory, 0, ctypes.c_size_t(1 << 20)) == 0\n"
        "assert cuda.cuCtxSynchronize() == 0\n"
    )
    crowd = [scene.job([sys.executable, program], f"one{n}", priority=n % 10) for n in range(count)]
    end = time.monotonic() + 5 * BOUND
    for job in crowd:
        code = job.wait(max(1.0, end - time.monotonic()))
        assert not job.timed_out and code == 0, f"one of {count}\n{job.explain()}"
        assert job.stdout() == b""
    assert scene.broker.job.running()
    gone = jobs.wait_until(lambda: not scene.status()["clients"], BOUND, step=0.1)
    assert gone, f"{len(scene.status()['clients'])} dead clients are still attached"


# --- files ----------------------------------------------------------------------------------------


def taken_profile(scene, name="taken"):
    """A real profile, taken from the checking client."""
    done = weft(scene, "profile", "--name", name, "--", CLIENT, scene.folder / "profiled.json", more={"WEFT_LOG": "info"})
    assert done.returncode == 0, done.stderr
    assert done.stdout == "weft-test-client: done\n", done.stdout
    files = [path for path in scene.broker.profiles.rglob("*") if path.is_file() and name in path.name]
    assert files, f"no profile in {scene.broker.profiles}: {done.stderr}"
    return files[0]


def runs_without_it(scene, name, *words):
    """A job that names a bad profile runs, and a person can see why it runs without."""
    shown = weft(scene, "profile", "show", name)
    assert shown.returncode not in (0, 101), shown
    assert len(shown.stderr.strip().splitlines()) == 1, shown.stderr
    for word in words:
        assert word in shown.stderr, f"{word!r} is not in: {shown.stderr}"
    job = scene.companion("named", priority=0, profile=name)
    scene.attached(job)
    trouble = scene.row(job)["profile_trouble"]
    assert trouble, "weft status does not say that the profile is not used"
    scene.finish_companions(job)


def test_corrupt_profile(scene):
    scene.broker.start()
    file = taken_profile(scene)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    runs_without_it(scene, "taken", str(file))


def test_truncated_profile(scene):
    scene.broker.start()
    file = taken_profile(scene)
    file.write_bytes(file.read_bytes()[:-7])
    runs_without_it(scene, "taken", str(file), "truncated")


def test_something_else_in_the_place_of_a_profile(scene):
    scene.broker.start()
    file = taken_profile(scene)
    file.write_text("not a profile\n" * 100)
    runs_without_it(scene, "taken", str(file), "not a weft profile")


def test_profile_of_another_version(scene):
    scene.broker.start()
    file = taken_profile(scene)
    content = bytearray(file.read_bytes())
    # The format's version is the byte behind the eight that identify a profile.
    content[8] += 1
    file.write_bytes(content)
    runs_without_it(scene, "taken", str(file), "format")


def test_profile_of_another_gpu(scene):
    scene.broker.start()
    taken_profile(scene)
    assert scene.device.wait_gone(), "the device stays after its last client"
    # The same model with less memory is another GPU.
    job = scene.companion("elsewhere", priority=0, profile="taken", more={"SIMGPU_MEMORY": str(8 << 30)})
    scene.attached(job)
    told = jobs.wait_until(lambda: (scene.row(job) or {}).get("profile_trouble"), BOUND, step=0.1)
    assert told, "weft status does not say that the profile is of another GPU"
    assert "taken on" in scene.row(job)["profile_trouble"], scene.row(job)["profile_trouble"]
    scene.finish_companions(job)


def test_missing_profile(scene):
    scene.broker.start()
    runs_without_it(scene, "nowhere", "nowhere")


def test_full_disk_keeps_the_old_profile(scene):
    scene.broker.start()
    file = taken_profile(scene)
    before = file.read_bytes()
    job = scene.companion("sampled", priority=0, profile="taken", mode="profile")
    scene.attached(job)
    # A file of the broker's that grows past the limit fails with EFBIG, as on a full disk with
    # ENOSPC, and leaves a part of itself behind. Set now, not at the start: a client's shared
    # memory is such a file too.
    resource.prlimit(scene.status()["broker"]["pid"], resource.RLIMIT_FSIZE, (64, 64))
    scene.finish_companions(job)
    told = jobs.wait_until(lambda: scene.status()["broker"]["profile_failures"] > 0, BOUND)
    assert told, "weft status does not say that the profile could not be written"
    assert "taken" in scene.status()["broker"]["last_trouble"], scene.status()["broker"]["last_trouble"]
    assert file.read_bytes() == before, "the old profile is gone"
    # The profiles' folder also has the broker's file about devices.
    left = sorted(path.name for path in file.parent.iterdir())
    assert left in ([file.name], sorted([file.name, "known.json"])), f"something half-written is left: {left}"
    assert scene.broker.job.running(), scene.broker.job.explain()
    assert weft(scene, "profile", "show", "taken").returncode == 0


def test_missing_driver(scene):
    nowhere = {"WEFT_CUDA_LIBRARY": str(scene.folder / "nowhere" / "libcuda.so.1")}
    program = scene.folder / "init.py"
    program.write_text("import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))\n")
    job = scene.job([sys.executable, program], "driverless", more=nowhere)
    scene.finish(job)
    assert job.stdout() == b"100\n", f"cuInit is to answer CUDA_ERROR_NO_DEVICE (100), not {job.stdout()}"
    says(job, "weft", "libcuda")


# --- the command ----------------------------------------------------------------------------------


def test_weft_run_is_the_job(scene):
    scene.broker.start()
    bad = weft(scene, "run", "--priority", "12", "--", "true")
    assert bad.returncode == 2 and bad.stderr.strip(), bad
    absent = weft(scene, "run", "--", "no-such-command-anywhere")
    assert absent.returncode == 127 and len(absent.stderr.strip().splitlines()) == 1, absent
    seven = weft(scene, "run", "--priority", "0", "--", "sh", "-c", "echo out; exit 7")
    assert seven.returncode == 7 and seven.stdout == "out\n", seven
    killed = weft(scene, "run", "--", "sh", "-c", "kill -9 $$")
    assert killed.returncode == -9, killed
    real = weft(scene, "run", "--priority", "0", "--", CLIENT, scene.folder / "run.json")
    assert real.returncode == 0 and real.stdout == "weft-test-client: done\n", real
    assert scene.status()["broker"]["attached"] >= 1, "weft run did not attach its job"


def test_weft_run_starts_the_broker(scene):
    done = weft(scene, "run", "--priority", "0", "--", CLIENT, scene.folder / "run.json")
    assert done.returncode == 0, done.stderr
    seen = scene.broker.status()
    assert seen is not None and seen["broker"]["attached"] >= 1, "no broker was started"
    os.kill(seen["broker"]["pid"], signal.SIGTERM)
    assert jobs.wait_until(lambda: not jobs.socket_answers(str(scene.broker.socket)), BOUND), "the broker does not end"


def test_preload_alone_starts_the_broker(scene):
    job = scene.client(priority=0, more={"WEFT_AUTOSTART": "1"})
    scene.finish(job)
    seen = scene.broker.status()
    assert seen is not None and seen["broker"]["attached"] >= 1, f"no broker was started\n{job.explain()}"
    os.kill(seen["broker"]["pid"], signal.SIGTERM)
    assert jobs.wait_until(lambda: not jobs.socket_answers(str(scene.broker.socket)), BOUND), "the broker does not end"


def test_a_bad_priority_in_the_environment_is_told(scene):
    scene.broker.start()
    for bad in ("12", "hgih", "-1"):
        job = scene.client(priority=bad)
        scene.finish(job)
        says(job, "WEFT_PRIORITY", bad, "0", "9")
