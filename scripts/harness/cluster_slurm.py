"""weft under Slurm, with simulated GPUs, on this machine.

  scripts/cluster slurm --check                two nodes of two GPUs, as tests/cluster plays it
  scripts/cluster slurm --check --nodes 8      the same cases on eight nodes
  scripts/cluster slurm WORD...                the cases with one of these words in their name

The engine is the real one: Slurm as Debian has it (apt-get install slurmctld slurmd slurm-client
slurm-wlm-basic-plugins munge libslurm-dev), started by root in namespaces of its own. Nothing
listens on this machine, and all that was started is ended with the run. The plugin is built against
the machine's header. The last line is `N passed, N failed`.
"""

import contextlib
import sys

from . import cases, jobs, slurm, slurm_cases


def main(arguments):
    """Plays the cases. Returns the exit code."""
    parser = cases.parser(__doc__)
    parser.prog = "cluster slurm"
    parser.add_argument("--check", action="store_true", help="exit 1 where a case fails: always so")
    parser.add_argument("--nodes", type=int, default=2, help="nodes of the cluster")
    parser.add_argument("--gpus", type=int, default=2, help="simulated GPUs of each node")
    options = parser.parse_args(arguments)
    why = slurm.missing()
    if why:
        print(f"cluster: {why}", file=sys.stderr)
        return 1
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(jobs.workspace(options.keep))
        sizes = {"nodes": options.nodes, "gpus": options.gpus}
        cluster = slurm.Cluster(folder, broker_options=slurm.BROKER_OPTIONS, **sizes)
        play = slurm_cases.Play(stack.enter_context(cluster), slurm.python())
        chosen = [
            (case.__name__, lambda _, case=case: slurm_cases.played(play, case))
            for case in slurm_cases.ALL
            if not options.words or any(word in case.__name__ for word in options.words)
        ]
        return cases.play("cluster", chosen)
