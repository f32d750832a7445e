# SPDX-License-Identifier: MIT OR Apache-2.0
"""weft under Jupyter: a kernel that makes each notebook a job with the notebook's name.

    python -m weft_gpu.jupyter install [--priority low] [--user]
    python -m weft_gpu.jupyter remove [--user]

`install` adds the kernel `NAME-weft`, made from the kernel NAME (`python3`), which stays as it is.
A second `install` replaces the kernel `NAME-weft`.
"""

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from . import WeftError, program

__all__ = ["install", "remove"]

_SUFFIX = "-weft"
_DISPLAYED = "Python 3 (ipykernel)"
# The command in ipykernel's own specification.
_OWN = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
_PRIORITIES = ("high", "normal", "low", "idle", *map(str, range(10)))
# Limit of a job's name.
_LONGEST_CHARACTERS = 64


def _own_folder():
    """The folder of this user's kernels."""
    data = os.environ.get("JUPYTER_DATA_DIR") or Path.home() / ".local" / "share" / "jupyter"
    return Path(data) / "kernels"


def _environments_folder():
    """The folder where pip and conda install kernels."""
    return Path(sys.prefix) / "share" / "jupyter" / "kernels"


def _source(kernel):
    """The folder in which Jupyter finds a kernel's specification, or None."""
    named = [part for part in os.environ.get("JUPYTER_PATH", "").split(os.pathsep) if part]
    machine = [Path("/usr/local/share/jupyter/kernels"), Path("/usr/share/jupyter/kernels")]
    folders = [Path(part) / "kernels" for part in named]
    folders += [_environments_folder(), _own_folder(), *machine]
    there = (folder / kernel for folder in folders)
    return next((place for place in there if (place / "kernel.json").is_file()), None)


def install(kernel="python3", priority="low", user=False):
    """Makes the kernel `KERNEL-weft`. Returns its folder. Raises WeftError with one line."""
    if kernel.endswith(_SUFFIX):
        raise WeftError(f"{kernel} is under weft already: name the kernel that it was made from")
    if str(priority) not in _PRIORITIES:
        # A kernel that cannot start prints nothing in a notebook.
        raise WeftError(f"{priority} is no priority: {', '.join(_PRIORITIES)}")
    program()
    source = _source(kernel)
    if source is None and kernel != "python3":
        raise WeftError(f"no kernel {kernel} is installed here (jupyter kernelspec list)")
    try:
        spec = json.loads((source / "kernel.json").read_text()) if source else {}
        argv, shown = spec.get("argv", _OWN), spec.get("display_name", _DISPLAYED)
        begins = [sys.executable, "-m", "weft_gpu.jupyter", "run", f"--priority={priority}", "--"]
        spec = {"language": "python", **spec, "argv": [*begins, *argv]}
        spec["display_name"] = f"{shown} under weft"
        place = (_own_folder() if user else _environments_folder()) / (kernel + _SUFFIX)
        place.parent.mkdir(parents=True, exist_ok=True)
        # Complete before it gets its name: a server may read it at any moment.
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".weft-") as scratch:
            made = Path(scratch) / "made"
            shutil.copytree(source, made) if source else made.mkdir()
            (made / "kernel.json").write_text(json.dumps(spec, indent=1) + "\n")
            with contextlib.suppress(FileNotFoundError):
                place.rename(Path(scratch) / "old")
            made.rename(place)
    except (OSError, ValueError) as why:
        more = "" if user else " (with --user it is only for this user)"
        raise WeftError(f"kernel {kernel}{_SUFFIX} was not made: {why}{more}") from None
    return place


def remove(kernel="python3", user=False):
    """Removes the kernel that `install` made. Returns its folder."""
    place = (_own_folder() if user else _environments_folder()) / (kernel + _SUFFIX)
    try:
        shutil.rmtree(place)
    except OSError as why:
        raise WeftError(f"kernel {kernel}{_SUFFIX} was not removed: {why}") from None
    return place


def _become(priority, argv):
    """Becomes the kernel, as a job with its notebook's name, or without weft the plain kernel."""
    # Jupyter's server sets it to the notebook's path.
    notebook = Path(os.environ.get("JPY_SESSION_NAME", "")).name[:_LONGEST_CHARACTERS]
    named = [f"--name={notebook}"] if notebook.isprintable() and notebook.strip() else []
    try:
        weft = str(program())
        os.execv(weft, [weft, "run", "--quiet", f"--priority={priority}", *named, "--", *argv])
    except (OSError, WeftError) as why:
        print(f"weft: {why}; this kernel runs without weft", file=sys.stderr, flush=True)
    os.execvp(argv[0], argv)


def main(words):
    """The command. If it fails, it exits with 1 and prints one line."""
    parser = argparse.ArgumentParser("weft_gpu.jupyter", description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=["install", "remove"])
    parser.add_argument("--kernel", default="python3", help="the kernel to make it from")
    parser.add_argument("--priority", default="low", help="priority of its jobs, as for weft run")
    parser.add_argument("--user", action="store_true", help="for this user, not the environment")
    if words[:1] == ["run"]:
        _, priority, _, *argv = words
        _become(priority.removeprefix("--priority="), argv)
    given = parser.parse_args(words)
    try:
        if given.action == "install":
            print(install(given.kernel, given.priority, given.user))
        else:
            print(remove(given.kernel, given.user))
    except WeftError as why:
        sys.exit(f"weft: {why}")


if __name__ == "__main__":
    main(sys.argv[1:])
