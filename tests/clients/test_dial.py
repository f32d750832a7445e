# SPDX-License-Identifier: MIT OR Apache-2.0
"""The slowdown that a foreground job allows, and the jobs' options for the device.

Options and variables, up to the broker's own figures.
"""

import json

from fixtures.scene import BOUND, CLIENT, says, weft
from harness import jobs


def allowed(scene, job):
    row = scene.row(job)
    return row["slowdown_allowed"], row["slo_ns"]


def comes_to(scene, job, wanted):
    assert jobs.wait_until(lambda: allowed(scene, job) == wanted, BOUND), f"{allowed(scene, job)}, not {wanted}"


def test_a_foreground_job_s_budget_is_told_and_changed(scene):
    scene.broker.arguments += ["--slowdown", "3%"]
    scene.broker.start()
    service = scene.companion("service", priority=0, more={"WEFT_SLOWDOWN": "2%", "WEFT_SLO": "1.5s"})
    batch = scene.companion("batch", priority=7)
    comes_to(scene, service, (0.02, 1_500_000_000))
    comes_to(scene, batch, (0.03, None))
    assert jobs.wait_until(lambda: scene.row(service)["mode"] == "foreground", BOUND), scene.row(service)
    number = scene.row(service)["client"]
    page = weft(scene, "status").stdout
    assert f"client {number}: may be slowed down by 2 %, within 1.50 s" in page, page
    assert page.count("may be slowed down") == 1, "the background job's waits"
    page = weft(scene, "top", "-n", 1, "--interval", 0.1, more={"COLUMNS": "250"}).stdout
    rows = [line for line in page.splitlines() if not line.startswith("!")]
    row = next(line for line in rows if " foreground " in line)
    assert "may lose" in page and " 2 % " in row, page
    assert weft(scene, "set", "--pid", service.pid, "--slowdown", "0").stderr == ""
    comes_to(scene, service, (0.0, 1_500_000_000))
    assert weft(scene, "set", "--client", number, "--slo", "50ms", "--slowdown", "0.05").stderr == ""
    comes_to(scene, service, (0.05, 50_000_000))
    assert weft(scene, "set", "--pid", batch.pid, "--at-least", "30%").stderr == ""
    assert jobs.wait_until(lambda: scene.row(batch)["at_least"] == 0.3, BOUND), scene.row(batch)
    assert "is to have at least 30 % of the GPU's time" in weft(scene, "status").stdout
    assert "client 99 is not attached" in weft(scene, "set", "--client", 99, "--slo", "50ms").stderr
    # The allowed slowdown changes no role.
    assert (scene.row(service)["mode"], scene.row(batch)["mode"]) == ("foreground", "background")
    scene.progresses(service)
    scene.progresses(batch)
    # The next broker gets the new values from the jobs.
    assert weft(scene, "set", "--pid", batch.pid, "--priority", 8).stderr == ""
    for _ in range(2):
        scene.broker.job.kill()
        scene.broker.start()
        scene.attached(service, batch)
        comes_to(scene, service, (0.05, 50_000_000))
        assert (scene.row(service)["priority"], scene.row(batch)["priority"]) == (0, 8)
        assert scene.row(batch)["at_least"] == 0.3
    scene.finish_companions(service, batch)


def test_a_budget_that_is_said_wrongly_is_told_and_the_job_runs(scene):
    scene.broker.start()
    job = scene.companion("job", more={"WEFT_SLOWDOWN": "2", "WEFT_SLO": "50", "WEFT_AT_LEAST": "much"})
    comes_to(scene, job, (0.01, None))
    says(job, "WEFT_SLOWDOWN", "write 2%", "ignored")
    says(job, "WEFT_SLO", "write 50ms", "ignored")
    says(job, "WEFT_AT_LEAST", "write 30%", "ignored")
    scene.finish_companions(job)
    for name, value in (("WEFT_SLOWDOWN", "2"), ("WEFT_SLO", "50"), ("WEFT_AT_LEAST", "-1"), ("WEFT_DEVICE_PRIORITIES", "maybe")):
        done = weft(scene, "run", "--", "true", more={name: value})
        assert done.returncode == 2 and name in done.stderr and done.stderr.count("\n") == 1, done


def test_a_job_under_weft_run_tells_the_device_and_computes_the_same(scene):
    """The checking client: a result that weft, or the driver, changed is wrong."""
    scene.broker.start()
    for priority, share, wanted in ((0, [], []), (7, ["--sm-share", "50%"], ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50", "CUDA_MPS_CLIENT_PRIORITY=1"])):
        result = scene.folder / f"checked{priority}.json"
        shell = f"env | grep ^CUDA_MPS_ | sort; exec {CLIENT} {result}"
        done = weft(scene, "run", "-p", priority, *share, "--", "sh", "-c", shell)
        assert done.returncode == 0, done
        assert done.stdout.splitlines()[: len(wanted)] == wanted and done.stdout.count("CUDA_MPS_") == len(wanted), done.stdout
        assert json.loads(result.read_text()), result
