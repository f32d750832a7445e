"""weft in Python: the path of its library, and the environment of a job under weft.

    subprocess.Popen(["python", "serve.py"], env={**os.environ, **weft_gpu.env(priority="high")})

Importing it changes nothing in this process. A job is under weft from its start or not at all.

    with weft_gpu.request():          # in a job under weft: measures the time of a request
        answer = model(batch)
"""

import contextlib
import ctypes
import os
import subprocess
import sysconfig
from pathlib import Path

from ._version import VERSION as __version__

__all__ = ["WeftError", "__version__", "env", "lib_path", "program", "request", "step"]

_FOLDER = Path(__file__).resolve().parent / "bin"

# Seconds. `weft run` takes milliseconds, and one second more if it starts a broker.
_BOUND_S = 60

# The options of `weft run`. Any other name is a mistake, or is a variable of the job.
_OPTIONS = (
    "priority profile slowdown slo memory duration wait no_wait backing gpu sm_share name quiet"
)


class WeftError(RuntimeError):
    """weft is missing, or refused a request. The text is weft's own line."""


def lib_path():
    """Path of libweft.so, for LD_PRELOAD."""
    library = _there(_FOLDER / "libweft.so")
    _link(library)
    return library


def program():
    """Path of the `weft` command."""
    _link(_FOLDER / "libweft.so")
    return _there(_FOLDER / "weft")


def _link(library):
    """Makes the driver's names in `lib` links to the library, as in the other packages.

    A wheel holds no links, so it has empty files in their place. They stay in a folder that this
    user cannot write; `weft run` then makes its own links.
    """
    for name in ("libcuda.so.1", "libcuda.so"):
        link = library.parent / "lib" / name
        if not link.is_symlink():
            fresh = link.with_name(f".{name}.{os.getpid()}")
            # Replaces atomically: another process may do the same, and a name must never be
            # missing.
            with contextlib.suppress(OSError):
                fresh.symlink_to(Path("..") / library.name)
                fresh.replace(link)


def env(**options):
    """Variables that put a job under weft: those that differ from this process's environment.

    The options are those of `weft run`, with `_` for `-`: `priority`, `profile`, `slowdown`, `slo`,
    `memory`, `duration`, `wait`, `no_wait`, `backing`, `gpu`, `sm_share`, `name`, `quiet`. `weft
    run` itself computes the result, so both mean the same. It starts a broker if none runs. Each
    call is one job to weft: all processes that get the result belong together.

    Raises TypeError for an unknown option, and WeftError with weft's line for a wrong value.
    """
    unknown = sorted(set(options) - set(_OPTIONS.split()))
    if unknown:
        raise TypeError(f"weft_gpu.env: unknown option {unknown[0]!r}; there are: {_OPTIONS}")
    words = [str(program()), "run"]
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            words.append(f"{option}={value}")
    # The printed environment could change an interpreter's start, but not that of /usr/bin/env.
    words += ["--", "/usr/bin/env", "-0"]
    try:
        done = subprocess.run(words, capture_output=True, timeout=_BOUND_S, check=False)
    except subprocess.TimeoutExpired:
        raise WeftError(f"weft run did not answer within {_BOUND_S} s") from None
    if done.returncode:
        said = os.fsdecode(done.stderr).strip().removeprefix("weft: ")
        raise WeftError(said or f"weft run ended with {done.returncode}")
    given = (pair.partition("=") for pair in os.fsdecode(done.stdout).split("\0") if pair)
    # The shell sets `_`: the program that it started last.
    return {
        name: value for name, _, value in given if name != "_" and os.environ.get(name) != value
    }


class request(contextlib.ContextDecorator):  # noqa: N801 - used as a word: with weft_gpu.request()
    """Marks a request, as a context or a decorator, to measure its time alone and with other jobs.

    `weft status` and `weft history` show both times. Requests may overlap, in threads and in tasks.
    In a process that is not under weft it does nothing. A request that ends by an exception counts
    too.
    """

    def __init__(self):
        self._calls = _marks()
        self._tokens = []

    def _recreate_cm(self):
        # Each call of a decorated function is a separate request.
        return type(self)()

    def __enter__(self):
        if self._calls:
            self._tokens.append(self._calls[0]())
        return self

    def __exit__(self, *_):
        if self._calls:
            self._calls[1](self._tokens.pop())
        return False


class step(request):  # noqa: N801 - as above
    """Like `request`, for a step of a training job."""


_known = None


def _marks():
    """The library's begin and end functions if it is loaded in this process; else None."""
    global _known
    if _known is None:
        process = ctypes.CDLL(None)
        try:
            begin, end = process.weft_request_begin, process.weft_request_end
        except AttributeError:
            _known = ()
            return None
        begin.restype, begin.argtypes = ctypes.c_uint64, []
        end.restype, end.argtypes = None, [ctypes.c_uint64]
        _known = (begin, end)
    return _known or None


def _there(path):
    if not path.exists():
        platform = sysconfig.get_platform()
        raise WeftError(f"{path} is missing: this is no complete wheel of weft for {platform}")
    return path
