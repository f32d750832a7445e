# SPDX-License-Identifier: MIT OR Apache-2.0
"""Facts of this machine: its GPU or none, its Python packages, whether MPS is installed. Nothing
here changes anything.

Each query runs in its own process with a bound: a broken driver or package costs a line in the
results, not the run.
"""

import ast
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from harness import jobs, paths

HERE = Path(__file__).resolve().parent

# A driver's first start after boot takes a few seconds. If it has not answered within this bound,
# it hangs.
PATIENCE = 60.0

# Packages that a phase or a client may need.
PACKAGES = [
    "torch", "torchvision", "transformers", "timm", "diffusers", "triton", "cupy", "numba", "tinygrad", "jax", "onnxruntime", "onnx",
    "numpy", "cuda", "ctranslate2", "vllm", "cyllama", "tensorflow", "xgboost", "catboost", "faiss", "warp",
]  # fmt: skip

# The name of NVIDIA's MPS program, and its folders if it is not on the path.
MPS_CONTROL = "nvidia-cuda-mps-control"
MPS_PLACES = ["/usr/bin", "/usr/local/nvidia/bin", "/usr/local/cuda/bin", "/opt/nvidia/bin"]


def ask(command, environment, bound=PATIENCE):
    """The JSON line that a program prints, or {"error": reason}."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=bound,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {bound:.0f} s"}
    except OSError as error:
        return {"error": str(error)}
    try:
        return json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {"error": f"exit {done.returncode}: {done.stderr.strip()[-300:] or 'no output'}"}


def driver(device):
    """The data of the driver that jobs on `device` find."""
    wanted = [] if device.simulated else ["--real"]
    return ask([sys.executable, HERE / "look.py", *wanted], {**jobs.clean_environment(), **device.environment()})


def pythons():
    """Interpreters that may have PyTorch: the one that runs us, then the environment of
    scripts/setup.
    """
    candidates = [Path(sys.executable), paths.python("torch")]
    return [path for path in candidates if path.exists()]


PACKAGES_PROGRAM = """
import importlib.metadata as m, importlib.util as u, json, sys
names = json.loads(sys.argv[1]); by = m.packages_distributions(); out = {}
for n in names:
    try: there = u.find_spec(n) is not None
    except (ImportError, ValueError): there = False
    if there:
        try: out[n] = m.version(by.get(n, [n])[0])
        except Exception: out[n] = "?"
print(json.dumps({"packages": out, "version": sys.version.split()[0]}))
"""


def packages(python):
    """{name: version} of the packages that this interpreter would find; nothing is imported."""
    answer = ask([python, "-c", PACKAGES_PROGRAM, json.dumps(PACKAGES)], jobs.clean_environment())
    return answer.get("packages", {}), answer.get("version"), answer.get("error")


def choose_python(asked=None):
    """(interpreter, its packages, its version, trouble): the requested one, or the first with
    PyTorch, else the first.
    """
    found = [(path, *packages(path)) for path in ([asked] if asked else pythons())]
    with_torch = [row for row in found if "torch" in row[1]]
    return (with_torch or found)[0]


def imports(program):
    """Names of the packages that a Python program imports at its top, without the standard library
    and its own folder.
    """
    own = {path.stem for path in Path(program).parent.glob("*.py")}
    names = set()
    for node in ast.walk(ast.parse(Path(program).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return sorted(names - own - set(sys.stdlib_module_names))


def missing_imports(python, program):
    """Packages that the program imports and this interpreter does not have."""
    wanted = imports(program)
    answer = ask([python, "-c", PACKAGES_PROGRAM, json.dumps(wanted)], jobs.clean_environment())
    if "error" in answer:
        return [f"(could not ask {python}: {answer['error']})"]
    return [name for name in wanted if name not in answer["packages"]]


def cuda_libraries(python, *patterns):
    """The folders with CUDA libraries that pip installed for this interpreter."""
    program = "import sysconfig, json; print(json.dumps({'at': sysconfig.get_paths()['purelib']}))"
    answer = ask([python, "-c", program], jobs.clean_environment())
    place = Path(answer.get("at", "/nonexistent"))
    return sorted(str(p) for pattern in patterns or ["nvidia/*/lib"] for p in place.glob(pattern) if p.is_dir())


def mps_control():
    """The path of the MPS control program, or None."""
    found = shutil.which(MPS_CONTROL)
    if found:
        return found
    return next((str(Path(place) / MPS_CONTROL) for place in MPS_PLACES if os.access(Path(place) / MPS_CONTROL, os.X_OK)), None)


def mps_runs():
    """Process ids of MPS control daemons that others started."""
    running = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                program = (entry / "cmdline").read_bytes().split(b"\0")[0].split(b"/")[-1]
            except OSError:
                continue
            if program == MPS_CONTROL.encode():
                running.append(int(entry.name))
    return running


def slug(name):
    """A GPU's name as a folder: `NVIDIA H100 80GB HBM3` is `nvidia-h100-80gb-hbm3`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"


def folder_name(name, simulated):
    """The folder for results of this GPU. A simulated GPU's folder cannot be mistaken for a real
    one's.
    """
    return f"simulated-{slug(name)}" if simulated else slug(name)


def about():
    """Further facts for a reader of the figures."""
    memory = None
    try:
        match = re.search(r"^MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
        memory = int(match[1]) << 10 if match else None
    except OSError:
        pass
    cpu = None
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        cpu = match[1] if match else None
    except OSError:
        pass
    kernel_module = None
    try:
        kernel_module = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        pass
    return {
        "system": platform.platform(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory": memory,
        "kernel_module": kernel_module,
        "load": os.getloadavg()[0],
        "root": os.geteuid() == 0,
        "mps_control": mps_control(),
        "mps_running": mps_runs(),
        "nvcc": shutil.which("nvcc"),
    }
