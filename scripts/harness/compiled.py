"""C programs for cases, built where they are used."""

import subprocess
from pathlib import Path

from . import paths

# The kernels that such a program may load.
KERNELS = paths.ROOT / "tests" / "simgpu" / "driver" / "src" / "kernels" / "simgpu.ptx"
# Bound of a compiler, s. It takes a second on an idle machine.
BOUND_S = 60.0


def program(folder, source, *flags):
    """Builds one source file in a case's folder: a program, or a library if `flags` request one."""
    target = folder / Path(source).stem
    kernels = f'-DKERNELS="{KERNELS}"'
    command = ["cc", "-O1", "-o", target, source, kernels, *flags, "-ldl", "-lpthread"]
    command = [str(part) for part in command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert done.returncode == 0, done.stderr
    return target
