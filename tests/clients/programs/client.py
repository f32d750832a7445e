"""What every client program shares: it runs a body and writes the result as one JSON line to the file named first on the
command line.

The programs themselves are ordinary CUDA programs: they know nothing of weft nor of the simulated GPU.
"""

import json
import os
import sys


def main(body):
    result = body() or {}
    path = sys.argv[1]
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(json.dumps({"ok": True, **result}) + "\n")
    os.replace(path + ".new", path)
    print(f"{os.path.basename(sys.argv[0])}: done", flush=True)
