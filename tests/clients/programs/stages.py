# SPDX-License-Identifier: MIT OR Apache-2.0
"""Points of a client program at which another program may hold it.

With CLIENT_STAGES set to a folder, `reached` makes a file there and waits until the file is gone.
Without the variable it does nothing.
"""

import os
import time
from pathlib import Path

# Seconds that a program waits at a point: the other program may have died.
LONGEST_S = 300


def reached(stage):
    folder = os.environ.get("CLIENT_STAGES")
    if not folder:
        return
    file = Path(folder) / stage
    file.touch()
    end = time.monotonic() + LONGEST_S
    while file.exists() and time.monotonic() < end:
        time.sleep(0.02)
