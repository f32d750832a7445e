# SPDX-License-Identifier: MIT OR Apache-2.0
"""Constants of a real GPU that the simulated GPU needs, except managed memory. weft-gpu-probe
measures; this phase stores its lines as they arrive.
"""

from .. import probe


run, plan = probe.run, probe.plan
