"""What the scripts and the test runners share: paths, jobs on a private device, the device's log, printing.

Standard library only: it runs before anything is installed.
"""
