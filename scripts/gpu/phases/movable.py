# SPDX-License-Identifier: MIT OR Apache-2.0
"""Memory that moves: reserved addresses on physical memory that is mapped, copied out, freed,
allocated again and copied in (weft-gpu-probe movable).

No managed memory and no checkpoint.
"""

from .. import probe

run, plan = probe.run, probe.plan
