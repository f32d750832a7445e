# SPDX-License-Identifier: MIT OR Apache-2.0
"""Paths of the repository. scripts/layout writes the built files, scripts/setup the environments.
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
# cargo's profile of everything that is built and run. scripts/test, which compiles everything once,
# uses dev.
PROFILE = os.environ.get("WEFT_BUILD", "release")
BUILT = TARGET / ("debug" if PROFILE == "dev" else PROFILE)

SIMGPU_LIB = TARGET / "simgpu" / "lib"
SIMGPU_CUDA = SIMGPU_LIB / "libcuda.so.1"
SIMGPU_DEVICE = TARGET / "simgpu" / "bin" / "simgpu-device"
WEFT = TARGET / "weft" / "weft"
LIBWEFT = TARGET / "weft" / "libweft.so"
COUNTING_CUDA = TARGET / "counting" / "libcuda.so.1"

CLIENTS = ROOT / "tests" / "clients"


def venv(name):
    """The folder of an environment made by scripts/setup."""
    return ROOT / f".venv-{name}"


def python(name):
    """The Python of an environment."""
    return venv(name) / "bin" / "python"


def whole(name):
    """Whether scripts/setup has ended for an environment. Its Python exists long before."""
    return (venv(name) / "stamp").exists()


def site_packages(name):
    """The site-packages of an environment (its Python's version is in the path)."""
    found = sorted(venv(name).glob("lib/python3.*/site-packages"))
    return found[-1] if found else venv(name) / "lib"


def nvidia_libraries(name):
    """The folders with the CUDA libraries that pip installed. Clients that are not Python packages
    search the library path.
    """
    return sorted(str(p) for p in site_packages(name).glob("nvidia/*/lib") if p.is_dir())
