"""Debian's packages, fetched into a folder and unpacked there, never installed.

What holds here: the machine's own apt configuration is read and never changed (lists, cache and state lie in a folder of our own); which mirror is asked is what
that configuration names; apt checks every signature as ever. Every command has a bound.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
from pathlib import Path

from . import jobs

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

# Seconds: for the lists, and for some tens of MB of packages.
LISTS_BOUND, DOWNLOAD_BOUND = 60, 120
QUIET = ["-q", "-y", "-o", "Acquire::Languages=none", "-o", "Acquire::http::Timeout=10", "-o", "Acquire::https::Timeout=10", "-o", "Acquire::Retries=1"]


class Unreachable(Exception):
    """Why the packages cannot be had here, in one line."""


class Apt:
    """apt with lists, cache and state of its own in `folder`; one that knows no installed package. `sources`: (suite, component) pairs."""

    def __init__(self, folder, sources):
        self.folder, self.sources = Path(folder), sources
        # None: not tried yet; "": tried; else why the lists cannot be had.
        self.lists = None
        self.why = "apt-get update ended well"

    @contextlib.contextmanager
    def alone(self):
        """One process at a time fetches."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "lock", "w") as lock:
            if not jobs.wait_until(lambda: locked(lock), LISTS_BOUND + DOWNLOAD_BOUND, step=0.2):
                raise Unreachable(f"another process has been fetching into {self.folder} for {LISTS_BOUND + DOWNLOAD_BOUND} s")
            yield

    def update(self):
        """Fetches the lists, once: what cannot be reached the first time is not tried again. A suite that is no more is no failure; what apt said is `why` then."""
        if self.lists is None:
            try:
                self.lists = ""
                self.fetch_lists()
            except Unreachable as why:
                self.lists = str(why)
        if self.lists:
            raise Unreachable(self.lists)

    def fetch_lists(self):
        for tool in ("apt-get", "apt-cache", "dpkg-deb"):
            if shutil.which(tool) is None:
                raise Unreachable(f"{tool} is not on this machine, and only Debian's packages are known here")
        for folder in ("sources", "lists/partial", "cache/archives/partial"):
            (self.folder / folder).mkdir(parents=True, exist_ok=True)
        (self.folder / "status").touch()
        mirror = mirror_of_machine()
        signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
        for suite, component in self.sources:
            (self.folder / "sources" / f"{suite}.list").write_text(f"deb {signed}{mirror} {suite} {component}\n")
        try:
            self.run(["apt-get", *QUIET, *self.options(), "update"], LISTS_BOUND, self.folder)
        except Unreachable as error:
            self.why = str(error)

    def options(self):
        """What keeps apt to our own folder."""
        settings = {
            "Dir::Etc::sourcelist": "/dev/null",
            "Dir::Etc::sourceparts": self.folder / "sources",
            "Dir::State::lists": self.folder / "lists",
            "Dir::State::status": self.folder / "status",
            "Dir::Cache": self.folder / "cache",
            # Whoever runs this fetches by himself: apt's own user may not look into our folder.
            "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
        }
        return [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]

    def madison(self, package):
        """What apt-cache says of the package's versions, a line each, the newest first."""
        return self.run(["apt-cache", *self.options(), "madison", package], LISTS_BOUND, self.folder)

    def download(self, packages, folder):
        """The files of exactly these (`name` or `name=version`), into `folder`."""
        self.run(["apt-get", *QUIET, *self.options(), "download", *packages], DOWNLOAD_BOUND, folder)

    def download_with_all(self, packages):
        """The files of these and of all that they depend on."""
        self.run(["apt-get", *QUIET, *self.options(), "install", "--download-only", "--no-install-recommends", *packages], DOWNLOAD_BOUND, self.folder)
        return sorted((self.folder / "cache" / "archives").glob("*.deb"))

    def unpack(self, files, root):
        for file in files:
            self.run(["dpkg-deb", "-x", file, root], DOWNLOAD_BOUND, self.folder)

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
