# SPDX-License-Identifier: MIT OR Apache-2.0
"""The fetched library is a driver: it opens without a device, answers its version, and has no
device. NVML the same."""

import ctypes
import multiprocessing

import stage
from harness import elf
from stage import case

NO_DEVICE, DRIVER_NOT_LOADED = 100, 9


def asked(driver, answers):
    cuda, nvml = ctypes.CDLL(str(driver.cuda)), ctypes.CDLL(str(driver.nvml))
    version = ctypes.c_int()
    answers.put((cuda.cuDriverGetVersion(ctypes.byref(version)), version.value, cuda.cuInit(0), nvml.nvmlInit_v2()))


@case
def the_library_opens_without_a_device(scene):
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=asked, args=(scene.driver, answers))
    process.start()
    process.join(stage.BOUND)
    assert process.exitcode == 0, f"a process that opened the driver ended with {process.exitcode}"
    result, version, init, nvml = answers.get(timeout=stage.BOUND)
    assert (result, init, nvml) == (0, NO_DEVICE, DRIVER_NOT_LOADED), f"cuDriverGetVersion {result}, cuInit {init}, nvmlInit_v2 {nvml}: is there a GPU on this machine?"
    assert version // 1000 == 12, f"CUDA {version}: all three branches are of CUDA 12"
    functions = elf.Elf(scene.driver.cuda).exports()
    return f"driver {scene.driver.version}, CUDA {version // 1000}.{version % 1000 // 10}, {len(functions)} functions"
