# SPDX-License-Identifier: MIT OR Apache-2.0
"""weft under Ray: `runtime_env={"weft": {"priority": "high", "memory": "12GiB"}}`.

    import weft_gpu.ray                          # before a `ray.init()` that starts a cluster
    python -m weft_gpu.ray start --head          # `ray start` with weft's plugin, on a node

Tasks and actors with this `runtime_env` start under weft, with the broker of their node. They may
use the options of `weft_gpu.env`. Importing this module in a driver sets the variable that names
the plugin to Ray. The driver then refuses wrong values at submission. Otherwise the node does.

The plugin's base class comes from a private module of Ray. Tested with Ray 2.60.
"""

import difflib
import functools
import json
import os
import re
import subprocess
import sys

from . import _OPTIONS, WeftError, _check, _words, env, program

try:
    from ray._private import worker as _worker
    from ray._private.runtime_env.plugin import RuntimeEnvPlugin
    from ray.runtime_env import RuntimeEnv
except ImportError as _why:
    raise ImportError(f"weft_gpu.ray needs Ray (tested with 2.60): {_why}") from None

__all__ = ["WeftPlugin", "node_environment", "runtime_env"]

_KEY = "weft"
_PLUGINS = "RAY_RUNTIME_ENV_PLUGINS"
# Written out: a class in a module that runs as a program has `__main__` as its module.
_CLASS = "weft_gpu.ray.WeftPlugin"
# Seconds that a node's broker stays without a job. The next job after that starts another.
_IDLE_EXIT_S = 3600
# Seconds that a broker may take to start on a busy machine.
_START_BOUND_S = 30
# The variables that list libraries. The values of Ray's user and of weft are joined.
_LISTS = ("LD_PRELOAD", "LD_LIBRARY_PATH")


def runtime_env(**options):
    """`{"weft": options}`, for `runtime_env=` of tasks, actors and jobs.

    Raises ValueError with one line if an option or a value is wrong.
    """
    return {_KEY: _checked(options)}


def node_environment():
    """Variables that a node of Ray must be started with. They name the plugin.

    Importing this module sets them in its process. Plugins that they name already stay.
    """
    ours = {"class": _CLASS}
    named = json.loads(os.environ.get(_PLUGINS) or "[]")
    return {_PLUGINS: json.dumps([*[one for one in named if one != ours], ours])}


def _checked(options):
    """The options, checked. Raises ValueError with one line if one is wrong."""
    if not isinstance(options, dict):
        raise ValueError(f'runtime_env["{_KEY}"] is a dict such as {{"priority": "high"}}')
    # Ray chooses the device.
    known = [name for name in _OPTIONS.split() if name != "gpu"]
    for name in options:
        where = f'runtime_env["{_KEY}"]: {name}'
        if name == "gpu":
            raise ValueError(f"{where}: Ray chooses the GPU (num_gpus)")
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise ValueError(f"{where}: no such option; {advice}")
    # weft's own rules, so that driver and node refuse a value in the same words.
    try:
        _check(*_words(options))
    except WeftError as why:
        raise ValueError(f'runtime_env["{_KEY}"]: {why}') from None
    return options


class WeftPlugin(RuntimeEnvPlugin):
    """The plugin that Ray's agent on a node calls before it starts a worker."""

    name = _KEY

    @staticmethod
    def validate(runtime_env_dict):
        """Raises ValueError with one line if a value is wrong."""
        _checked(runtime_env_dict[_KEY])

    def modify_context(self, uris, runtime_env, context, logger):
        """Changes the context so that the worker starts under weft, as with `weft run`."""
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
        # Ray reuses the context for all workers of this runtime_env. Each worker is a separate
        # job, together with the processes that it starts. bash runs this and becomes the worker.
        context.command_prefix += ["export", f"WEFT_GANG={gang}-$$", "&&"]


def _joined(first, then):
    """Two lists of paths as one, each path once."""
    parts = [part for text in (first, then) for part in re.split("[: ]", text) if part]
    return ":".join(dict.fromkeys(parts))


def _check_at_submit():
    """Makes `RuntimeEnv` check the key when it is constructed, before it is sent anywhere."""
    theirs = RuntimeEnv.__init__
    if hasattr(theirs, "__wrapped__"):
        return

    @functools.wraps(theirs)
    def init(self, *arguments, **fields):
        # Without `_validate` it comes from another process, which has checked it.
        if fields.get("_validate", True) and fields.get(_KEY) is not None:
            _checked(fields[_KEY])
        theirs(self, *arguments, **fields)

    RuntimeEnv.__init__ = init


_check_at_submit()


def _register():
    """Names the plugin to a Ray that this process starts. Warns if it has started Ray already."""
    named = os.environ.get(_PLUGINS, "")
    os.environ.update(node_environment())
    # If another process started the cluster, this one cannot see whether it has the plugin.
    node = getattr(_worker, "_global_node", None)
    if node is not None and node.head and _CLASS not in named:
        print(
            "weft: this Ray was started before weft_gpu.ray was imported, so it ignores "
            f'runtime_env["{_KEY}"] and jobs run without weft; import it before ray.init()',
            file=sys.stderr,
        )


_register()


def _start_broker():
    """Starts the broker of this node, unless one answers. The node works without one, too."""
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
    """Becomes `ray WORDS` with the plugin. `start` first starts the node's broker."""
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
