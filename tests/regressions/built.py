# SPDX-License-Identifier: MIT OR Apache-2.0
"""Built parts of the cases of the findings: C programs, and the unit tests of the packages."""

import functools
import os
import subprocess
from pathlib import Path

from fixtures.compiled import program
from harness import paths, workspaces
from harness.ci import cargo_tests

PROGRAMS = Path(__file__).resolve().parent / "programs"


@functools.cache
def programs():
    """The unit tests' programs of all packages, by package. Built as scripts/test builds them, so
    that in its run nothing is built anew."""
    command = workspaces.NODE.cargo("test", "--workspace", "--lib", "--no-run", "--message-format", "json")
    done = subprocess.run(command, cwd=paths.ROOT, env={**cargo_tests.ONCE, **os.environ}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return {folder: program for _, folder, program in cargo_tests.programs(done.stdout)}


def rust(package, *tests):
    """Plays tests of a package (named by its folder) by their full names; each must be there and
    pass. For facts that only a clock or a socket under the test's control can show."""
    name = package.removeprefix("weft-")
    folder = next(folder for folder in (paths.ROOT / name, paths.ROOT / "broker" / name) if folder.is_dir())
    command = [programs()[folder], "--exact", *tests]
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0 and f"{len(tests)} passed" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]


def compiled(scene, name, *flags):
    """A C program of `programs`, built into the case's folder."""
    return program(scene.folder, PROGRAMS / name, *flags)
