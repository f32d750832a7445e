"""Two jobs on managed memory. weft-gpu-probe bounds what it allocates by what is free; this stores its lines as they come."""

from .. import probe


def run(phase):
    probe.run(phase, "memory")
