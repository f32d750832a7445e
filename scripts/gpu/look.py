# SPDX-License-Identifier: MIT OR Apache-2.0
"""Examines the driver of this machine through its own interface and prints one JSON line.

A separate program, because a broken driver may hang or crash the process that opens it. It makes no
context, so it takes no memory of the device.
"""

import ctypes
import json
import sys
import uuid

# CUdevice_attribute, from the public driver API.
ATTRIBUTES = {
    "multiprocessors": 16,
    "compute_mode": 20,
    "major": 75,
    "minor": 76,
    "async_engines": 40,
    "stream_priorities": 78,
    "managed_memory": 83,
    "concurrent_managed": 89,
    "preemption": 90,
    "pageable_access": 88,
    "multicast": 132,
    # Contexts made on this device go to an MPS server (CUDA 12.4 and newer).
    "mps_enabled": 133,
}

# Private tables of the driver that CUDA's libraries are known to request, by identity. Calls that
# weft does not see would go through them.
TABLES = [
    "6bd5fb6c-5bf4-e74a-8987-d93912fd9df9",
    "a094798c-2e74-2e74-93f2-0800200c0a66",
    "42d85a81-23f6-cb47-8298-f6e78a3aecdc",
    "c693336e-1121-df11-a8c3-68f355d89593",
    "263e8860-7cd2-6143-92f6-bbd5006dfa7e",
    "d4082055-bde6-704b-8d34-ba123c66e1f2",
    "21318c60-9714-3248-8ca6-41ff7324c8f2",
    "6e163fbe-b958-444d-835c-e182aff1991e",
    # For the cache of compiled code: compilers request both, cuBLAS on sm_90 requests the second.
    "da9151d3-3ae6-cc41-a5c0-4f26d533e328",
    "1734dc26-800d-4745-8726-c0f1e7dd8bca",
    # Requested by cuSPARSELt.
    "cd3ea2c6-7076-db4b-882e-52ae6c2d86f7",
    "f8cff951-2146-8b4e-b9e2-fb469e7c0dd9",
]


def export_tables(cuda):
    """{identity: whether this driver has it}. A table is only requested; no function in it is
    called.
    """
    found = {}
    for name in TABLES:
        table = ctypes.c_void_p()
        identity = (ctypes.c_ubyte * 16).from_buffer_copy(uuid.UUID(name).bytes)
        found[name] = cuda.cuGetExportTable(ctypes.byref(table), identity) == 0 and bool(table.value)
    return found


def opened_from(name):
    """The path of a loaded library."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            if path and f"/{path}".rsplit("/", 1)[-1].startswith(name):
                return f"/{path}"
    return None


def look():
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"error": f"libcuda.so.1 cannot be opened: {error}"}
    found = {"library": opened_from("libcuda.so"), "simulated": hasattr(cuda, "simgpuKernelFunction")}
    if found["simulated"] and "--real" in sys.argv:
        return {**found, "error": f"{found['library']} is the simulated driver"}
    version = ctypes.c_int()
    if cuda.cuDriverGetVersion(ctypes.byref(version)) == 0:
        found["cuda"] = version.value
    code = cuda.cuInit(0)
    if code != 0:
        return {**found, "error": f"cuInit returned {code}"}
    count = ctypes.c_int()
    code = cuda.cuDeviceGetCount(ctypes.byref(count))
    if code != 0 or count.value == 0:
        return {**found, "error": f"the driver shows no device (code {code}, count {count.value})"}
    device = ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGetName(name, 256, device)
    memory = ctypes.c_size_t()
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    found.update(devices=count.value, name=name.value.decode(errors="replace").strip(), memory=memory.value)
    for key, number in ATTRIBUTES.items():
        value = ctypes.c_int()
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device) == 0:
            found[key] = value.value
    if hasattr(cuda, "cuGetExportTable"):
        found["export_tables"] = export_tables(cuda)
    return found


if __name__ == "__main__":
    json.dump(look(), sys.stdout)
    print(flush=True)
