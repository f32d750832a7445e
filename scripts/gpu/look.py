"""Looks at the driver of this machine through its own interface and prints one JSON line.

A program of its own, because a broken driver may hang or crash who opens it. It makes no context, so it takes no memory of the device.
"""

import ctypes
import json
import sys

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
        return {**found, "error": f"cuInit says {code}"}
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
    return found


if __name__ == "__main__":
    json.dump(look(), sys.stdout)
    print(flush=True)
