# SPDX-License-Identifier: MIT OR Apache-2.0
"""Plays the cases of this folder on each branch of the real driver, for scripts/real-driver."""

import importlib
import sys
from pathlib import Path

import packages
import stage
from fixtures import cases
from harness import paths, show

STORE = paths.TARGET / "real-driver"
# It exists if NVIDIA's kernel module is loaded: libraries of another version then answer
# differently.
MODULE = Path("/proc/driver/nvidia/version")


def options(description):
    parser = cases.parser(description)
    parser.add_argument("--check", action="store_true", help="as CI runs it")
    parser.add_argument("--branch", action="append", choices=packages.BRANCHES, help="only this branch; may be said more than once")
    parser.add_argument("--list", action="store_true", help="the cases, without playing any")
    parser.add_argument("--fetch", action="store_true", help="fetch and unpack, and say where the libraries lie")
    return parser.parse_args()


def drivers(branches):
    """Those that can be had, and why others cannot."""
    store = packages.Store(STORE)
    found, absent = [], {}
    for branch in branches:
        try:
            found.append(store.get(branch))
        except packages.Unreachable as why:
            absent[branch] = str(why)
    return found, absent


def tell(absent):
    """One line a reason."""
    for why in dict.fromkeys(absent.values()):
        named = [branch for branch, reason in absent.items() if reason == why]
        print(f"real-driver: no {', '.join(named)}: {why}", file=sys.stderr, flush=True)


def main(description):
    given = options(description)
    for file in sorted(stage.HERE.glob("*.py")):
        if file.stem not in ("run", "stage", "packages"):
            importlib.import_module(file.stem)
    chosen = [case for case in stage.CASES if not given.words or any(word.lower() in case.name.lower() for word in given.words)]
    if given.list:
        print("\n".join(case.name for case in chosen))
        return 0
    if not chosen and not given.fetch:
        print(f"real-driver: no case is called so: {', '.join(given.words)}", file=sys.stderr)
        return 2
    missing = None if given.fetch else stage.missing()
    if missing:
        print(f"real-driver: {missing}", file=sys.stderr)
        return 1
    branches = given.branch or list(packages.BRANCHES)
    found, absent = drivers(branches) if given.fetch or not MODULE.exists() else ([], dict.fromkeys(branches, "this machine has NVIDIA's kernel module, and these cases are for machines without"))
    tell(absent)
    if given.fetch:
        print("\n".join(f"{driver.version}\t{driver.libraries}" for driver in found))
        return 1 if absent else 0
    played = [(f"{driver.branch} {case.name}", of(case, driver)) for case in chosen for driver in case.branches(found, given.check)] if found else []
    skipped = len(absent) * len(chosen)
    if not played:
        show.verdict("real-driver", skipped, [], skipped)
        return 0
    return cases.play("real-driver", played, given.keep, skipped=skipped)


def of(case, driver):
    def one(folder):
        scene = stage.Stage(folder, driver)
        try:
            return case.function(scene)
        finally:
            scene.close()

    return one
