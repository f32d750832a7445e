# SPDX-License-Identifier: MIT OR Apache-2.0
"""NVIDIA's user-space driver as Debian's `non-free` component has it: fetched as packages, unpacked
into a folder, never installed (tests/fixtures/debian.py).

An unpacked branch is used again and needs no network.
"""

import re
import shutil
from pathlib import Path

from fixtures.debian import Apt, Unreachable

# Branches of the driver, oldest first. The suite of each changes with the years: all are looked
# through.
BRANCHES = ("535", "550", "555")
SUITES = ("bookworm", "trixie", "forky", "sid", "experimental")
PACKAGES = ("libcuda1", "libnvidia-ml1", "libnvidia-ptxjitcompiler1", "nvidia-cuda-mps")


class Driver:
    """One branch, unpacked."""

    def __init__(self, branch, folder):
        self.branch, self.folder = branch, Path(folder)
        self.version = (self.folder / "version").read_text().strip()

    @property
    def libraries(self):
        """The folder for LD_LIBRARY_PATH."""
        return next(self.folder.glob("root/usr/lib/**/libcuda.so.1")).parent

    @property
    def cuda(self):
        return self.libraries / "libcuda.so.1"

    @property
    def nvml(self):
        return self.libraries / "libnvidia-ml.so.1"

    @property
    def programs(self):
        """The folders with the control daemon and its server."""
        return [self.folder / "root" / "usr" / "bin", self.folder / "root" / "usr" / "sbin"]


class Store:
    """The folder of unpacked branches, and the means to fetch them."""

    def __init__(self, folder):
        self.folder = Path(folder).resolve()
        self.apt = Apt(self.folder / "apt", [(suite, "non-free") for suite in SUITES])

    def have(self, branch):
        """The branch, if it is unpacked."""
        folder = self.folder / branch
        return Driver(branch, folder) if (folder / "version").exists() else None

    def get(self, branch):
        """The branch: from the folder, else fetched. Raises Unreachable."""
        with self.apt.alone():
            return self.have(branch) or self.fetch(branch)

    def fetch(self, branch):
        self.apt.update()
        version = self.newest(branch)
        scratch = self.folder / f"{branch}.new"
        shutil.rmtree(scratch, ignore_errors=True)
        (scratch / "packages").mkdir(parents=True)
        self.apt.download([f"{name}={version}" for name in PACKAGES], scratch / "packages")
        self.apt.unpack(sorted((scratch / "packages").glob("*.deb")), scratch / "root")
        shutil.rmtree(scratch / "packages")
        (scratch / "version").write_text(version + "\n")
        shutil.rmtree(self.folder / branch, ignore_errors=True)
        scratch.rename(self.folder / branch)
        return self.have(branch)

    def newest(self, branch):
        # apt-cache lists the newest first.
        versions = re.findall(rf"^\s*{PACKAGES[0]} \| (\S+) \|.*Packages$", self.apt.madison(PACKAGES[0]), re.MULTILINE)
        if not versions:
            raise Unreachable(f"the non-free component of this machine's mirror cannot be reached ({self.apt.why}, and no list has {PACKAGES[0]})")
        mine = [version for version in versions if version.startswith(branch + ".")]
        if not mine:
            raise Unreachable(f"no suite of this machine's mirror has a driver {branch}")
        return mine[0]
