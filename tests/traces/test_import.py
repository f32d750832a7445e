# SPDX-License-Identifier: MIT OR Apache-2.0
"""Files of real GPUs' profilers: each is imported, and its trace, played without
other jobs, takes about the time of the file.

The files are not in this repository. `WEFT_TRACES` names their folder; else a sibling folder
`shared/data/traces` is used. Files NAME-00, NAME-01... are steps of one program.
"""

import collections
import json
import os
import subprocess
from pathlib import Path

import pytest
from harness import paths

FOLDER = Path(os.environ.get("WEFT_TRACES", paths.ROOT.parent / "shared" / "data" / "traces")) / "source"
# Largest differences: of the time of all steps, of the busy share, of the idle time.
STEP, BUSY, GAPS = 0.05, 0.05, 0.10
# Kernels that ran at the same time, some with waits of their own, are beyond a trace.
MAY_DIFFER = 1


def imported(name, files, folder):
    """The report of an import without options."""
    command = [paths.WEFT, "trace", "import", "--json", *files, folder / f"{name}.trace"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{name}: {done.stderr}"
    shown = subprocess.run([paths.WEFT, "trace", "show", folder / f"{name}.trace"], capture_output=True, check=False)
    assert shown.returncode == 0, f"{name}: {shown.stderr}"
    return json.loads(done.stdout)["report"]


def test_traces_of_real_gpus_are_near_their_files(tmp_path, record_property):
    if not FOLDER.is_dir():
        pytest.skip(f"no folder {FOLDER}: set WEFT_TRACES")
    programs = collections.defaultdict(list)
    for file in sorted(FOLDER.iterdir()):
        programs[file.name.split(".")[0].split("-")[0]].append(file)
    assert programs
    far = []
    for name, files in programs.items():
        report = imported(name, files, tmp_path)
        near = report["comparison"]
        assert report["steps"] > 0, name
        if (
            abs(near["step_ratio"] - 1) > STEP
            or abs(near["busy_difference"]) > BUSY
            or abs(near["gap_ratio"] - 1) > GAPS
        ):
            far.append(f"{name}: {near}")
    assert len(far) <= MAY_DIFFER, far
    record_property("told", f"{len(programs) - len(far)} of {len(programs)} near")
