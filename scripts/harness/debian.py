"""Debian's packages, fetched into a folder and unpacked there, never installed.

Invariants: the machine's own apt configuration is read and never changed (lists, cache and state
lie in our own folder). It names the mirror. apt checks every signature as usual. Every command has
a bound.
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
    """The reason why the packages are not available here, in one line."""


class Apt:
    """apt with its own lists, cache and state in `folder`. It sees no installed package. `sources`:
    (suite, component) pairs.
    """

    def __init__(self, folder, sources):
        self.folder, self.sources = Path(folder), sources
        # None: not tried yet; "": tried; else the reason why the lists are not available.
        self.lists = None
        self.why = "apt-get update ended well"

    @contextlib.contextmanager
    def alone(self):
        """Lets only one process at a time fetch."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "lock", "w") as lock:
            if not jobs.wait_until(lambda: locked(lock), LISTS_BOUND + DOWNLOAD_BOUND, step=0.2):
                raise Unreachable(f"another process has been fetching into {self.folder} for {LISTS_BOUND + DOWNLOAD_BOUND} s")
            yield

    def update(self):
        """Fetches the lists, once: an unreachable source is not tried again. A suite that no longer
        exists is no failure; `why` then has apt's message.
        """
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
                raise Unreachable(f"{tool} is not on this machine, and this program only handles Debian's packages")
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
        """Options that confine apt to our own folder."""
        settings = {
            "Dir::Etc::sourcelist": "/dev/null",
            "Dir::Etc::sourceparts": self.folder / "sources",
            "Dir::State::lists": self.folder / "lists",
            "Dir::State::status": self.folder / "status",
            "Dir::Cache": self.folder / "cache",
            # The running user fetches himself: apt's own user may not read our folder.
            "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
        }
        return [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]

    def madison(self, package):
        """The lines of apt-cache about the package's versions, the newest first."""
        return self.run(["apt-cache", *self.options(), "madison", package], LISTS_BOUND, self.folder)

    def download(self, packages, folder):
        """Fetches the files of exactly these (`name` or `name=version`), into `folder`."""
        self.run(["apt-get", *QUIET, *self.options(), "download", *packages], DOWNLOAD_BOUND, folder)

    def download_with_all(self, packages):
        """Fetches the files of these packages and of all their dependencies."""
        self.run(["apt-get", *QUIET, *self.options(), "install", "--download-only", "--no-install-recommends", *packages], DOWNLOAD_BOUND, self.folder)
        return sorted((self.folder / "cache" / "archives").glob("*.deb"))

    def unpack(self, files, root):
        for file in files:
            self.run(["dpkg-deb", "-x", file, root], DOWNLOAD_BOUND, self.folder)

    def run(self, command, bound, folder):
        """Runs a command. Returns its stdout. Raises Unreachable with its last line."""
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
            errors = [line for line in done.stderr.splitlines() if line.startswith("E:")] or done.stderr.splitlines()[-1:] or ["it printed nothing"]
            raise Unreachable(f"{name} ended with {done.returncode}: {errors[0]}")
        return done.stdout


def locked(file):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def mirror_of_machine():
    """The mirror from which this machine's apt gets Debian's main component. Raises Unreachable."""
    shown = "$(REPO_URI)|$(LABEL)|$(COMPONENT)|$(CREATED_BY)|$(CODENAME)|$(RELEASE)"
    said = subprocess.run(
        ["apt-get", "indextargets", "--format", shown], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LISTS_BOUND, check=False
    )
    for line in said.stdout.splitlines():
        address, label, component, made, codename, release = (line.split("|") + [""] * 6)[:6]
        # A machine that never fetched lists has no label and no code name. Then the address and the
        # suite decide.
        debian = label == "Debian" or (label in ("", "$(LABEL)") and address.rstrip("/").endswith("/debian"))
        if made == "Packages" and component == "main" and debian and "-" not in (codename.strip("$()") if codename[:1] != "$" else release):
            return address
    raise Unreachable("this machine's apt names no mirror of Debian")
