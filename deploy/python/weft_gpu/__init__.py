# SPDX-License-Identifier: MIT OR Apache-2.0
"""weft in Python: the path of its library, and the environment of a job.

    subprocess.Popen(["python", "serve.py"], env={**os.environ, **weft_gpu.env(priority="high")})

Importing the module changes nothing in this process. A running job cannot be put under weft.

    with weft_gpu.request():          # in a job under weft: measures the time of a request
        answer = model(batch)
"""

import contextlib
import ctypes
import functools
import html
import json
import os
import subprocess
import sysconfig
from pathlib import Path

from ._version import VERSION as __version__

__all__ = [
    "Status",
    "WeftError",
    "__version__",
    "active",
    "env",
    "lib_path",
    "pause",
    "program",
    "request",
    "resume",
    "status",
    "step",
]

_FOLDER = Path(__file__).resolve().parent / "bin"

# Seconds. `weft run` takes milliseconds, and one more second if it starts a broker.
_BOUND_S = 60

# The options of `weft run`. `env` refuses other names, and the job sets other variables itself.
_OPTIONS = (
    "priority profile slowdown slo at_least memory duration wait no_wait backing evict_idle "
    "longest_evicted gpu sm_share name quiet"
)
_SWITCHES = ("no_wait", "quiet")


class WeftError(RuntimeError):
    """The error if weft is missing or refuses a request. The text is weft's own line."""


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

    A wheel cannot hold links, so it has empty files instead. If this user may not write to the
    folder, the files stay, and `weft run` makes its own links elsewhere.
    """
    for name in ("libcuda.so.1", "libcuda.so"):
        link = library.parent / "lib" / name
        if not link.is_symlink():
            fresh = link.with_name(f".{name}.{os.getpid()}")
            # Atomic: another process may do the same, and the name must never be missing.
            with contextlib.suppress(OSError):
                fresh.symlink_to(Path("..") / library.name)
                fresh.replace(link)


def env(**options):
    """Variables that put a job under weft: those that differ from this process's environment.

    The options are those of `weft run`, with `_` for `-`: `priority`, `profile`, `slowdown`, `slo`,
    `at_least`, `memory`, `duration`, `wait`, `no_wait`, `backing`, `evict_idle`, `longest_evicted`,
    `gpu`, `sm_share`, `name`, `quiet`.
    The values come from `weft run`, so they mean the same, and it starts a broker if none runs.
    Each call is one job to weft: all processes that get its result belong to that job.

    Raises TypeError for an unknown option, and WeftError with weft's line for a wrong value.
    """
    unknown = sorted(set(options) - set(_OPTIONS.split()))
    if unknown:
        raise TypeError(f"weft_gpu.env: unknown option {unknown[0]!r}; there are: {_OPTIONS}")
    # /usr/bin/env, since an interpreter may change the environment that it prints.
    words = [str(program()), "run", *_words(options), "--", "/usr/bin/env", "-0"]
    given = (pair.partition("=") for pair in _output(words).split("\0") if pair)
    # `_` belongs to the shell: the program that it started last.
    return {
        name: value for name, _, value in given if name != "_" and os.environ.get(name) != value
    }


def _words(options):
    """Options of `weft run`."""
    words = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if name in _SWITCHES and value is True:
            words.append(option)
        elif value is not None and not (name in _SWITCHES and value is False):
            words.append(f"{option}={value}")
    return words


@functools.lru_cache(maxsize=256)
def _check(*words):
    """Raises WeftError with weft's line if `weft run` refuses these options. Starts no broker."""
    _output([str(program()), "run", "--check", *words, "--", "true"])


def _output(words, **variables):
    """stdout of a command of weft, as text."""
    called = " ".join(["weft", *words[1:2]])
    environment = {**os.environ, **variables}
    try:
        done = subprocess.run(
            words, capture_output=True, env=environment, timeout=_BOUND_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise WeftError(f"{called} did not answer within {_BOUND_S} s") from None
    if done.returncode:
        line = os.fsdecode(done.stderr).strip().removeprefix("weft: ")
        raise WeftError(line or f"{called} ended with {done.returncode}")
    return os.fsdecode(done.stdout)


class Status(dict):
    """The keys of `weft status --json`. A notebook shows it as the page of `weft status`."""

    def __init__(self, keys, page):
        super().__init__(keys)
        self._page = page

    def __str__(self):
        return self._page

    def _repr_html_(self):
        return f"<pre>{html.escape(self._page)}</pre>"


def status():
    """The broker's jobs. Raises WeftError with weft's line if no broker runs."""
    words = [str(program()), "status"]
    keys = json.loads(_output([*words, "--json"]))
    return Status(keys, _output(words, COLUMNS="120"))


def active():
    """Whether a broker serves this process. It does from the process's first CUDA call on."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        return any("/memfd:weft-lane" in line for line in maps)


def pause(job=None, wake="on-resume"):
    """Moves a job's device memory to the host until `resume`, as `weft pause --evict` does.

    `job`: its name or number, as for the command; None: this process. Until `resume` its calls that
    use the device wait. With `wake="on-launch"` the first of them brings the memory back. Raises
    WeftError with weft's line if the memory stays.
    """
    _output([*_move(job, "pause"), "--evict", f"--wake={wake}"])


def resume(job=None):
    """Brings that memory back. Raises WeftError with the reason if that takes longer than 50 s.
    The memory then comes back later.
    """
    _output(_move(job, "resume"))


def _move(job, word):
    """A command of weft that moves a job's memory."""
    job = f"pid:{os.getpid()}" if job is None else str(job)
    return [str(program()), word, job, "--timeout", f"{_BOUND_S - 10}s"]


class request(contextlib.ContextDecorator):  # noqa: N801 - used as a word: with weft_gpu.request()
    """Marks a request, as a context or a decorator. weft measures its time, alone and shared.

    `weft status` and `weft history` show both times. Requests may overlap, in threads and in tasks.
    A request that ends with an exception counts as well. In a process that is not under weft the
    mark does nothing.
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
    """Marks a step of a training job, like `request`."""


_known = None


def _marks():
    """The library's functions that begin and end a request, or None if it is not loaded here."""
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
        raise WeftError(f"{path} is missing: this is not a complete wheel of weft for {platform}")
    return path
