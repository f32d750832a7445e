# SPDX-License-Identifier: MIT OR Apache-2.0
"""Common code of the scripts and the test runners: paths, jobs on a private device, the device's
log, printing.

Standard library only: it runs before anything is installed.
"""
