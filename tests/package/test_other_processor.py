# SPDX-License-Identifier: MIT OR Apache-2.0
"""The packages for another processor, whose programs qemu-user runs: each is installed, used
without a driver, and removed.

`scripts/package --arch aarch64 --check` makes them first. Without them, the cases are skipped.
"""

import shutil
import subprocess
import sys
import tarfile

import pytest
from fixtures import other_processor
from harness import package, paths

NAME = "aarch64"
PROCESSOR = package.PROCESSORS[NAME]
# Seconds for one command, on two busy cores.
BOUND = 120
# CUDA_ERROR_NO_DEVICE.
NO_DEVICE = "100\n"
# Asks the driver for its devices, as programs do that open it by its name.
PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*begin)(unsigned) = driver ? (int (*)(unsigned))dlsym(driver, "cuInit") : 0;
    printf(begin ? "%d\\n" : "no driver\\n", begin ? begin(0) : 0);
    return 0;
}
"""


@pytest.fixture(autouse=True)
def packages():
    if not package.deb(processor=PROCESSOR).exists():
        pytest.skip(f"not made: scripts/package --arch {NAME}")


def run(*command):
    words = [str(word) for word in command]
    bounded = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": BOUND}
    done = subprocess.run(words, **bounded, check=False)
    assert done.returncode == 0, f"{words}: exit {done.returncode}: {done.stdout}{done.stderr}"
    return done


def emulated(*command, preload=None):
    emulator, *sysroot = other_processor.emulator(NAME)
    variables = ["-E", f"LD_PRELOAD={preload}"] if preload else []
    return run(emulator, *sysroot, *variables, *command)


def works(weft, library, folder):
    """The command runs, and programs that load the library have weft for their driver."""
    assert emulated(weft, "--version").stdout == f"weft {package.version()}\n"
    source, program = folder / "program.c", folder / "program"
    source.write_text(PROGRAM)
    compiler = [paths.python("package"), "-m", "ziglang", "cc", "-target", f"{NAME}-linux-gnu.{package.GLIBC_TEXT}"]
    run(*compiler, "-o", program, source, "-ldl")
    assert emulated(program).stdout == "no driver\n"
    done = emulated(program, preload=library)
    assert done.stdout == NO_DEVICE and "weft" in done.stderr, done
    faults = [fault for file in (weft, library) for fault in package.faults(file)]
    assert not faults, "; ".join(faults)


def test_the_tarball_is_unpacked(folder):
    with tarfile.open(package.tarball(processor=PROCESSOR)) as archive:
        archive.extractall(folder, filter="fully_trusted")
    unpacked = folder / package.folder(processor=PROCESSOR).name
    works(unpacked / "weft", unpacked / "lib" / "libcuda.so.1", folder)
    assert "libloading" in (unpacked / package.NOTICES).read_text()


def test_the_deb_is_installed_and_purged(folder):
    root = folder / "root"
    for name in ("info", "updates", "triggers"):
        (root / "var/lib/dpkg" / name).mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    dpkg = ["dpkg", f"--root={root}", "--force-depends", "--force-script-chrootless"]
    dpkg += ["--force-architecture", "--log=/dev/null", "--force-not-root"]
    run(*dpkg, "--install", package.deb(processor=PROCESSOR))
    assert f"Architecture: {PROCESSOR.debian}\n" in run(*dpkg, "--status", "weft").stdout
    works(root / "usr/bin/weft", root / "usr/lib/weft/libweft.so", folder)
    run(*dpkg, "--purge", f"weft:{PROCESSOR.debian}")
    assert not (root / "usr/bin/weft").exists() and not (root / "usr/lib/weft/libweft.so").exists()


def test_the_wheel_is_for_this_processor_only(folder):
    wheel, place = package.wheel(processor=PROCESSOR), folder / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    here = [*pip, "install", "--no-index", "--no-deps", "--target", place, wheel]
    done = subprocess.run([str(word) for word in here], capture_output=True, text=True, timeout=BOUND, check=False)
    assert done.returncode == 1 and "not a supported wheel" in done.stderr, done
    there = ["--platform", f"manylinux_{package.GLIBC[0]}_{package.GLIBC[1]}_{NAME}", "--only-binary=:all:"]
    run(*here, *there)
    # pip does not keep the right to execute of a file that it unpacks for another processor.
    weft = shutil.copy(place / "weft_gpu" / "bin" / "weft", folder / "weft")
    works(weft, place / "weft_gpu" / "bin" / "libweft.so", folder)
