"""`scripts/cluster systemd`: the .deb under a real systemd in namespaces of this machine."""

import argparse
import subprocess

from . import paths, systemd

# Bound of the whole run, s, on two busy cores.
BOUND_S = 600


def main(arguments):
    """Runs tests/package/test_systemd.py. Returns the exit code; 1 if it cannot run."""
    parser = argparse.ArgumentParser("scripts/cluster systemd", description=__doc__)
    parser.add_argument("--check", action="store_true", help="run the case (the default)")
    parser.add_argument("--keep", action="store_true", help="keep the folder of the case")
    given = parser.parse_args(arguments)
    if absent := systemd.why_not():
        print(f"skipped: systemd cannot boot here: {absent}")
        return 1
    made = subprocess.run([paths.ROOT / "scripts" / "setup", "pytest"], check=False, timeout=BOUND_S)
    if made.returncode:
        return made.returncode
    words = [paths.venv("pytest") / "bin" / "pytest", "tests/package/test_systemd.py"]
    words += ["--keep"] if given.keep else []
    return subprocess.run(words, cwd=paths.ROOT, check=False, timeout=BOUND_S).returncode
