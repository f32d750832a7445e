# SPDX-License-Identifier: MIT OR Apache-2.0
"""The parts of scripts/gpu-bundle, scripts/gpu-suite and scripts/gpu-results. Standard library
only: nothing can be installed on the GPU machine.

  bundle.py, clients.py   the files for the GPU machine, and whether they can run there
  machine.py, look.py     facts of the machine: GPU, driver, Python packages, MPS
  leases.py               the runs for a borrowed GPU
  keeper.py, warm_up.py   keep the driver initialised, read PyTorch from the disk once
  supervise.py            runs a phase within its share of the time and ends its processes
  safety.py               limits on a real GPU: no managed memory without a bound, or unasked
  phase.py, workload.py   common tools of phases: results, time left, jobs, a device
  phases/                 the phases themselves, one file each
  results.py, report.py   result files: writing, reading, the table at the end
  fold.py                 result files into profiles/recorded and the simulated GPU's calibration
"""
