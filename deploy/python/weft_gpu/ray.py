"""weft under Ray: `runtime_env={"weft": {"priority": "high", "memory": "12GiB"}}`.

    import weft_gpu.ray                          # before a `ray.init()` that starts a cluster
    python -m weft_gpu.ray start --head          # `ray start`, on a node whose Ray loads the plugin

Tasks and actors with this key are started under weft, with the broker of their node. The options
are those of `weft_gpu.env`. Importing this module in a driver sets the variable that makes Ray load
the plugin. The driver then refuses wrong values at submission; otherwise the node refuses them.

Ray's plugins come from a private module of Ray. Tested with Ray 2.60.
"""

import difflib
import functools
import json
import os
import re
import subprocess
import sys

from . import _OPTIONS, WeftError, env, program

try:
    from ray._private import worker as _worker
    from ray._private.runtime_env.plugin import RuntimeEnvPlugin
    from ray.runtime_env import RuntimeEnv
except ImportError as _why:
    raise ImportError(f"weft_gpu.ray needs Ray (tested with 2.60): {_why}") from None

__all__ = ["WeftPlugin", "node_environment", "runtime_env"]

_KEY = "weft"
_PLUGINS = "RAY_RUNTIME_ENV_PLUGINS"
# A literal: in a module that runs as a program, a class does not know its module's path.
_CLASS = "weft_gpu.ray.WeftPlugin"
_PRIORITIES = ("high", "normal", "low", "idle")
# Seconds that the broker of a node stays without a job. The next job starts one.
_IDLE_EXIT_S = 3600
# Seconds for a broker to start, on a busy machine.
_START_BOUND_S = 30
# Search lists for libraries. Values of Ray's user and of weft are joined.
_LISTS = ("LD_PRELOAD", "LD_LIBRARY_PATH")

_AMOUNT = re.compile(r"\d+(\.\d+)?\s*([KMGT]i?)?B?", re.IGNORECASE)
_TIME = re.compile(r"\d+(\.\d+)?\s*(us|ms|s)")
_PART = re.compile(r"\d+(\.\d+)?\s*%?")
_NUMBER = re.compile(r"\d+(\.\d+)?")

# The form of a value, in words and as a pattern. The node's weft checks it again.
_FORMS = {
    "memory": (_AMOUNT, 'an amount such as "12GiB"'),
    "slowdown": (_PART, 'a part such as "2%"'),
    "slo": (_TIME, 'a time such as "50ms"'),
    "sm_share": (_PART, 'a part such as "25%"'),
    "wait": (_NUMBER, "seconds"),
    "duration": (re.compile("short|medium|long"), '"short", "medium" or "long"'),
    "backing": (re.compile("device|managed|auto"), '"device", "managed" or "auto"'),
    "name": (re.compile(r"[^\n]{1,64}"), "1 to 64 characters"),
    "profile": (re.compile(r"[^\n]+"), "a name or a file"),
}


def runtime_env(**options):
    """`{"weft": options}`, for `runtime_env=` of tasks, actors and jobs.

    Raises ValueError with one line if an option or a value is wrong.
    """
    return {_KEY: _checked(options)}


def node_environment():
    """Variables with which a node of Ray must be started: they name the plugin.

    Importing this module sets them in its process. Plugins that are already named stay.
    """
    ours = {"class": _CLASS}
    named = json.loads(os.environ.get(_PLUGINS) or "[]")
    return {_PLUGINS: json.dumps([*[one for one in named if one != ours], ours])}


def _checked(options):
    """The options, if their form is right. Raises ValueError with one line."""
    if not isinstance(options, dict):
        raise ValueError(f'runtime_env["{_KEY}"] is a dict such as {{"priority": "high"}}')
    # Ray chooses the device.
    known = [name for name in _OPTIONS.split() if name != "gpu"]
    for name, value in options.items():
        where = f'runtime_env["{_KEY}"]: {name}'
        if name == "gpu":
            raise ValueError(f"{where}: Ray chooses the GPU (num_gpus)")
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise ValueError(f"{where}: no such option; {advice}")
        if value is None:
            continue
        if name in ("quiet", "no_wait"):
            if not isinstance(value, bool):
                raise ValueError(f"{where}: {value!r} is neither True nor False")
        elif name == "priority":
            whole = str(value).isdecimal() and len(str(value)) == 1
            if isinstance(value, bool) or not (whole or value in _PRIORITIES):
                names = ", ".join(_PRIORITIES)
                text = f"{value!r} is no priority: 0 (matters most) to 9, or a name: {names}"
                raise ValueError(f"{where}: {text}")
        else:
            pattern, words = _FORMS[name]
            if isinstance(value, bool) or not pattern.fullmatch(str(value).strip()):
                raise ValueError(f"{where}: {value!r} is not {words}")
    return options


class WeftPlugin(RuntimeEnvPlugin):
    """The plugin that Ray's agent of a node calls before it starts a worker."""

    name = _KEY

    @staticmethod
    def validate(runtime_env_dict):
        """Raises ValueError with one line if a value is wrong."""
        _checked(runtime_env_dict[_KEY])

    def modify_context(self, uris, runtime_env, context, logger):
        """Makes the worker start under weft, as `weft run` would."""
        options = {"quiet": True, **runtime_env[_KEY]}
        try:
            given = env(**options)
        except WeftError as why:
            raise RuntimeError(f'runtime_env["{_KEY}"]: {why}') from None
        asked = context.env_vars
        for name in _LISTS:
            if name in given and name in asked:
                given[name] = _joined(asked[name], given[name])
        gang = given.pop("WEFT_GANG", "ray")
        context.env_vars = {**asked, **given}
        # The result is used for all workers of this runtime_env. Each worker is a separate job,
        # together with the processes that it starts. bash reads this prefix and becomes the worker.
        context.command_prefix += ["export", f"WEFT_GANG={gang}-$$", "&&"]


def _joined(first, then):
    """Two lists of paths as one, each path once."""
    parts = [part for text in (first, then) for part in re.split("[: ]", text) if part]
    return ":".join(dict.fromkeys(parts))


def _check_at_submit():
    """Makes RuntimeEnv check our key at its construction, before it is sent anywhere."""
    theirs = RuntimeEnv.__init__
    if hasattr(theirs, "__wrapped__"):
        return

    @functools.wraps(theirs)
    def init(self, *arguments, **fields):
        # An environment from another process was checked there.
        if fields.get("_validate", True) and fields.get(_KEY) is not None:
            _checked(fields[_KEY])
        theirs(self, *arguments, **fields)

    RuntimeEnv.__init__ = init


_check_at_submit()


def _register():
    """Registers the plugin for the Ray that this process starts. Prints a line if it has already
    started one.
    """
    named = os.environ.get(_PLUGINS, "")
    os.environ.update(node_environment())
    # For a cluster that others started, this process cannot see whether the plugin is registered.
    node = getattr(_worker, "_global_node", None)
    if node is not None and node.head and _CLASS not in named:
        print(
            "weft: this Ray was started before weft_gpu.ray was imported, so it ignores "
            f'runtime_env["{_KEY}"] and jobs run without weft; import it before ray.init()',
            file=sys.stderr,
        )


_register()


def _start_broker():
    """Starts the broker of this node, unless one answers. A node without one still works."""
    weft = str(program())
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "timeout": _START_BOUND_S}
    try:
        asked = subprocess.run([weft, "status", "--json"], stderr=subprocess.DEVNULL, **quiet)
        if asked.returncode:
            words = [weft, "broker", "--background", "--idle-exit", str(_IDLE_EXIT_S)]
            subprocess.run(words, **quiet)
    except (OSError, subprocess.TimeoutExpired) as why:
        print(f"weft: no broker was started: {why}; the first job starts one", file=sys.stderr)


def main(words):
    """Replaces this process by `ray WORDS` with the plugin. For `start` it first starts the node's
    broker.
    """
    if words[:1] == ["start"]:
        try:
            _start_broker()
        except WeftError as why:
            sys.exit(f"weft: {why}")
    beside = os.path.join(os.path.dirname(sys.executable), "ray")
    ray = beside if os.access(beside, os.X_OK) else "ray"
    try:
        os.execvp(ray, ["ray", *words])
    except OSError as why:
        sys.exit(f"weft: cannot start ray: {why}")


if __name__ == "__main__":
    main(sys.argv[1:])
