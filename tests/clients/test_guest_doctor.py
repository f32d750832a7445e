# SPDX-License-Identifier: MIT OR Apache-2.0
"""`weft doctor` of one job: does weft catch this command, is this process under weft?"""

import json
import sys

from fixtures.scene import BOUND, weft
from guest_stage import PYTHON
from harness import jobs, paths

LAUNCHES = "from plain import Gpu; print(Gpu().work(50))"
# It runs for longer than any wait.
GOES_ON = "import time\nfrom plain import Gpu\ng = Gpu()\nwhile True: g.work(5); time.sleep(0.01)"


def rows(scene, *arguments, code=None, more=None):
    """The report's rows by name, with verdict and text."""
    own = {**PYTHON, **(more or {})}
    done = weft(scene, "doctor", "--json", *arguments, bound=3 * BOUND, more=own)
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["healthy"] else 1), done.stderr
    assert code is None or done.returncode == code, report
    found = {row["what"]: row for row in report["rows"]}
    told = {what: f"{row['found']} -> {row['advice']}" for what, row in found.items()}
    return {what: (row["verdict"], told[what]) for what, row in found.items()}


def test_a_command_that_weft_catches_is_run_and_seen(scene):
    scene.broker.start()
    found = rows(scene, "--", sys.executable, "-c", LAUNCHES, code=0)
    assert found["command"][0] == "ok", found
    assert found["launches"][0] == "ok" and " seen, from 1 of its " in found["launches"][1], found
    # A service never ends by itself: it is ended, and no process of it is left.
    found = rows(scene, "--", sys.executable, "-c", GOES_ON, code=0)
    assert "was ended" in found["command"][1] and found["launches"][0] == "ok", found
    assert jobs.wait_until(lambda: not scene.status()["clients"], BOUND), scene.status()["clients"]


def test_why_a_command_is_not_caught_is_said(scene):
    scene.broker.start()
    found = rows(scene, "--", "/bin/true", code=1)
    assert found["attached"][0] == "fail" and "CUDA" in found["attached"][1], found
    found = rows(scene, "--", scene.folder / "nowhere", code=1)
    assert found["command"][0] == "fail" and "cannot start" in found["command"][1], found
    # Something between takes the preload away: the driver is opened, past weft.
    clean = ["env", "-u", "LD_PRELOAD", "-u", "LD_LIBRARY_PATH"]
    past = f"import ctypes, time; ctypes.CDLL({str(paths.SIMGPU_CUDA)!r}); time.sleep(2)"
    found = rows(scene, "--", *clean, sys.executable, "-c", past, code=1)
    assert found["command, past weft"][0] == "fail" and found["attached"][0] == "fail", found
    breaks = rows(scene, "--", sys.executable, "-c", "import sys; sys.exit('out of luck')", code=1)
    assert breaks["command"][0] == "fail" and "out of luck" in breaks["command"][1], breaks


def test_a_process_is_told_from_one_that_is_not_under_weft(scene):
    scene.broker.start()
    under = scene.job([sys.executable, "-c", GOES_ON], "under", more=PYTHON)
    scene.attached(under)
    found = rows(scene, "--pid", under.pid, code=0)
    assert found["libweft"][0] == found["driver"][0] == found["broker"][0] == "ok", found
    assert "priority 5" in found["broker"][1], found
    elsewhere = rows(scene, "--pid", under.pid, code=1, more={"WEFT_SOCKET": "/tmp/no/such.sock"})
    assert "the process looks for its broker at" in elsewhere["broker"][1], elsewhere
    plain = {**jobs.clean_environment(), **scene.device.environment(), **PYTHON}
    command = [sys.executable, "-c", GOES_ON]
    plainly = jobs.Job(command, environment=plain, folder=scene.folder, name="plainly")
    scene.jobs.append(plainly)
    found = rows(scene, "--pid", plainly.pid, code=1)
    assert found["libweft"][0] == "fail" and "weft run" in found["libweft"][1], found
    found = rows(scene, "--pid", 2**22 + 5, code=1)
    assert list(found) == ["process"] and "there is no process" in found["process"][1], found
