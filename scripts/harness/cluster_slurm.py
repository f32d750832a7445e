"""weft under Slurm, with simulated GPUs, on this machine.

  scripts/cluster slurm --check                two nodes of two GPUs, as in tests/cluster
  scripts/cluster slurm --check --nodes 8      the same cases on eight nodes
  scripts/cluster slurm --check --long         also the cases that take minutes
  scripts/cluster slurm WORD...                the cases with one of these words in their name
  scripts/cluster slurm --replay               a public trace, under four ways to assign GPUs
  scripts/cluster slurm --order --check        policies of weft cluster, compared with the lab
  scripts/cluster slurm --debian trixie        the same with that Debian's Slurm, 24.11

The engine is the real one: Debian's Slurm (apt-get install slurmctld slurmd slurm-client
slurm-wlm-basic-plugins munge libslurm-dev), started by root in its own namespaces. No process
listens on this machine, and all processes end with the run. The plugin is built against the
machine's header. The last line is `N passed, N failed`; a replay ends with its table and its missed
aims.
"""

import contextlib
import sys

from . import cases, debian, jobs, other_debian, paths, slurm, slurm_cases, slurm_long, slurm_order, slurm_replay


def main(arguments):
    """Runs the cases, or the trace. Returns the exit code."""
    parser = cases.parser(__doc__)
    parser.prog = "cluster slurm"
    check = "exit 1 if a case fails (always so), or if the replay misses an aim"
    parser.add_argument("--check", action="store_true", help=check)
    parser.add_argument("--nodes", type=int, help="nodes of the cluster; default 2, for a replay 4")
    parser.add_argument("--gpus", type=int, default=2, help="simulated GPUs of each node")
    parser.add_argument("--long", action="store_true", help="also the cases that take minutes")
    parser.add_argument("--debian", help="with the Slurm of this release, made by debootstrap")
    slurm_replay.options(parser.add_argument_group("the replay"))
    slurm_order.options(parser.add_argument_group("the order"))
    options = parser.parse_args(arguments)
    options.nodes = options.nodes or (4 if options.replay or options.order else 2)
    if options.debian:
        return elsewhere(options.debian, arguments)
    why = slurm.missing()
    if why:
        print(f"cluster: {why}", file=sys.stderr)
        return 1
    if options.order:
        return slurm_order.main(options)
    if options.replay:
        return slurm_replay.main(options)
    return play(options)


def elsewhere(name, arguments):
    """Runs the same command in another release of Debian."""
    # Inside, that release is the machine's own.
    words = [word for word in arguments if word not in ("--debian", name, f"--debian={name}")]
    try:
        folder = other_debian.make(name, slurm.PACKAGES.split())
    except (RuntimeError, debian.Unreachable) as why:
        print(f"cluster: {why}", file=sys.stderr)
        return 1
    return other_debian.run(folder, ["python3", paths.ROOT / "scripts" / "cluster", "slurm", *words])


def chosen(options, those):
    """The cases that the words select."""
    words = options.words or [""]
    return [case for case in those if any(word in case.__name__ for word in words)]


def play(options):
    """Runs the cases of the shared cluster, then those with their own cluster."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(jobs.workspace(options.keep))
        sizes = {"nodes": options.nodes, "gpus": options.gpus}
        if options.long:
            sizes["requeue_s"] = slurm_long.REQUEUE_S
        usual = slurm_cases.ALL + slurm_order.SHORT
        shared = chosen(options, usual + (slurm_long.SHARED if options.long else []))
        own = chosen(options, slurm_long.OWN if options.long else [])
        steps = []
        if shared:
            cluster = slurm.Cluster(folder, broker_options=slurm.BROKER_OPTIONS, **sizes)
            hands = slurm_cases.Play(stack.enter_context(cluster), slurm.python())
            steps += [
                (case.__name__, lambda _, case=case: slurm_cases.played(hands, case))
                for case in shared
            ]
        steps += [(case.__name__, case) for case in own]
        return cases.play("cluster", steps, options.keep)
