"""`scripts/cluster ray`: a cluster of four nodes on this machine, with jobs under weft."""

import argparse
import subprocess

from . import paths

# Bound of the whole run, s, on two busy cores.
BOUND_S = 900


def main(arguments):
    """Runs tests/cluster/test_ray.py. Returns the exit code."""
    parser = argparse.ArgumentParser("scripts/cluster ray", description=__doc__)
    parser.add_argument("--check", action="store_true", help="run the cases (the default)")
    parser.add_argument("--keep", action="store_true", help="keep the folders of the cases")
    given = parser.parse_args(arguments)
    setup = [paths.ROOT / "scripts" / "setup", "pytest", "ray"]
    made = subprocess.run(setup, check=False, timeout=BOUND_S)
    if made.returncode:
        return made.returncode
    words = [paths.venv("pytest") / "bin" / "pytest", "tests/cluster/test_ray.py"]
    words += ["--keep"] if given.keep else []
    return subprocess.run(words, cwd=paths.ROOT, check=False, timeout=BOUND_S).returncode
