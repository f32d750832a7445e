# SPDX-License-Identifier: MIT OR Apache-2.0
"""The .deb under a real systemd: installed, enabled, reloaded, used, upgraded and purged.

It boots in namespaces of its own (tests/fixtures/systemd.py). `scripts/cluster systemd --check`
plays only this file. If it cannot boot, the case is skipped, with the reason.
"""

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from fixtures import systemd
from harness import package, paths

USERS = ("ann", "ben", "cleo", "dora")
TESTS = Path("/opt/weft-tests")
WORK = "import sys; from plain import Gpu; gpu = Gpu(); print(gpu.work(50), flush=True)"
# Works until its file is there, a second at a time. 49 is right.
LONG = """
import os, sys, time
from plain import Gpu
gpu = Gpu()
while not os.path.exists(sys.argv[1]):
    assert gpu.work(50) == 49
    print("works", flush=True)
    time.sleep(0.1)
"""
UNITS = ("weft-broker.service", "weft-broker.socket")
METRICS = "127.0.0.1:9431"
FETCH = f"import urllib.request as u; print(u.urlopen('http://{METRICS}/metrics').read().decode())"
JOB = {
    "LD_LIBRARY_PATH": str(TESTS / "lib"),
    "PYTHONPATH": str(TESTS / "clients" / "guest"),
    "SIMGPU_SOCKET": str(TESTS / "run" / "device.sock"),
    "SIMGPU_DEVICE_BIN": str(TESTS / "simgpu-device"),
    "SIMGPU_USERS": "all",
    # The device of the first user serves all: another user cannot start one at the same path.
    "SIMGPU_CONFIG": str(TESTS / "device.toml"),
    "PYTHONDONTWRITEBYTECODE": "1",
}


def staged(folder):
    """The files for the machine's root: packages, the simulated GPU, and the job's module."""
    packages = folder / "packages"
    whole = package.lay_out(paths.BUILT, package.folder(packages))
    package.make_deb(whole, packages, as_built=True)
    opened = folder / "newer"
    package.run("dpkg-deb", "-R", package.deb(packages), opened)
    control = opened / "DEBIAN" / "control"
    control.write_text(control.read_text().replace(f"Version: {package.version()}", "Version: 99"))
    unit = opened / "usr/lib/systemd/system/weft-broker.service"
    unit.write_text(unit.read_text().replace("RestartSec=1\n", "RestartSec=2\n"))
    stage = folder / "stage"
    tests = stage / TESTS.relative_to("/")
    for name in ("lib", "run", "clients/guest", "simgpu/driver/src/kernels"):
        (tests / name).mkdir(parents=True)
    (tests / "run").chmod(0o1777)
    (tests / "device.toml").write_text("[device]\nlinger_ms = 60000\n")
    shutil.copy(package.deb(packages), tests / "weft.deb")
    package.run("dpkg-deb", "-Zgzip", "-z1", "--root-owner-group", "--build", opened, tests / "newer.deb")
    for file in paths.SIMGPU_LIB.iterdir():
        shutil.copy(file, tests / "lib" / file.name)
    shutil.copy(paths.SIMGPU_DEVICE, tests / "simgpu-device")
    for name in ("clients/guest/plain.py", "simgpu/driver/src/kernels/simgpu.ptx"):
        shutil.copy(paths.ROOT / "tests" / name, tests / name)
    for path in (stage, *stage.rglob("*")):
        if path.is_dir() and path != tests / "run":
            path.chmod(0o755)
    return stage


def units(machine):
    """weft's units that systemd knows, failed ones too."""
    shown = machine.run("systemctl", "list-units", "--all", "--plain", "--no-legend", "weft*")
    return shown.stdout.strip()


def broker(machine):
    """The broker's process in there, and its program."""
    shown = machine.must("systemctl", "show", "-P", "MainPID", "weft-broker.service").strip()
    return int(shown), machine.must("readlink", f"/proc/{shown}/exe").strip()


def until(what, holds):
    end = time.monotonic() + systemd.BOUND_S
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.1)


@pytest.mark.timeout(400)
def test_the_deb_under_a_real_systemd(folder):
    absent = systemd.why_not()
    if absent:
        pytest.skip(f"no systemd is booted: {absent}")
    with systemd.Booted(folder, staged(folder)) as machine:
        install(machine)
        used_by_four_users(machine)
        reloaded(machine)
        with job_of(machine, "ann") as job:
            upgraded(machine, job)
            purged(machine, job)


def install(machine):
    before = machine.must("systemctl", "list-units", "--failed", "--plain", "--no-legend")
    assert "weft" not in before, before
    machine.must("dpkg", "-i", TESTS / "weft.deb")
    for unit in UNITS:
        state = machine.run("systemctl", "is-enabled", unit).stdout.strip()
        assert state == "disabled", f"{unit} is {state}: that is for the administrator to say"
    machine.must("mkdir", "-p", "/etc/weft")
    settings(machine, "1%")
    machine.must("systemctl", "enable", "--now", *reversed(UNITS))
    assert broker(machine)[1] == "/usr/bin/weft"
    level = machine.must("systemd-analyze", "security", "weft-broker.service", "--no-pager")
    assert float(re.search(r"exposure level[^:]*: ([\d.]+)", level)[1]) <= 3.0, level[-200:]


def settings(machine, slowdown):
    text = f'[broker]\nmetrics = "{METRICS}"\nslowdown = "{slowdown}"\n'
    machine.must("python3", "-c", f"open('/etc/weft/weft.toml', 'w').write({text!r})")


def used_by_four_users(machine):
    """Each user's job computes the same, and is counted. The machine's metrics disturb none."""
    for user in USERS:
        machine.must("useradd", "--create-home", user)
        words = ("weft", "run", "--priority", "5", "--", "python3", "-c", WORK)
        assert machine.must(*words, user=user, environment=JOB).strip() == "49"
        words = ("weft", "profile", "--name", "x", "--", "python3", "-c", WORK)
        assert machine.must(*words, user=user, environment=JOB).strip() == "49"
    past = json.loads(machine.must("weft", "history", "--json"))["jobs"]
    ids = {int(machine.must("id", "-u", user)) for user in USERS}
    assert {job["uid"] for job in past} == ids, past
    assert "weft_broker_info" in machine.must("python3", "-c", FETCH)


def reloaded(machine):
    settings(machine, "7%")
    machine.must("systemctl", "reload", "weft-broker")
    until("the journal has the new value", lambda: "slowdown is 7 % (was 1 %)" in machine.journal())


class job_of:  # noqa: N801 - used as a word
    """A job of a user that works until its file appears."""

    def __init__(self, machine, user):
        words = ["weft", "run", "--quiet", "--", "python3", "-c", LONG, f"/tmp/end-{user}"]
        self.machine, self.file = machine, f"/tmp/end-{user}"
        self.words = machine.words(*words, user=user, environment=JOB)

    def __enter__(self):
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(self.words, **pipes)
        until("the job is attached", self.attached)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def attached(self):
        seen = json.loads(self.machine.must("weft", "status", "--json"))
        return [client["launches"] for client in seen["clients"] if client["launches"] > 0]

    def finish(self):
        self.machine.must("touch", self.file)
        said, errors = self.process.communicate(timeout=systemd.BOUND_S)
        assert self.process.returncode == 0, errors
        assert said.count(b"works\n") > 2, (said, errors)


def upgraded(machine, job):
    """The new broker is the package's, systemd goes by its unit, and the job attaches to it."""
    pid, _ = broker(machine)
    said = machine.must("dpkg", "-i", TESTS / "newer.deb")
    assert "the broker was restarted" in said, said
    after, program = broker(machine)
    assert after != pid and program == "/usr/bin/weft", (pid, after, program)
    shown = machine.must("systemctl", "show", "-P", "NeedDaemonReload", *UNITS).split()
    assert shown == ["no", "no"], shown
    usec = machine.must("systemctl", "show", "-P", "RestartUSec", "weft-broker.service").strip()
    assert usec == "2s", usec
    until("the job is attached again", job.attached)


def purged(machine, job):
    """Nothing of weft's is left, not even a unit that failed, and the job ends well."""
    machine.must("dpkg", "--purge", "weft")
    # A job looks for a broker once a second: such a look starts what a socket still names.
    time.sleep(2.5)
    assert units(machine) == "", units(machine)
    failed = machine.must("systemctl", "list-units", "--failed", "--plain", "--no-legend")
    assert "weft" not in failed, failed
    find = ["find", "/etc", "/usr", "/var/lib", "/run", "-xdev", "-name", "*weft*"]
    left = machine.run(*find).stdout.split()
    assert [path for path in left if not path.startswith(os.fspath(TESTS))] == [], left
    job.finish()
