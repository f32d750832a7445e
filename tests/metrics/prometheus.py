# SPDX-License-Identifier: MIT OR Apache-2.0
"""Prometheus and promtool as Debian has them: fetched, unpacked into a folder, never installed.

Unpacked programs are used again and need no network.
"""

import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from fixtures.debian import DOWNLOAD_BOUND, QUIET, Apt, Unreachable
from fixtures.scene import BOUND
from harness import jobs

PACKAGE = "prometheus"
# Seconds for one answer.
PATIENCE = 20


def get(folder):
    """The folder with the programs. Raises fixtures.debian.Unreachable."""
    folder = Path(folder).resolve()
    apt = Apt(folder / "apt", [("bookworm", "main")])
    root = folder / "root"
    with apt.alone():
        if not root.exists():
            scratch = folder / "new"
            shutil.rmtree(scratch, ignore_errors=True)
            (scratch / "packages").mkdir(parents=True)
            download(apt, scratch / "packages")
            apt.unpack(sorted((scratch / "packages").glob("*.deb")), scratch / "root")
            (scratch / "root").rename(root)
            shutil.rmtree(scratch)
    return root / "usr" / "bin"


def download(apt, folder):
    """Fetches the package by the machine's own lists, which are only read, else by fresh ones.

    Fresh lists of Debian's main component are most of a minute on a busy machine.
    """
    ours = ["-o", f"Dir::Cache={apt.folder / 'cache'}", "-o", "APT::Sandbox::User="]
    try:
        (apt.folder / "cache").mkdir(parents=True, exist_ok=True)
        apt.run(["apt-get", *QUIET, *ours, "download", PACKAGE], DOWNLOAD_BOUND, folder)
    except Unreachable:
        apt.update()
        apt.download([PACKAGE], folder)


def promtool(programs, *arguments, given=None, cwd=None):
    """promtool's stdout and stderr together. Fails if it found a fault."""
    done = subprocess.run(
        [programs / "promtool", *map(str, arguments)],
        input=given,
        stdin=None if given is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=cwd,
        text=True,
        timeout=BOUND,
        check=False,
    )
    assert done.returncode == 0, f"promtool {arguments}: exit {done.returncode}\n{done.stdout}"
    return done.stdout


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Prometheus:
    """A running Prometheus with a configuration of the case's own."""

    def __init__(self, programs, folder, config):
        self.folder = Path(folder)
        file = self.folder / "prometheus.yml"
        file.write_text(config)
        # Another process may take the port in between: then another one.
        for number in range(5):
            self.address = f"127.0.0.1:{free_port()}"
            command = [
                programs / "prometheus",
                f"--config.file={file}",
                f"--storage.tsdb.path={self.folder / f'tsdb{number}'}",
                f"--web.listen-address={self.address}",
                "--log.level=warn",
            ]
            environment = {**jobs.clean_environment(), "GOMAXPROCS": "2"}
            self.job = jobs.Job(command, environment=environment, folder=self.folder, name=f"prometheus{number}")
            done = jobs.wait_until(lambda: self.ready() or not self.job.running(), BOUND, step=0.1)
            if self.job.running():
                break
        assert done and self.job.running(), f"Prometheus did not start\n{self.job.explain()}"

    def stop(self):
        self.job.kill()

    def ready(self):
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=PATIENCE) as answer:
                return answer.status == 200
        except OSError:
            return False

    def api(self, path, **parameters):
        """The API's answer. Fails with its own words."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}?{query}", timeout=PATIENCE) as answer:
                said = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from None
        assert said["status"] == "success", f"{path} {parameters}: {said}"
        return said["data"]

    def query(self, expression):
        """The series now: (labels, value) pairs."""
        data = self.api("query", query=expression)
        assert data["resultType"] == "vector", f"{expression}: {data}"
        return [(row["metric"], float(row["value"][1])) for row in data["result"]]

    def until(self, expression, holds=bool, what=None):
        """Waits until the expression's result satisfies `holds`; returns it."""
        seen = []

        def asked():
            seen[:] = self.query(expression)
            return holds(seen)

        there = jobs.wait_until(asked, BOUND, step=0.5)
        assert there, f"{what or expression}: not within {BOUND} s; last {seen}\n{self.job.explain()}"
        return list(seen)
