# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes the data of weft's library to the folder OBSERVE_FOLDER at the end of a Python program.
scripts/gpu-suite puts it on PYTHONPATH.

It calls no function of the driver: weft_counter, weft_text and weft_called read weft's own tables.
"""

import atexit
import ctypes
import json
import os

# Most names of functions that were handed out.
ROOM = 1 << 16


def text(library, what):
    buffer = ctypes.create_string_buffer(ROOM)
    library.weft_text.restype = ctypes.c_size_t
    library.weft_text(what, buffer, ctypes.c_size_t(ROOM))
    return buffer.value.decode(errors="replace")


def write(folder):
    # Libraries of this process, including the preload; nothing is loaded here.
    library = ctypes.CDLL(None)
    if not hasattr(library, "weft_counter"):
        return
    library.weft_counter.restype = ctypes.c_int64
    names = ("bound", "lookups", "unknown", "opened", "troubles")
    seen = {name: library.weft_counter(name.encode()) for name in names}
    if seen["opened"] != 1:
        return
    seen["driver"] = text(library, b"driver")
    seen["unknown_names"] = text(library, b"unknown").split()
    seen["tables"] = text(library, b"tables").splitlines()
    path = os.path.join(folder, f"{os.getpid()}.json")
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(seen, file)
    os.replace(path + ".new", path)


def quietly(folder):
    try:
        write(folder)
    except Exception:  # noqa: BLE001  the observed program must not fail
        pass


if os.environ.get("OBSERVE_FOLDER"):
    atexit.register(quietly, os.environ["OBSERVE_FOLDER"])
