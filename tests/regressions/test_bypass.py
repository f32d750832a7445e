# SPDX-License-Identifier: MIT OR Apache-2.0
"""Libraries and programs that go round weft are led back to it if possible, and get a warning if
not."""

import os
import shutil
import socket
import sys
from pathlib import Path

import pytest
from built import compiled
from fixtures.scene import BOUND, CLIENT, weft
from harness import jobs, paths


def deep(scene):
    """The program and its library."""
    library = compiled(scene, "deep.c", "-DLIBRARY", "-shared", "-fPIC")
    library = library.rename(library.with_suffix(".so"))
    return [compiled(scene, "deep.c"), library]


TOLD = "was opened past weft"


@pytest.mark.finding("clients-F5")
def test_a_library_in_a_scope_of_its_own_gets_weft_by_either_name_or_it_is_told(scene):
    program = deep(scene)
    for name in ("libcuda.so.1", "libcuda.so"):
        job = scene.job([*program, "deepbind", name])
        scene.finish(job)
        assert job.stdout() == b"weft's\n", f"{name}: {job.stdout()}"
        assert TOLD not in job.stderr(), job.explain()
    for how, name in (("deepbind", paths.SIMGPU_LIB / "libcuda.so"), ("namespace", "libcuda.so.1"), ("namespace", "libcuda.so")):
        job = scene.job([*program, how, name])
        scene.finish(job)
        assert job.stdout() == b"the driver's\n", f"{how}, {name}: {job.stdout()}"
        assert job.stderr().count(TOLD) == 1, f"{how}, {name}: {job.stderr()}"
    # A job with weft off gets no warning.
    off = scene.job([*program, "namespace", "libcuda.so.1"], mode="off")
    scene.finish(off)
    assert off.stderr() == "", off.stderr()


@pytest.mark.finding("clients-F5")
def test_status_and_doctor_name_a_process_that_has_the_driver_past_weft(scene):
    program = deep(scene)
    scene.broker.start()
    outside = scene.job([*program, "deepbind", paths.SIMGPU_LIB / "libcuda.so", scene.running])
    client = scene.companion("client")
    assert jobs.wait_until(lambda: outside.stdout() or not outside.running(), BOUND), outside.explain()
    line = f"process {outside.pid} has opened the driver past weft"
    # In a broker's first seconds the jobs of the one before come back.
    named = jobs.wait_until(lambda: line in weft(scene, "status").stdout, BOUND)
    status = weft(scene, "status").stdout
    assert named and f"process {client.pid} has" not in status, status
    row = [line for line in weft(scene, "doctor").stdout.splitlines() if "past weft" in line]
    assert len(row) == 1 and row[0].startswith("warn") and str(outside.pid) in row[0], row
    scene.running.unlink()
    scene.finish(outside)
    assert line not in weft(scene, "status").stdout


@pytest.mark.finding("users2-M2")
def test_a_job_whose_driver_starts_up_is_not_past_weft(scene):
    scene.broker.start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        # A device that takes its time.
        silent.bind(scene.device.settings["SIMGPU_SOCKET"])
        silent.listen()
        silent.settimeout(BOUND)
        job = scene.client()
        asked, _ = silent.accept()
        maps = Path(f"/proc/{job.pid}/maps").read_text()
        loaded = {name: name in maps for name in ("libweft.so", "libsimcuda.so", "memfd:weft-lane")}
        assert list(loaded.values()) == [True, True, False], loaded
        assert str(job.pid) not in weft(scene, "status").stdout
        asked.close()
        job.kill()


# A job's process that opens the driver, and a child that is no job of the broker.
FORKS = """
import ctypes, os, sys, time
driver = ctypes.CDLL("libcuda.so.1")
assert driver.cuInit(0) == 0 if sys.argv[1] == "job" else driver.cuDriverGetVersion(ctypes.byref(ctypes.c_int())) == 0
child = os.fork()
if child:
    print(child, flush=True)
while os.path.exists(sys.argv[2]):
    time.sleep(0.01)
"""


@pytest.mark.parametrize("kind", ["job", "no job"])
def test_a_child_of_a_process_under_weft_is_not_past_weft(scene, kind):
    scene.broker.start()
    process = scene.job([sys.executable, "-c", FORKS, kind, scene.running])
    assert jobs.wait_until(lambda: process.stdout().endswith(b"\n"), BOUND), process.explain()
    child = int(process.stdout())
    maps = Path(f"/proc/{child}/maps").read_text()
    assert "libweft.so" in maps and "libsimcuda.so" in maps, maps
    if kind == "job":
        scene.attached(process)
    assert jobs.wait_until(lambda: (scene.broker.status() or {"broker": {"uptime_s": 0}})["broker"]["uptime_s"] > 4, BOUND)
    page = weft(scene, "status").stdout
    assert "past weft" not in page, page
    scene.running.unlink()
    scene.finish(process)


@pytest.mark.finding("clients-F5")
def test_weft_run_says_what_it_cannot_be_put_into(scene):
    scene.broker.start()
    dynamic = compiled(scene, "alone.c").rename(scene.folder / "dynamic")
    static = compiled(scene, "alone.c", "-static")
    script = scene.folder / "script"
    script.write_text(f"#!{static} {shutil.which('true')}\n")
    script.chmod(0o755)
    for program, told in ((static, True), (script, True), (dynamic, False), ("true", False)):
        done = weft(scene, "run", "--", program)
        assert done.returncode == 0, done.stderr
        assert ("is statically linked" in done.stderr) == told, f"{program}: {done.stderr}"
    # It is run all the same, and the programs that it starts are under weft.
    done = weft(scene, "run", "--", static, shutil.which("env"))
    assert "libweft.so" in done.stdout, done.stdout
    if os.geteuid() == 0:
        other = scene.folder / "other"
        shutil.copy(dynamic, other)
        os.chown(other, 65534, -1)
        other.chmod(0o4755)
        done = weft(scene, "run", "--", other)
        assert (done.returncode, done.stdout) == (0, "hello\n"), done
        assert "is set-user-id" in done.stderr, done.stderr


@pytest.mark.finding("hardware-F4")
def test_a_job_that_finds_its_driver_elsewhere_is_not_left_without_one(scene):
    scene.broker.start()
    client = scene.folder / "client.json"
    inside = f"env WEFT_CUDA_LIBRARY_HINT=/nowhere/libcuda.so.1 {CLIENT} {client}"
    # No variable names the driver: weft run finds it along the library path, and prints its
    # place.
    named = {**jobs.clean_environment(), **scene.device.environment(), **scene.broker.variables()}
    del named["WEFT_CUDA_LIBRARY"]
    command = [paths.WEFT, "run", "--", "sh", "-c", f'echo "$WEFT_CUDA_LIBRARY|$WEFT_CUDA_LIBRARY_HINT"; exec {inside}']
    job = jobs.Job(command, environment=named, folder=scene.folder, name="inside")
    scene.jobs.append(job)
    scene.finish(job)
    user, hint = job.stdout().decode().splitlines()[0].split("|")
    assert not user and hint.endswith("libcuda.so.1"), job.stdout()
    assert client.exists(), job.explain()
    # A driver that the user named is the only one, so that a wrong name is seen.
    wrong = weft(scene, "run", "--", CLIENT, client, more={"WEFT_CUDA_LIBRARY": "/nowhere/libcuda.so.1"})
    assert wrong.returncode != 0 and "/nowhere/libcuda.so.1" in wrong.stderr, wrong.stderr


@pytest.mark.finding("hardware-F9")
def test_the_toolkits_stub_is_no_driver(scene, rust):
    rust("weft-interposer", "driver::loader::search::tests::the_first_name_is_looked_for_everywhere_before_the_second")


@pytest.mark.finding("hardware-F10")
def test_a_job_that_is_looked_into_leaves_nothing_behind(scene, rust):
    rust("weft-interposer", "client::deferral::tests::a_job_that_is_looked_into_leaves_nothing_behind")
