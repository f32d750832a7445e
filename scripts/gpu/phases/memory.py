# SPDX-License-Identifier: MIT OR Apache-2.0
"""Managed memory: the cost of moving, faulting and discarding it. The last phase; on a real GPU
only if it is requested (safety.py).

weft-gpu-probe limits its allocations to the free memory and to 256 MiB. This phase stores its lines
as they arrive.
"""

from .. import probe


run, plan = probe.run, probe.plan
