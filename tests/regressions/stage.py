"""What the cases of the findings are made with: a mark that ties a case to its findings, and the scenes they play in."""

import functools
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
for folder in (ROOT / "scripts", ROOT / "tests" / "clients", ROOT / "tests" / "admission"):
    sys.path.insert(0, str(folder))

from harness import paths  # noqa: E402
from harness.scene import BOUND, Scene  # noqa: E402

PROGRAMS = HERE / "programs"
KERNELS = ROOT / "tests" / "simgpu" / "driver" / "src" / "kernels" / "simgpu.ptx"


class Case:
    """One case: the findings it keeps found, what it does, and the scene it is given."""

    def __init__(self, findings, function, scene, more):
        self.findings, self.function, self.scene, self.more = findings, function, scene, more

    @property
    def name(self):
        return f"{'+'.join(self.findings)} {self.function.__name__.replace('_', ' ')}"

    def play(self, folder, options):
        scene = self.scene(folder, options, None, **self.more)
        try:
            scene.open()
            return self.function(scene)
        finally:
            scene.close()


# All cases, whichever file they stand in, in the order in which they were read.
CASES = []


def finding(*findings, scene=Scene, **more):
    """Marks the case of these findings (`correctness-3`, `clients-F1`, `users-B2`). `scene`: what makes its scene of a folder, the run's options and a policy; `more`: arguments of it."""

    def mark(function):
        CASES.append(Case(findings, function, scene, more))
        return function

    return mark


@functools.cache
def test_programs():
    """The unit tests' programs of all packages, by package. Built as scripts/test builds them, so that in its run nothing is built anew."""
    command = ["cargo", "test", "--workspace", "--features", "simgpu-driver/cuda-runtime", "--lib", "--no-run", "--message-format", "json"]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    built = [line for line in map(json.loads, done.stdout.splitlines()) if line.get("executable") and "lib" in "".join(line["target"]["kind"])]
    return {Path(line["manifest_path"]).parent: line["executable"] for line in built}


def rust(package, *tests):
    """Plays tests of a package (named by its folder) by their full names; each must be there and pass. For what only a clock or a socket under the test's hand can show."""
    name = package.removeprefix("weft-")
    folder = next(folder for folder in (ROOT / name, ROOT / "broker" / name) if folder.is_dir())
    command = [test_programs()[folder], "--exact", *tests]
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0 and f"{len(tests)} passed" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]


def compiled(scene, name, *flags):
    """A C program of `programs`, built into the case's folder."""
    target = scene.folder / Path(name).stem
    command = ["cc", "-O1", "-o", target, PROGRAMS / name, f'-DKERNELS="{KERNELS}"', *flags, "-ldl", "-lpthread"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=BOUND, check=False)
    assert done.returncode == 0, done.stderr
    return target


__all__ = ["BOUND", "CASES", "HERE", "PROGRAMS", "ROOT", "Scene", "compiled", "finding", "paths", "rust"]
