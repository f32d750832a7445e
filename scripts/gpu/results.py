# SPDX-License-Identifier: MIT OR Apache-2.0
"""Result files: JSON lines, one fact each. A line is written as soon as its fact is known; it is
complete even if the writer is killed in the next moment.

Kinds of line, each with `phase` and `at` (seconds since the run began):

  run     first line: which GPU, whether simulated, commit, driver, packages, the planned phases and
          their time, which lease
  value   a measured figure: name, value, unit, n, p10, p90, how; few if there were too few requests
          for its tail
  case    one tried case: name, verdict (ok, failed, skipped, left out), why, the end of its stderr
  fact    any other useful data: name, data
  phase   a phase ended: verdict (ok, failed, left out), seconds, why, causes of its failures
  end     last line: the run came to its end

Facts of the machine and the warm-up come first, under the phase `facts`. The run does not count it
as a phase.
"""

import json
import os
import time
from pathlib import Path

OK, FAILED, SKIPPED, LEFT_OUT = "ok", "failed", "skipped", "left out"

# Lines of stderr kept with a failure, and bytes of each.
TAIL_LINES, TAIL_BYTES = 25, 400


def tail(text, lines=TAIL_LINES):
    """The end of an output, for a result line."""
    return [line[:TAIL_BYTES] for line in text.splitlines()[-lines:]]


class Writer:
    """Appends to one file; several processes may each have a writer for the same file."""

    def __init__(self, path, began, phase=None):
        self.path, self.began, self.phase = Path(path), began, phase
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.mend()

    def mend(self):
        """Ends a line that a killed writer left unfinished; otherwise the next line would be
        appended to it.
        """
        size = os.fstat(self.file).st_size
        if size:
            with open(self.path, "rb") as reader:
                reader.seek(size - 1)
                if reader.read(1) != b"\n":
                    os.write(self.file, b"\n")

    def write(self, kind, **fields):
        line = {"kind": kind, "at": round(time.time() - self.began, 3)}
        if self.phase:
            line["phase"] = self.phase
        line.update({key: value for key, value in fields.items() if value is not None})
        os.write(self.file, (json.dumps(line, default=str) + "\n").encode())
        os.fsync(self.file)
        return line

    def close(self):
        os.close(self.file)


def read(path):
    """All complete lines of a result file."""
    lines = []
    for line in Path(path).read_text(errors="replace").splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and "kind" in value:
            lines.append(value)
    return lines
