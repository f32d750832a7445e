"""What the simulated GPU needs to know of a real one, managed memory apart. weft-gpu-probe measures; this stores its lines as they come."""

from .. import probe


run, plan = probe.run, probe.plan
