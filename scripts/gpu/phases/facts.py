# SPDX-License-Identifier: MIT OR Apache-2.0
"""Facts of this machine for readers of the figures, and a warm-up, before the phases.

No fact is a verdict on weft, and nothing changes a setting. A fact that is not available has the
reason in its place. This runs before the clock of the phases begins; its time is bounded too.
"""

import json
import platform
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

from harness import jobs

from .. import machine
from ..phase import Failure, Skip

SMI = "nvidia-smi"
# Longest call of nvidia-smi, s; without persistence mode it starts the driver.
SMI_BOUND = 30.0

WARM_UP = Path(__file__).resolve().parents[1] / "warm_up.py"

PIP_PROGRAM = """
import importlib.metadata as m, json
print(json.dumps({d.metadata["Name"]: d.version for d in m.distributions() if d.metadata["Name"]}))
"""

# Lines that identify the device itself. They are left out: results go into a public repository.
WHICH = re.compile(r"^(\s*(?:Serial Number|GPU UUID|GPU PDI|Board ID|Chassis Serial Number|System GUID|Cluster UUID)\s*:).*")

# Names of the facts that each run writes, in this order.
NAMES = [
    "kernel_module",
    "uvm_parameters",
    "clocksource",
    "cgroup_limits",
    "ulimits",
    "device",
    "persistence_mode",
    "nvidia_smi",
    "clocks_before",
    "python",
    "packages",
    "jobs_python",
]


def run(phase):
    device = phase.device(phase.place("facts"))
    environment = {**jobs.clean_environment(), **device.environment()}
    gather = {
        "kernel_module": lambda: read("/proc/driver/nvidia/version"),
        "uvm_parameters": lambda: parameters("/sys/module/nvidia_uvm/parameters"),
        "clocksource": clocksource,
        "cgroup_limits": cgroup_limits,
        "ulimits": ulimits,
        # Includes attribute 133 (whether contexts go to an MPS server) and the compute capability.
        "device": lambda: phase.facts["driver"],
        "persistence_mode": lambda: smi(environment, "--query-gpu=index,persistence_mode", "--format=csv"),
        "nvidia_smi": lambda: smi(environment, "-q"),
        "clocks_before": lambda: clocks(environment),
        "python": lambda: {"executable": sys.executable, "version": sys.version, "libc": platform.libc_ver()},
        "packages": lambda: packages(phase),
        "jobs_python": lambda: {"executable": phase.python, "version": phase.facts["python_version"]},
    }
    for name in NAMES:
        try:
            data = gather[name]()
        # A fact that is not available must not prevent the others.
        except Exception as error:  # noqa: BLE001
            data = {"error": f"{type(error).__name__}: {error}"}
        phase.fact(name, data)
    if phase.options.get("warm"):
        phase.case("warm-up", warm_up, phase, device, need=1)


def plan(phase):
    """Every process with a device of its own, without nvidia-smi and Python's list of packages."""
    if phase.options.get("warm") and "torch" in phase.facts["packages"]:
        yield "warm-up", [phase.python, WARM_UP], phase.environment(phase.device(phase.place("plan")))


def read(path):
    return Path(path).read_text(errors="replace").strip().splitlines()


def parameters(folder):
    """The readable parameters of a kernel module."""
    found = {}
    for path in sorted(Path(folder).iterdir()):
        try:
            found[path.name] = path.read_text(errors="replace").strip()
        except OSError as error:
            found[path.name] = {"error": error.strerror}
    return found


def clocksource():
    """weft's fast clock needs `tsc`; a virtual machine often has another clock source."""
    folder = Path("/sys/devices/system/clocksource/clocksource0")
    return {name: (folder / f"{name}_clocksource").read_text().strip() for name in ("current", "available")}


# Files that limit a process, of both versions.
LIMITS = {
    "v2": ["memory.max", "memory.high", "memory.swap.max", "cpu.max", "cpuset.cpus.effective", "pids.max"],
    "memory": ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.kmem.limit_in_bytes"],
    "cpu": ["cpu.cfs_quota_us", "cpu.cfs_period_us"],
    "pids": ["pids.max"],
}


def cgroup_limits(root="/sys/fs/cgroup", own="/proc/self/cgroup"):
    """{path of a file: its content} of every group from ours to the top, v1 and v2. In a container
    the path of our group may not exist, but its top does.
    """
    root, found = Path(root), {}
    for line in Path(own).read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        kinds = controllers.split(",") if controllers else ["v2"]
        for kind in kinds:
            if kind not in LIMITS:
                continue
            tops = [root] if kind == "v2" else [root / controllers, root / kind]
            top = next((place for place in tops if place.is_dir()), None)
            if top is None:
                continue
            place = top / group.strip("/")
            while True:
                for name in LIMITS[kind]:
                    if (place / name).is_file():
                        found[str(place / name)] = (place / name).read_text().strip()
                if place == top or top not in place.parents:
                    break
                place = place.parent
    return {"groups": Path(own).read_text().split(), "limits": found}


def ulimits():
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    limits = {name[7:].lower(): resource.getrlimit(getattr(resource, name)) for name in names}
    return {name: ["unlimited" if value == resource.RLIM_INFINITY else value for value in pair] for name, pair in limits.items()}


def smi(environment, *arguments):
    """The output of nvidia-smi, line by line. The call only queries."""
    program = shutil.which(SMI)
    if not program:
        return {"error": f"{SMI} is not on the path"}
    done = subprocess.run(
        [program, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=SMI_BOUND,
        check=False,
    )
    if done.returncode:
        return {"error": f"exit {done.returncode}: {(done.stdout + done.stderr).strip()[-300:]}"}
    return [WHICH.sub(r"\1 (left out)", line) for line in done.stdout.rstrip().splitlines()]


def clocks(environment):
    return smi(environment, "-q", "-d", "CLOCK,PERFORMANCE")


def packages(phase):
    return machine.ask([phase.python, "-c", PIP_PROGRAM], jobs.clean_environment())


def warm_up(phase, device):
    """The first import of PyTorch and a small product; timed, since on a cold machine it takes as
    long as a phase.
    """
    if "torch" not in phase.facts["packages"]:
        raise Skip(f"no Python package torch for {phase.python}")
    said = machine.ask([phase.python, WARM_UP], phase.environment(device), max(phase.left() - 0.5, 1.0))
    if "error" in said:
        raise Failure(said["error"])
    for name, seconds in said.items():
        phase.value(f"warm_up.{name}", seconds, "s", n=1, how="scripts/gpu/warm_up.py, without weft")
