# SPDX-License-Identifier: MIT OR Apache-2.0
"""Does weft know the layout of kernels' parameters when the driver does not report it, as before
CUDA 12.4?

Each program (real PyTorch, Triton, numba) runs twice in stage 1 on managed memory: on the simulated
driver, and on a copy of it that has no `cuFuncGetParamInfo` and no `cuKernelGetParamInfo`: other
names stand in their place, so that neither `dlsym` nor `cuGetProcAddress` finds them. Checked: the
second run has the same kernels with the same parameters, read from their images (fat binaries,
compressed ones too, cubins, PTX); and its profile knows the working sets of the same number of
kernels.
"""

import json
import re
import shutil
import subprocess

import pytest
from harness import jobs, paths

PROGRAMS = paths.CLIENTS / "programs"
NAMES = ["torch_train", "torch_conv", "triton_kernel", "numba_jit"]
# Names of the same length, at the same place of the sorted names.
LACKING = {b"cuFuncGetParamInfo": b"cuFuncGetParamJnfo", b"cuKernelGetParamInfo": b"cuKernelGetParamJnfo"}
TOLD = re.compile(r"parameters of (.*) by (the driver|its image): (.*)$", re.MULTILINE)
# A run takes 5 s on two idle cores; this leaves room for busy ones and still ends.
BOUND = 150.0


def older_driver(folder):
    """A copy of the simulated driver that lacks the calls; the folder that it lies in."""
    driver = paths.SIMGPU_CUDA.read_bytes()
    for name, other in LACKING.items():
        assert name in driver, f"{paths.SIMGPU_CUDA} has no {name.decode()}"
        driver = driver.replace(name, other)
    place = folder / "older"
    place.mkdir()
    (place / "libcuda.so.1").write_bytes(driver)
    (place / "libcuda.so").symlink_to("libcuda.so.1")
    shutil.copy(paths.SIMGPU_LIB / "libnvidia-ml.so.1", place)
    return place


def run(folder, name, driver):
    """One run of a program on the driver in a folder. Returns the reports of its kernels'
    parameters, and the number of kernels whose working sets its profile knows."""
    folder.mkdir()
    device = jobs.Device(folder)
    caches = paths.TARGET / "client-caches"
    names = ["TRITON_CACHE_DIR", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME"]
    with jobs.Broker(folder, device, trace=False) as broker:
        variables = broker.variables()
        environment = {
            **jobs.clean_environment(),
            **{name: str(caches / name.lower().removesuffix("_dir")) for name in names},
            **device.environment(),
            **jobs.preload(variables, profile=name, mode="profile"),
            "LD_LIBRARY_PATH": str(driver),
            "TRITON_LIBCUDA_PATH": str(driver),
            "WEFT_CUDA_LIBRARY": str(driver / "libcuda.so.1"),
            "WEFT_BACKING": "managed",
            "WEFT_LOG": "debug",
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
        }
        program = [paths.python("torch"), PROGRAMS / f"{name}.py", folder / "result.json"]
        job = jobs.Job(program, environment=environment, folder=folder, name="job", cwd=folder)
        code = job.wait(BOUND)
        assert code == 0, job.explain()
    # The broker writes a profile after its job has ended. A broker that has stopped has written it.
    shown = subprocess.run(
        [paths.WEFT, "profile", "show", name, "--json"], env={**jobs.clean_environment(), **variables}, capture_output=True, text=True, timeout=BOUND, check=False
    )
    assert shown.returncode == 0, f"{shown.stderr}\n{job.explain()}"
    known = json.loads(shown.stdout)["working_sets"]["kernels"]
    assert device.wait_gone(), "the device is still there"
    return TOLD.findall(job.stderr()), known


@pytest.mark.parametrize("name", NAMES)
def test_layouts_of_images_are_those_that_the_driver_tells(folder, name, record_property):
    if not paths.python("torch").exists():
        pytest.skip("no .venv-torch: scripts/setup torch")
    older = older_driver(folder)
    said, known = run(folder / "new", name, paths.SIMGPU_LIB)
    read, known_too = run(folder / "old", name, older)
    layouts = {(symbol, layout) for symbol, teller, layout in said if layout and teller == "the driver"}
    assert layouts, "the driver told no parameters"
    assert not any(teller == "the driver" for _, teller, _ in read), "the older driver told parameters"
    found = {(symbol, layout) for symbol, _, layout in read if layout}
    assert found == layouts, f"told by the driver alone: {sorted(layouts - found)[:3]}; by images alone: {sorted(found - layouts)[:3]}"
    assert known and known_too == known, f"working sets of {known_too} kernels, and of {known} where the driver tells parameters"
    record_property("told", f"{len(layouts)} layouts, {known} kernels with working sets")
