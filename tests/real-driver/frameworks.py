# SPDX-License-Identifier: MIT OR Apache-2.0
"""Frameworks on a machine with a driver and no device: under weft each fails in the same words,
with the same exit code, as without it."""

import re

from fixtures import cases
from harness import paths
from stage import case

# A framework's first import on a busy machine takes this long, seconds.
BOUND = 240.0

TORCH = """
import torch
print(torch.cuda.is_available(), torch.cuda.device_count())
torch.zeros(1, device="cuda")
"""
CUPY = """
import cupy
try:
    print(cupy.cuda.runtime.driverGetVersion())
    print(cupy.cuda.runtime.getDeviceCount())
except Exception as error:
    print(type(error).__name__, error)
print((cupy.arange(4) * 2).sum())
"""
NUMBA = """
from numba import cuda
print(cuda.is_available())
cuda.to_device([1.0])
"""
CUDA_BINDINGS = """
from cuda.bindings import driver
print(driver.cuDriverGetVersion(), driver.cuDeviceGetCount(), driver.cuInit(0), driver.cuDeviceGetCount())
print(driver.cuGetErrorString(driver.CUresult.CUDA_ERROR_NO_DEVICE))
print(driver.cuCtxGetCurrent(), driver.cuMemAlloc(256))
import cuda.core
cuda.core.Device(0).set_current()
"""
TINYGRAD = """
from tinygrad import Tensor
print(Tensor([1.0, 2.0], device="CUDA").sum().item())
"""
TRITON = """
import triton
print(triton.runtime.driver.active.get_current_device())
"""
# The runtime and the BLAS library that a framework built for CUDA 12 brings.
RUNTIME_12 = """
import ctypes
runtime, blas = ctypes.CDLL("libcudart.so.12"), ctypes.CDLL("libcublas.so.12")
runtime.cudaGetErrorName.restype = runtime.cudaGetErrorString.restype = ctypes.c_char_p
number, memory = ctypes.c_int(-1), ctypes.c_void_p()
for call, *arguments in (
    (runtime.cudaRuntimeGetVersion, ctypes.byref(number)), (runtime.cudaDriverGetVersion, ctypes.byref(number)), (runtime.cudaGetDeviceCount, ctypes.byref(number)),
    (runtime.cudaSetDevice, 0), (runtime.cudaMalloc, ctypes.byref(memory), 256), (runtime.cudaFree, None), (runtime.cudaStreamCreate, ctypes.byref(memory)),
    (runtime.cudaDeviceSynchronize,), (runtime.cudaGetLastError,), (blas.cublasCreate_v2, ctypes.byref(memory)), (runtime.cudaGetLastError,),
):
    result = call(*arguments)
    print(call.__name__, result, number.value, runtime.cudaGetErrorName(result), runtime.cudaGetErrorString(result))
"""
CTRANSLATE2 = """
import ctranslate2
print(ctranslate2.get_cuda_device_count())
ctranslate2.StorageView.from_array(__import__("numpy").zeros(4, dtype="float32")).to_device(ctranslate2.Device.cuda)
"""
LLAMA_CPP = """
import cyllama.llama.llama_cpp as llama
llama.llama_backend_init()
llama.ggml_backend_load_all()
print(llama.ggml_backend_reg_names(), llama.ggml_backend_dev_count(), llama.llama_supports_gpu_offload())
"""
JAX = """
import jax
print(jax.devices("cpu"))
jax.devices("cuda")
"""
# (name, environment, program)
ALL = [
    ("torch", "torch", TORCH),
    ("cupy", "torch", CUPY),
    ("numba", "torch", NUMBA),
    ("cuda-bindings", "torch", CUDA_BINDINGS),
    ("tinygrad", "torch", TINYGRAD),
    ("triton", "torch", TRITON),
    ("cuda-12-runtime", "native", RUNTIME_12),
    ("ctranslate2", "native", CTRANSLATE2),
    ("llama.cpp", "native", LLAMA_CPP),
    ("jax", "jax", JAX),
    # As built for CUDA 12, which these drivers do not refuse for their age. Large environments,
    # made by hand: `scripts/setup torch-cuda12 jax-cuda12`.
    ("torch-cuda-12", "torch-cuda12", TORCH),
    ("jax-cuda-12", "jax-cuda12", JAX),
]

# Before each program: at its end it keeps its map of libraries, which shows whether it met the
# driver, and weft.
KEEP_MAPS = """
import atexit, os
atexit.register(lambda own=os.getpid(): os.getpid() == own and open(os.environ["KEEP_MAPS"], "w").write(open("/proc/self/maps").read()))
"""

# Differences between two runs of one program: addresses, process ids, the clock.
CHANGES = re.compile(r"0x[0-9a-f]+|\b(?:pid|process) \d+|\d\d:\d\d:\d\d[.\d]*|\d{4}-\d\d-\d\d")


def words(text):
    """Its output, without the differences between two runs, and without tracebacks' lines of
    files."""
    return [CHANGES.sub("*", line) for line in text.splitlines() if line.strip()]


def fails_alike(scene, name, venv, program):
    if not paths.python(venv).exists():
        raise cases.Skip(f"no .venv-{venv}: scripts/setup {venv}")
    source = scene.folder / "program.py"
    source.write_text(KEEP_MAPS + program)
    scene.broker.start()
    libraries = paths.nvidia_libraries(venv)
    said, mapped = {}, {}
    for way, weft in (("plain", False), ("weft", True)):
        maps = scene.folder / f"{way}.maps"
        more = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "KEEP_MAPS": str(maps)}
        job = scene.run(way, [paths.python(venv), source], weft=weft, libraries=libraries, bound=BOUND, more=more)
        mapped[way] = maps.read_text() if maps.exists() else ""
        said[way] = (job.process.returncode, words(job.stdout().decode(errors="replace")), words(job.stderr()))
    for what, plain, weft in zip(("exit code", "stdout", "stderr"), said["plain"], said["weft"]):
        assert plain == weft, f"{name}'s {what} differs:\n    without weft: {plain}\n    with it: {weft}"
    code, out, err = said["plain"]
    assert not any("ModuleNotFoundError" in line or "SyntaxError" in line for line in err), f"{name} did not come so far as the driver: {err[-1]}"
    assert paths.LIBWEFT.name in mapped["weft"] and paths.LIBWEFT.name not in mapped["plain"], f"{name}: the preload did not happen"
    real = str(scene.driver.cuda.resolve())
    # Some close the driver again if it has no device; weft keeps it.
    assert real in mapped["weft"] or real not in mapped["plain"], f"{name} meets another driver under weft: {real} is not mapped"
    return f"exit {code}, {'' if real in mapped['weft'] else 'never opens the driver, '}says: {(err or out)[-1][:140]}"


def of(name, venv, program):
    def one(scene):
        return fails_alike(scene, name, venv, program)

    one.__name__ = f"{name.replace('-', '_')}_says_the_same_as_without_weft"
    return one


for entry in ALL:
    case(of(*entry), ends=True)
