# SPDX-License-Identifier: MIT OR Apache-2.0
"""`weft check` and `weft serve` with jobs on the simulated GPU."""

import json
import subprocess
import urllib.error
import urllib.request

import pytest
from fixtures.scene import BOUND, weft
from harness import jobs, paths

NAME = "<script>alert(1)</script>"


def check(scene, **more):
    done = weft(scene, "check", "--timeout", f"{BOUND:.0f}s", more=more)
    assert len(done.stdout.splitlines()) == 1 and not done.stderr, done
    return done.returncode, done.stdout


def test_check_is_content_until_a_job_lacks_its_protection(scene):
    scene.broker.start()
    scene.companion("job")
    well = (0, f"ok: broker {scene.broker.job.pid} answers, 1 job, interception works\n")
    assert check(scene) == well
    # It does not initialise the driver, which fails without a device.
    none = {"CUDA_VISIBLE_DEVICES": ""}
    assert weft(scene, "doctor", more=none).returncode == 1
    assert check(scene, **none) == well
    # A library that is not weft's.
    code, line = check(scene, WEFT_LIBRARY=str(paths.SIMGPU_LIB / "libnvidia-ml.so.1"))
    assert code == 1 and line.startswith("failed: interception: "), line
    (scene.broker.profiles / "other.profile").write_text("no profile")
    scene.companion("service", priority=0, profile="other")

    def warned():
        code, line = check(scene)
        return code == 3 and line.startswith("trouble: weft-test-companion: ") and "is not a weft profile" in line

    assert jobs.wait_until(warned, BOUND, step=0.2), check(scene)


@pytest.fixture
def served(scene):
    scene.broker.start()
    environment = {**scene.broker.environment(), **scene.device.environment()}
    words = [str(paths.WEFT), "serve", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().split()[0]
        finally:
            process.terminate()


def page(address, path, **headers):
    request = urllib.request.Request(address + path, headers=headers)
    with urllib.request.urlopen(request, timeout=BOUND) as answer:
        return answer.read().decode()


def test_a_browser_sees_a_jobs_work_and_no_other_site_does(scene, served):
    job = scene.companion("job", more={"WEFT_NAME": NAME})
    scene.attached(job)

    def rate():
        # On a busy machine a broker may answer late: the line then has `gone` in place of `jobs`.
        board = json.loads(page(served, "top.json"))
        return next((row["launches_per_s"] for row in board.get("jobs", [])), 0)

    assert jobs.wait_until(lambda: rate() > 0, BOUND, step=1), job.explain()
    assert jobs.wait_until(lambda: "1 job, broker" in page(served, ""), BOUND, step=1)
    live = page(served, "")
    assert f'<a href="/report/{job.pid}">' in live, live
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in live and NAME not in live, live
    with pytest.raises(urllib.error.HTTPError, match="421"):
        page(served, "", Host="evil.example")
    scene.finish_companions(job)
    assert jobs.wait_until(lambda: f"/report/{job.pid}" in page(served, "history"), BOUND, step=0.2)
    report = page(served, f"report/{job.pid}")
    assert "<h3>Timeline</h3>" in report and NAME not in report, report
