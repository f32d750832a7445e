"""Put on PYTHONPATH by scripts/gpu-suite: at a Python program's end, writes what weft's library saw in it to the folder OBSERVE_FOLDER.

It calls nothing of the driver: weft_counter, weft_text and weft_called read weft's own tables.
"""

import atexit
import ctypes
import json
import os

# Names of functions that were handed out, most.
ROOM = 1 << 16


def text(library, what):
    buffer = ctypes.create_string_buffer(ROOM)
    library.weft_text.restype = ctypes.c_size_t
    library.weft_text(what, buffer, ctypes.c_size_t(ROOM))
    return buffer.value.decode(errors="replace")


def write(folder):
    # What the preload put into this process; nothing is loaded here.
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
    except Exception:  # noqa: BLE001  an observer never fails the observed
        pass


if os.environ.get("OBSERVE_FOLDER"):
    atexit.register(quietly, os.environ["OBSERVE_FOLDER"])
