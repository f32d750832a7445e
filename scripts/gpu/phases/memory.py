"""Managed memory: what moving, faulting and discarding it costs. The last phase, and on a real GPU only where it is asked for (safety.py).

weft-gpu-probe bounds what it allocates by what is free, and by 256 MiB; this stores its lines as they come."""

from .. import probe


run, plan = probe.run, probe.plan
