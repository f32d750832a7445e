"""The parts of scripts/gpu-bundle, scripts/gpu-suite and scripts/gpu-results. Standard library only: nothing can be installed on the GPU machine.

bundle.py, clients.py   what travels to the GPU machine, and whether it can run there
machine.py, look.py     what the machine is: GPU, driver, Python packages, MPS
leases.py               the runs that a borrowed GPU is used for
keeper.py, warm_up.py   the driver kept initialised, PyTorch read from the disk once
supervise.py            runs a phase inside its share of the time and ends everything it started
safety.py               what is never done to a real GPU: managed memory without bound, or unasked
phase.py, workload.py   what every phase uses: results, time left, jobs, a device
phases/                 the phases themselves, one file each
results.py, report.py   result files: writing, reading, the table at the end
fold.py                 result files into profiles/recorded and the simulated GPU's calibration
"""
