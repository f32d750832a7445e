"""What every client program shares: it runs a body, writes the result as one JSON line to the file named first on the
command line, and, when told to, stays until its runner has looked at the counters.

The programs themselves are ordinary CUDA programs: they know nothing of weft nor of the simulated GPU.
"""

import json
import os
import sys
import time

# A runner that died must not leave a client behind.
LONGEST_HOLD_S = 60.0


def main(body):
    result = body() or {}
    path = sys.argv[1]
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(json.dumps({"ok": True, **result}) + "\n")
    os.replace(path + ".new", path)
    print(f"{os.path.basename(sys.argv[0])}: done", flush=True)
    hold = os.environ.get("CLIENT_HOLD")
    end = time.monotonic() + LONGEST_HOLD_S
    while hold and os.path.exists(hold) and time.monotonic() < end:
        time.sleep(0.01)
