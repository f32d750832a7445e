"""weft in Python: where its library is, and what a job's environment must be.

    subprocess.Popen(["python", "serve.py"], env={**os.environ, **weft.env(priority="high")})

Importing it changes nothing in this process. A job is under weft from its start or not at all.
"""

import os
import subprocess
import sysconfig
from pathlib import Path

from ._version import VERSION as __version__

__all__ = ["WeftError", "__version__", "env", "lib_path", "program"]

_FOLDER = Path(__file__).resolve().parent / "bin"

# Seconds. `weft run` takes milliseconds, and one more second where it starts a broker.
_BOUND_S = 60

# What `weft run` has no option for is a variable of the job, or a mistake.
_OPTIONS = (
    "priority profile slowdown slo memory duration wait no_wait backing gpu sm_share name quiet"
)


class WeftError(RuntimeError):
    """weft is not there, or refused what was asked for. The text is weft's own line."""


def lib_path():
    """Path of libweft.so, for LD_PRELOAD."""
    return _there(_FOLDER / "libweft.so")


def program():
    """Path of the `weft` command."""
    return _there(_FOLDER / "weft")


def env(**options):
    """Variables that put a job under weft: those that differ from this process's environment.

    The options are those of `weft run`, with `_` for `-`: `priority`, `profile`, `slowdown`, `slo`,
    `memory`, `duration`, `wait`, `no_wait`, `backing`, `gpu`, `sm_share`, `name`, `quiet`.
    `weft run` itself answers, so both mean the same: a broker is started where none runs.
    Each call is one job to weft: all processes that are given the result belong together.

    Raises TypeError for an unknown option, and WeftError with weft's line for a wrong value.
    """
    unknown = sorted(set(options) - set(_OPTIONS.split()))
    if unknown:
        raise TypeError(f"weft.env: unknown option {unknown[0]!r}; there are: {_OPTIONS}")
    words = [str(program()), "run"]
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            words.append(f"{option}={value}")
    # An interpreter may be changed by the environment that it prints, /usr/bin/env is not.
    words += ["--", "/usr/bin/env", "-0"]
    try:
        done = subprocess.run(words, capture_output=True, timeout=_BOUND_S, check=False)
    except subprocess.TimeoutExpired:
        raise WeftError(f"weft run did not answer within {_BOUND_S} s") from None
    if done.returncode:
        said = os.fsdecode(done.stderr).strip().removeprefix("weft: ")
        raise WeftError(said or f"weft run ended with {done.returncode}")
    given = (pair.partition("=") for pair in os.fsdecode(done.stdout).split("\0") if pair)
    # `_` is the shell's own: the program that it started last.
    return {
        name: value for name, _, value in given if name != "_" and os.environ.get(name) != value
    }


def _there(path):
    if not path.exists():
        platform = sysconfig.get_platform()
        raise WeftError(f"{path} is missing: this is no whole wheel of weft for {platform}")
    return path
