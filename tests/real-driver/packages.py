"""NVIDIA's user-space driver as Debian's `non-free` component has it: fetched as packages, unpacked into a folder, never installed.

What holds here: the machine's own apt configuration is read and never changed (lists, cache and state lie in a folder of our own); which mirror is asked is what
that configuration names; apt checks every signature as ever. What was unpacked once is used again and needs no network. Every command has a bound.
"""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
from pathlib import Path

from harness import jobs

# Branches of the driver, oldest first. Which suite has which changes with the years: all are looked through.
BRANCHES = ("535", "550", "555")
SUITES = ("bookworm", "trixie", "forky", "sid", "experimental")
PACKAGES = ("libcuda1", "libnvidia-ml1", "libnvidia-ptxjitcompiler1", "nvidia-cuda-mps")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

# Seconds: for the lists, and for the 11 MB of a branch.
LISTS_BOUND, DOWNLOAD_BOUND = 60, 120
QUIET = ["-q", "-o", "Acquire::Languages=none", "-o", "Acquire::http::Timeout=10", "-o", "Acquire::https::Timeout=10", "-o", "Acquire::Retries=1"]


class Unreachable(Exception):
    """Why the packages cannot be had here, in one line."""


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
    """The folder where unpacked branches lie, and what fetches them."""

    def __init__(self, folder):
        self.folder = Path(folder).resolve()
        self.apt = self.folder / "apt"
        # None: not tried yet; "": there; else why they cannot be had.
        self.lists = None

    def have(self, branch):
        """The branch, if it is unpacked."""
        folder = self.folder / branch
        return Driver(branch, folder) if (folder / "version").exists() else None

    @contextlib.contextmanager
    def alone(self):
        """One process at a time fetches."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "lock", "w") as lock:
            if not jobs.wait_until(lambda: locked(lock), LISTS_BOUND + DOWNLOAD_BOUND, step=0.2):
                raise Unreachable(f"another process has been fetching into {self.folder} for {LISTS_BOUND + DOWNLOAD_BOUND} s")
            yield

    def get(self, branch):
        """The branch: from the folder, else fetched. Raises Unreachable."""
        with self.alone():
            return self.have(branch) or self.fetch(branch)

    def fetch(self, branch):
        for tool in ("apt-get", "apt-cache", "dpkg-deb"):
            if shutil.which(tool) is None:
                raise Unreachable(f"{tool} is not on this machine, and only Debian's packages are known here")
        self.fetch_lists()
        version = self.newest(branch)
        scratch = self.folder / f"{branch}.new"
        shutil.rmtree(scratch, ignore_errors=True)
        (scratch / "packages").mkdir(parents=True)
        self.run(["apt-get", *QUIET, *self.options(), "download", *(f"{name}={version}" for name in PACKAGES)], DOWNLOAD_BOUND, scratch / "packages")
        for package in sorted((scratch / "packages").glob("*.deb")):
            self.run(["dpkg-deb", "-x", package, scratch / "root"], DOWNLOAD_BOUND, scratch)
        shutil.rmtree(scratch / "packages")
        (scratch / "version").write_text(version + "\n")
        shutil.rmtree(self.folder / branch, ignore_errors=True)
        scratch.rename(self.folder / branch)
        return self.have(branch)

    def options(self):
        """What keeps apt to our own folder."""
        settings = {
            "Dir::Etc::sourcelist": "/dev/null",
            "Dir::Etc::sourceparts": self.apt / "sources",
            "Dir::State::lists": self.apt / "lists",
            "Dir::State::status": self.apt / "status",
            "Dir::Cache": self.apt / "cache",
            # Whoever runs this fetches by himself: apt's own user may not look into our folder.
            "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
        }
        return [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]

    def fetch_lists(self):
        """Once: what cannot be reached for one branch is not tried again for the next."""
        if self.lists is None:
            try:
                self.lists = ""
                self.update()
            except Unreachable as why:
                self.lists = str(why)
        if self.lists:
            raise Unreachable(self.lists)

    def update(self):
        for folder in ("sources", "lists/partial", "cache/archives/partial"):
            (self.apt / folder).mkdir(parents=True, exist_ok=True)
        (self.apt / "status").touch()
        mirror = mirror_of_machine()
        signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
        for suite in SUITES:
            (self.apt / "sources" / f"{suite}.list").write_text(f"deb {signed}{mirror} {suite} non-free\n")
        why = "apt-get update ended well"
        try:
            self.run(["apt-get", *QUIET, *self.options(), "update"], LISTS_BOUND, self.apt)
        except Unreachable as error:
            why = str(error)
        # A suite that is no more fails the command, and the others' lists are there all the same; a mirror that does not answer does not fail it.
        if not self.versions():
            raise Unreachable(f"the non-free component of this machine's mirror cannot be reached ({why}, and no list has {PACKAGES[0]})")

    def versions(self):
        said = self.run(["apt-cache", *self.options(), "madison", PACKAGES[0]], LISTS_BOUND, self.apt)
        return re.findall(r"^\s*libcuda1 \| (\S+) \|.*Packages$", said, re.MULTILINE)

    def newest(self, branch):
        # apt-cache lists the newest first.
        mine = [version for version in self.versions() if version.startswith(branch + ".")]
        if not mine:
            raise Unreachable(f"no suite of this machine's mirror has a driver {branch}")
        return mine[0]

    def run(self, command, bound, folder):
        """What it said on stdout. Raises Unreachable with its last word."""
        name = Path(command[0]).name
        environment = {**os.environ, "LC_ALL": "C"}
        try:
            done = subprocess.run(
                [str(part) for part in command],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=bound,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Unreachable(f"{name} did not end within {bound} s") from None
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("E:")] or done.stderr.splitlines()[-1:] or ["it said nothing"]
            raise Unreachable(f"{name} ended with {done.returncode}: {errors[0]}")
        return done.stdout


def locked(file):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def mirror_of_machine():
    """The mirror that this machine's apt has Debian's main component from. Raises Unreachable."""
    shown = "$(REPO_URI)|$(LABEL)|$(COMPONENT)|$(CREATED_BY)|$(CODENAME)|$(RELEASE)"
    said = subprocess.run(
        ["apt-get", "indextargets", "--format", shown], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LISTS_BOUND, check=False
    )
    for line in said.stdout.splitlines():
        address, label, component, made, codename, release = (line.split("|") + [""] * 6)[:6]
        # A machine whose lists were never fetched knows no label and no code name: then the address and the suite tell.
        debian = label == "Debian" or (label in ("", "$(LABEL)") and address.rstrip("/").endswith("/debian"))
        if made == "Packages" and component == "main" and debian and "-" not in (codename.strip("$()") if codename[:1] != "$" else release):
            return address
    raise Unreachable("this machine's apt names no mirror of Debian")
