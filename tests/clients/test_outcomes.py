# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reports about each job: while it runs, at its end, and afterwards from disk.

The jobs are PyTorch's, a service and a training job, each under `weft run` on a simulated GPU of
the case's own.
"""

import json

import pytest
from fixtures.scene import BOUND, weft
from harness import jobs, paths

PROGRAM = paths.ROOT / "tests" / "clients" / "programs" / "torch_service.py"
# Requests of the service that are judged before anything is read: eight and more are controls.
WAITS = 40


@pytest.fixture(autouse=True)
def torch_is_there():
    if not paths.python("torch").exists():
        pytest.skip("no PyTorch: scripts/setup torch")


def run(scene, name, role, *options, more=None):
    """The job under `weft run`, once it is under way. Its outcome is printed at its end."""
    ready = scene.folder / f"{name}.ready"
    program = [paths.python("torch"), PROGRAM, role, scene.running, ready]
    words = [paths.WEFT, "run", *options, "--", *program]
    environment = {
        **jobs.clean_environment(),
        **scene.device.environment(),
        **scene.broker.variables(),
        "OMP_NUM_THREADS": "1",
        "WEFT_OUTCOME": "",
        **(more or {}),
    }
    words = [str(word) for word in words]
    job = jobs.Job(words, environment=environment, folder=scene.folder, name=name)
    scene.jobs.append(job)
    begun = jobs.wait_until(lambda: ready.exists() or not job.running(), 2 * BOUND)
    assert begun, f"{name} did not get ready\n{job.explain()}"
    assert job.running(), f"{name} ended\n{job.explain()}"
    return job


def end(scene, *some, code=0):
    scene.running.unlink()
    for job in some:
        scene.finish(job, code)
        assert int(job.stdout()) >= 20, f"its stdout is not its own: {job.stdout()[:200]}"


def outcome(scene, job):
    return (scene.row(job) or {}).get("outcome") or {}


def end_lines(job):
    mine = f"weft[{job.pid}]: "
    return [line for line in job.stderr().splitlines() if line.startswith(mine)]


def history(scene, *options):
    done = weft(scene, "history", "--json", *options)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["schema"] == 1, shown
    return shown["jobs"]


def kinds(scene):
    return {warning["kind"] for warning in scene.status()["warnings"]}


def test_a_service_and_a_training_job_are_told_what_they_lost_and_won(scene):
    scene.broker.start()
    service = run(scene, "service", "service", "--priority", "0", more={"ENDS_WITH": "3"})
    training = run(scene, "training", "training", "--priority", "5")

    def judged():
        waits = (outcome(scene, service).get("lost") or {"waits": 0})["waits"]
        return waits >= WAITS and outcome(scene, training).get("cost") is not None

    seen = jobs.wait_until(judged, BOUND, step=0.5)
    assert seen, f"{scene.row(service)}\n{scene.row(training)}"
    lost, won = outcome(scene, service), outcome(scene, training)
    assert lost["foreground_s"] > 0 and lost["background_s"] == 0, lost
    assert lost["won"] is None and lost["cost"] is None, lost
    assert won["background_s"] > 0 and won["foreground_s"] == 0 and won["lost"] is None, won
    assert 0 < won["won"]["over_exclusive_ns"] <= won["gpu_ns"], won
    assert won["won"]["plain_ns"] > 0 and 0 < won["won"]["of_plain"] <= 1, won
    # Neither has a profile, and there is no MPS on the simulated GPU.
    told = kinds(scene)
    assert {"no_profile", "no_mps"} <= told and "same_priority" not in told, told
    page = weft(scene, "status").stdout
    for words in ("! torch_service.py: ", "as the foreground job", "over exclusive use"):
        assert words in page, page
    page = weft(scene, "top", "-n", "1", "-i", "0.5", more={"COLUMNS": "250"}).stdout
    assert "! torch_service.py: " in page and "of plain" in page, page

    scene.running.unlink()
    roles = ((service, 3, "as the foreground job"), (training, 0, "in the background"))
    for job, code, words in roles:
        scene.finish(job, code)
        assert int(job.stdout()) >= 20, f"its stdout is not its own: {job.stdout()[:200]}"
        lines = end_lines(job)
        assert lines and "ran" in lines[0] and words in lines[0], job.explain()
        assert all("warning: " in line for line in lines[1:]), job.explain()
    assert any("no profile" in line for line in end_lines(service)[1:]), service.explain()

    # After the broker, from disk.
    scene.broker.stop()
    every = history(scene)
    rows = {row["pid"]: row for row in every}
    assert {service.pid, training.pid} <= set(rows), rows
    kept = rows[service.pid]
    assert kept["priority"] == 0 and kept["ending"] == "goodbye", kept
    assert str(PROGRAM) in kept["command"], kept
    assert kept["outcome"]["lost"]["waits"] >= WAITS, kept
    later = rows[training.pid]["outcome"]
    assert later["won"]["over_exclusive_ns"] >= won["won"]["over_exclusive_ns"], later
    # The training job was the only companion of the service: the service's loss is its cost.
    cost, loss = later["cost"]["ns"], kept["outcome"]["lost"]["ns"]
    assert abs(cost - loss) <= max(abs(loss), abs(cost)) / 10 + 1, (later, kept)
    assert history(scene, "--last", "1") == every[:1]
    assert history(scene, "--since", "2000-01-01") == every
    assert history(scene, "--since", "0s") == []
    page = weft(scene, "history", more={"COLUMNS": "250"}).stdout
    assert "torch_service.py service" in page and "! process" in page, page


def test_a_job_says_nothing_at_its_end_where_it_is_told_not_to(scene):
    scene.broker.start()
    quiet = run(scene, "quiet", "service", "--quiet")
    off = run(scene, "off", "service", more={"WEFT_OUTCOME": "off"})
    end(scene, quiet, off)
    for job in (quiet, off):
        assert end_lines(job) == [], job.explain()
    assert jobs.wait_until(lambda: len(history(scene)) == 2, BOUND), history(scene)


def test_a_killed_job_and_a_gone_broker_cost_the_line_alone(scene):
    scene.broker.start()
    killed = run(scene, "killed", "service")
    beside = run(scene, "beside", "service")
    assert "same_priority" in kinds(scene), kinds(scene)
    killed.kill()

    def vanished():
        return [row["pid"] for row in history(scene) if row["ending"] == "vanished"]

    assert jobs.wait_until(lambda: vanished() == [killed.pid], BOUND), history(scene)
    assert end_lines(killed) == [], killed.explain()
    scene.broker.kill()
    end(scene, beside)
    assert not any("ran " in line for line in end_lines(beside)), beside.explain()


def test_a_damaged_history_is_set_aside(scene):
    state = scene.folder / "state"
    state.mkdir()
    (state / "history.sqlite").write_bytes(b"no database" * 1000)
    scene.broker.start()
    job = run(scene, "job", "service")
    end(scene, job)
    there = jobs.wait_until(lambda: [row["pid"] for row in history(scene)] == [job.pid], BOUND)
    assert there, scene.broker.job.explain()
    aside = state / "history.sqlite.damaged"
    assert aside.read_bytes().startswith(b"no database"), list(state.iterdir())
