"""Runs a PyTorch program with everything it launches on a stream of a priority: what CUDA itself offers to favour one job.

prioritised.py PRIORITY PROGRAM ARGUMENTS...        -1 and lower is more important, 0 the default
"""

import os
import runpy
import sys


def main():
    priority, program = int(sys.argv[1]), sys.argv[2]
    sys.argv = sys.argv[2:]
    sys.path[0] = os.path.dirname(os.path.abspath(program))
    import torch

    torch.cuda.set_stream(torch.cuda.Stream(priority=priority))
    runpy.run_path(program, run_name="__main__")


main()
