"""`scripts/cluster systemd`: the .deb under a real systemd, booted in namespaces of this machine."""

import argparse
import subprocess

from . import paths, systemd

# Seconds for all of it, on two busy cores.
BOUND_S = 600


def main(arguments):
    """Plays tests/package/test_systemd.py. The exit code; 1 where it cannot be played."""
    parser = argparse.ArgumentParser("scripts/cluster systemd", description=__doc__)
    parser.add_argument("--check", action="store_true", help="play the case (the default)")
    parser.add_argument("--keep", action="store_true", help="leave the folder of the case")
    given = parser.parse_args(arguments)
    if absent := systemd.why_not():
        print(f"skipped: no systemd is booted: {absent}")
        return 1
    made = subprocess.run([paths.ROOT / "scripts" / "setup", "pytest"], check=False, timeout=BOUND_S)
    if made.returncode:
        return made.returncode
    words = [paths.venv("pytest") / "bin" / "pytest", "tests/package/test_systemd.py"]
    words += ["--keep"] if given.keep else []
    return subprocess.run(words, cwd=paths.ROOT, check=False, timeout=BOUND_S).returncode
