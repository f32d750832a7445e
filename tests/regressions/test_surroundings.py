# SPDX-License-Identifier: MIT OR Apache-2.0
"""Drivers that open others, time namespaces, second contexts, children past the C library."""

import os
import shutil
import subprocess

import pytest
from built import compiled
from fixtures.scene import BOUND, COMPANION, weft
from harness import jobs, paths
from test_bypass import deep

GUEST = f"-I{paths.CLIENTS / 'guest'}"
# Launches of a background job in a context.
LAUNCHES = 600
# The part of them that may pass without credit: a busy machine keeps a thread from the gate.
MOST_UNPAID = LAUNCHES // 20
# Kernels of 150 us, so that 64 of them keep the device busy while the host waits.
LONG = """[[kernel]]
name = "simgpu_fill"
ns = 150000
"""


@pytest.mark.finding("attack-A6")
def test_a_second_context_of_a_background_job_is_held_as_the_first(scene, record_property):
    program = compiled(scene, "two_contexts.c", GUEST)
    scene.broker.start()
    scene.companion("foreground", pause=1_500, priority=0)
    unpaid = {}
    for which in (1, 2):
        job = scene.job([program, which, LAUNCHES, scene.running], f"context{which}", priority=5)
        assert jobs.wait_until(lambda job=job: job.stdout() or not job.running(), BOUND), job.explain()
        assert job.stdout() == b"done\n", job.explain()
        row = scene.row(job)
        assert row["launches"] >= LAUNCHES, row
        unpaid[which] = row["waits_expired"]
        job.kill()
    assert unpaid[2] <= unpaid[1] + MOST_UNPAID, f"launches that passed without credit, by context: {unpaid}"
    record_property("told", f"launches that passed without credit, by context: {unpaid}")


def in_time_namespace(offset):
    """A command before a program: its clock is `offset` seconds ahead. None: not allowed here."""
    command = ["unshare", "--time", "--monotonic", str(offset), "--fork", "--kill-child"]
    if os.geteuid() != 0:
        command[1:1] = ["--user", "--map-current-user"]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        return None
    return command


@pytest.mark.finding("bugs-B5")
def test_a_foreground_job_in_a_time_namespace_keeps_its_protection(scene, record_property):
    if not in_time_namespace(-300):
        pytest.skip("no time namespaces here")
    program = compiled(scene, "always_busy.c", GUEST)
    config = scene.folder / "long.toml"
    config.write_text(LONG)
    scene.device.settings["SIMGPU_CONFIG"] = str(config)
    scene.broker.start()
    background = scene.companion("background", pause=0, priority=7)
    # A job outside of any, then one far behind the broker's clock and one ahead of it.
    during = {}
    for offset in (0, -300, 300):
        running = scene.folder / f"running{offset}"
        running.touch()
        job = scene.job([*in_time_namespace(offset), program, running], f"foreground{offset}", priority=0)
        assert jobs.wait_until(lambda job=job: job.stdout() or not job.running(), BOUND), job.explain()
        before, at = scene.row(background)["launches"], foreground_launches(scene)
        assert jobs.wait_until(lambda at=at: foreground_launches(scene) > at + 4_000, BOUND), job.explain()
        during[offset] = scene.row(background)["launches"] - before
        running.unlink()
        scene.finish(job)
    told = f"background launches during 4,000 of the foreground job, by its clock's offset: {during}"
    assert max(during[-300], during[300]) <= 4 * during[0] + 400, told
    record_property("told", told)


def foreground_launches(scene):
    return sum(row["launches"] for row in scene.status()["clients"] if row["priority"] == 0)


@pytest.mark.finding("bugs-B4")
@pytest.mark.parametrize("early", [False, True], ids=["at-init", "in-its-constructor"])
def test_a_driver_that_opens_the_real_one_gets_it(scene, early):
    program = compiled(scene, "checked.c", GUEST)
    store = scene.folder / "store"
    store.mkdir()
    (store / "libcuda.so.1.1").symlink_to(paths.SIMGPU_CUDA)
    folder = scene.folder / "thin"
    folder.mkdir()
    flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", f'-DSTORE="{store}/libcuda.so.1.1"', *(["-DEARLY"] if early else [])]
    thin = compiled(scene, "thin_driver.c", *flags).rename(folder / "libcuda.so.1")
    more = {"LD_LIBRARY_PATH": str(folder), "WEFT_CUDA_LIBRARY": str(thin)}
    scene.broker.start()
    ways = {"off": {"mode": "off"}, "alone": {}, "background": {"priority": 7}}
    for name, options in ways.items():
        if name == "background":
            scene.companion("foreground", priority=0)
        job = scene.job([program], name, more=more, **options)
        scene.finish(job)
        assert job.stdout() == b"99\n", job.explain()
        assert "past weft" not in job.stderr(), job.explain()


@pytest.mark.finding("bugs-B10")
def test_a_child_made_past_the_c_library_is_not_its_parent(scene):
    program = compiled(scene, "copied.c", GUEST)
    scene.broker.start()
    scene.companion("foreground", pause=200, priority=0)
    job = scene.job([program, 3], "parent", priority=7)
    scene.finish(job)
    assert job.stdout() == b"0 hung\n", job.explain()


# Pairs of events, and the distance that most may have, ms: ten times the kernel's time.
PAIRS = 40
FAR_MS = 2


@pytest.mark.finding("bugs-B6")
def test_a_job_that_times_its_kernels_does_not_time_the_gate(scene, record_property):
    program = compiled(scene, "times_itself.c", GUEST)
    config = scene.folder / "long.toml"
    config.write_text(LONG.replace("150000", "150000\ngrid = [1, 1, 1]") + LONG.replace("150000", "200000\ngrid = [5, 1, 1]"))
    scene.device.settings["SIMGPU_CONFIG"] = str(config)
    scene.broker.start()
    ready = scene.folder / "ready"
    foreground = scene.job([COMPANION, "--while", scene.running, "--ready", ready, "--result", scene.folder / "result", "--burst", 64, "--pause", 200], "foreground", priority=0)
    assert jobs.wait_until(lambda: ready.exists() or not foreground.running(), BOUND), foreground.explain()
    job = scene.job([program, PAIRS, FAR_MS, scene.running], "tuner", priority=7)
    assert jobs.wait_until(lambda: job.stdout() or not job.running(), BOUND), job.explain()
    far, row = int(job.stdout()), scene.row(job)
    told = f"pairs further apart than {FAR_MS} ms: {far} of {PAIRS}; unsplit: {row['unsplit']}, waits: {row['waits']}, expired: {row['waits_expired']}"
    # A tuner uses the median.
    assert far < PAIRS // 2, f"{told}\n{job.explain()}"
    # At most one launch a pair goes past the gate for the timing.
    assert row["unsplit"] <= PAIRS, told
    record_property("told", told)


@pytest.mark.finding("bugs-V2")
def test_a_second_copy_of_weft_finds_the_driver(scene):
    # As if links became files: the library opens another copy than the one that is preloaded.
    first, second = scene.folder / "first", scene.folder / "second"
    for folder, name in ((first, "libweft.so"), (second, "libcuda.so")):
        folder.mkdir()
        shutil.copy(paths.LIBWEFT, folder / name)
    more = {"LD_LIBRARY_PATH": f"{second}:{paths.SIMGPU_LIB}"}
    job = scene.job([*deep(scene), "deepbind", "libcuda.so"], library=first / "libweft.so", more=more)
    scene.finish(job)
    assert job.stdout() == b"weft's\n", job.explain()
    assert "is weft itself" not in job.stderr(), job.explain()


@pytest.mark.finding("bugs-B12")
def test_a_program_of_musl_is_told_and_starts(scene):
    scene.broker.start()
    # A program that names musl's linker; here that is a link to this machine's own.
    linker = scene.folder / "ld-musl-x86_64.so.1"
    linker.symlink_to("/lib64/ld-linux-x86-64.so.2")
    program = compiled(scene, "alone.c", f"-Wl,--dynamic-linker={linker}")
    done = weft(scene, "run", "--", program)
    assert (done.returncode, done.stdout) == (0, "hello\n"), done
    assert done.stderr.count("is built for musl") == 1, done.stderr
    # weft is not put into it.
    assert "libweft.so" not in weft(scene, "run", "--", program, shutil.which("env")).stdout
