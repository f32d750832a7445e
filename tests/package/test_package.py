# SPDX-License-Identifier: MIT OR Apache-2.0
"""weft on systems with an older glibc: the output of scripts/package, played among the programs of
Debian 11 (glibc 2.31), which are unpacked into target/package/debian-11.

scripts/package --check first makes the things that the cases need. Without a package, without the
simulated GPU built for it, without Debian 11's packages or without the right to change the root, a
case is skipped with one line.
CI plays only the first case, on cargo's build: any program that needs a function that glibc 2.28
does not have fails there.
"""

import json
import re
import shutil
import subprocess
import tarfile

import pytest
from fixtures import debian
from harness import elf, package, paths

STORE = paths.TARGET / "package" / "debian-11"
# A Python with ctypes, a shell and the usual tools.
PROGRAMS = ["bash", "coreutils", "dash", "libpython3.9-stdlib", "python3-minimal"]
# Seconds for one command in there, on two busy cores.
BOUND = 120

# Makes the folder the root and runs the rest of the command there: a mount namespace of its own, so
# nothing of it is seen or left outside.
ENTER = """
set -e
root=$1; shift
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs tmpfs "$root/weft"
mkdir "$root/weft/package" "$root/weft/simgpu" "$root/weft/guest" "$root/weft/built"
mount --bind "$PACKAGE" "$root/weft/package"
mount --bind "$SIMGPU" "$root/weft/simgpu"
mount --bind "$ROOT" "$root/weft/guest"
mount --bind "$BUILT" "$root/weft/built"
cd "$root"
exec chroot "$root" "$@"
"""

def missing_symbols(files):
    faults = [fault for file in files for fault in package.faults(file, package.MOVED)]
    assert not faults, "; ".join(faults) + ": call it by its number (libc::syscall), or look it up when it is needed"


def test_symbols_of_what_cargo_built(folder):
    """The needs of a plain build must be linkable for the old glibc, too."""
    files = [paths.BUILT / name for name in package.FILES]
    absent = [file for file in files if not file.exists()]
    assert not absent, f"not built: {absent}; scripts/layout builds it"
    missing_symbols(files)


def made():
    if not (package.folder() / "libweft.so").exists():
        pytest.skip("no package is made: scripts/package does")
    return package.folder()


def test_the_package_is_whole(folder):
    faults = [fault for name in package.FILES for fault in package.faults(made() / name)]
    assert not faults, "; ".join(faults)
    with tarfile.open(f"{made()}.tar.gz") as archive:
        archive.extractall(folder, filter="fully_trusted")
    weft = folder / made().name / "weft"
    done = subprocess.run([weft, "--version"], capture_output=True, text=True, timeout=BOUND, check=False)
    assert done.returncode == 0 and re.fullmatch(r"weft \d+\.\d+\.\d+\n", done.stdout), f"{done.returncode}: {done.stdout}{done.stderr}"
    assert (folder / made().name / "lib" / "libcuda.so.1").resolve() == (folder / made().name / "libweft.so").resolve()


def old_system():
    """The folder with Debian 11, fetched once."""
    root = STORE / "root"
    apt = debian.Apt(STORE / "apt", [("bullseye", "main")])
    try:
        with apt.alone():
            if not root.exists():
                apt.update()
                scratch = STORE / "root.new"
                shutil.rmtree(scratch, ignore_errors=True)
                apt.unpack(apt.download_with_all(PROGRAMS), scratch)
                for name in ("proc", "dev", "tmp", "weft"):
                    (scratch / name).mkdir(exist_ok=True)
                scratch.rename(root)
    except debian.Unreachable as why:
        pytest.skip(f"no Debian 11: {why}")
    return root


def simulated(folder):
    """A folder with the simulated GPU as it was built for the old glibc."""
    for name, place in (("libsimcuda.so", "lib/libcuda.so.1"), ("simgpu-device", "bin/simgpu-device")):
        if not (package.BUILT / name).exists():
            pytest.skip("the simulated GPU is not built for it: scripts/package --check does")
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(package.BUILT / name, folder / place)
    return folder


class Old:
    """Debian 11 with the package, the simulated GPU and the guest cases' Python in it."""

    def __init__(self, folder):
        self.root, self.folder = old_system(), folder
        self.places = {"PACKAGE": str(made()), "SIMGPU": str(simulated(folder / "simgpu")), "ROOT": str(paths.ROOT / "tests"), "BUILT": str(paths.BUILT)}
        self.own = {"HOME": "/tmp", "XDG_RUNTIME_DIR": "/tmp", "LD_LIBRARY_PATH": "/weft/simgpu/lib", "PYTHONPATH": "/weft/guest/clients/guest", "PATH": "/weft/package:/usr/bin:/bin"}
        if self.run("/bin/true", code=None).returncode:
            pytest.skip("this user may not make a mount namespace and change the root here")

    def run(self, *command, code=0, more=None):
        """Runs a command in there. `code`: the exit code that is right; None: any."""
        inside = ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in {**self.own, **(more or {})}.items()), *command]
        outside = ["unshare", "--mount", "--pid", "--fork", "--map-root-user", "/bin/sh", "-c", ENTER, "enter", str(self.root), *inside]
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **self.places}
        done = subprocess.run(outside, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BOUND, check=False)
        assert code is None or done.returncode == code, f"{command}: exit {done.returncode}, not {code}: {done.stdout}{done.stderr}"
        return done


WORK = "from plain import Gpu; print(Gpu().work(50))"


def test_programs_of_debian_11_under_the_package(folder):
    """Every process there lives, a CUDA job computes the same, and weft sees its launches."""
    old = Old(folder)
    assert old.run("/bin/ls", "/", more={"LD_PRELOAD": "/weft/package/libweft.so"}).stderr == ""
    plainly = old.run("python3", "-c", WORK)
    status = "; import subprocess; print(subprocess.run(['weft', 'status', '--json'], capture_output=True, text=True).stdout)"
    under = old.run("weft", "run", "--priority", "3", "--", "python3", "-c", WORK + status)
    answer, told = under.stdout.split("\n", 1)
    assert answer == plainly.stdout.strip() == "49", f"{plainly.stdout} {under.stdout}"
    launches = [client["launches"] for client in json.loads(told)["clients"]]
    assert launches == [50], f"weft saw {launches}, not 50: {told}"
    # The outcome at its end, and nothing else.
    (outcome,) = under.stderr.splitlines()
    assert outcome.startswith("weft[") and outcome.endswith("50 launches"), under.stderr


def test_every_way_to_the_driver_on_debian_11(folder):
    """There `dlopen` and `dlsym` are in a library of their own, libdl, which a program need not
    have loaded."""
    rows = json.loads(Old(folder).run("weft", "doctor", "--json").stdout)["rows"]
    (library,) = [row["found"] for row in rows if row["what"] == "libweft"]
    assert f"for glibc {package.GLIBC_TEXT} or newer" in library, library
    ways = [row for row in rows if row["what"].startswith("interception")]
    assert len(ways) >= 5, rows
    lost = [row for row in ways if row["verdict"] != "ok"]
    assert not lost, lost


def test_without_the_package_nothing_runs_on_debian_11(folder):
    """The reason for the package: a library that was linked on a newer system ends every process,
    even `true`."""
    library = paths.BUILT / "libweft.so"
    if not elf.too_new(library, (2, 31)):
        pytest.skip("what cargo built here runs on Debian 11 as well")
    done = Old(folder).run("/bin/true", more={"LD_PRELOAD": "/weft/built/libweft.so"}, code=None)
    assert done.returncode == 1 and "GLIBC_2.3" in done.stderr, f"{done.returncode}: {done.stderr}"
