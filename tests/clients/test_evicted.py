# SPDX-License-Identifier: MIT OR Apache-2.0
"""PyTorch with movable memory: evicted and resumed in the middle of its steps, and while idle.

  pytest tests/clients/test_evicted.py

Its tensors have known contents in each step (programs/torch_moved.py), which it compares at the
end. The case fails if a move loses a byte, or if a step runs while memory is away. A model server
(programs/torch_idle.py) has the same answers before its memory left and after. Other kinds of jobs
move in the client matrix (test_matrix.py, `moved`).
"""

import json
import random
import time

import pytest
from fixtures.scene import BOUND, missing, weft
from harness import jobs, paths

pytestmark = pytest.mark.skipif(not paths.python("torch").exists(), reason="no .venv-torch: scripts/setup torch")
ROUNDS = 5


# PyTorch's own allocator, and the driver's stream-ordered one.
@pytest.mark.parametrize("allocator", ["native", "cudaMallocAsync"])
def test_torch_is_moved_in_the_middle_of_its_steps(scene, allocator):
    assert missing() is None, missing()
    scene.broker.start()
    ready, result = scene.folder / "ready", scene.folder / "torch.json"
    variables = {"WEFT_BACKING": "movable", "MOVED_READY": str(ready), "MOVED_RUNNING": str(scene.running), "PYTORCH_CUDA_ALLOC_CONF": f"backend:{allocator}"}
    job = scene.job([paths.python("torch"), paths.CLIENTS / "programs" / "torch_moved.py", result], "torch", more=variables)
    assert jobs.wait_until(lambda: ready.exists() or not job.running(), BOUND) and job.running(), job.explain()
    chance = random.Random(4711)
    for _ in range(ROUNDS):
        time.sleep(chance.uniform(0.0, 0.3))
        assert (gone := weft(scene, "pause", "--evict", job.pid)).returncode == 0, gone
        row = scene.row(job)
        assert row["eviction"]["state"] == "evicted" and row["eviction"]["bytes"] >= 76 << 20, row
        assert (back := weft(scene, "resume", job.pid)).returncode == 0, back
        scene.progresses(job)
    scene.running.unlink()
    scene.finish(job)
    assert json.loads(result.read_text())["steps"], job.explain()


def test_an_idle_model_server_has_the_same_answers_after_its_memory_left(scene):
    assert missing() is None, missing()
    scene.broker.start()
    ready, result = scene.folder / "ready", scene.folder / "torch.json"
    variables = {"MOVED_READY": str(ready), "MOVED_RUNNING": str(scene.running)}
    variables |= {"WEFT_BACKING": "movable", "WEFT_EVICT_IDLE": "700ms"}
    job = scene.job([paths.python("torch"), paths.CLIENTS / "programs" / "torch_idle.py", result], "torch", more=variables)
    assert jobs.wait_until(lambda: ready.exists() or not job.running(), BOUND) and job.running(), job.explain()
    answers = []
    # Two before its memory leaves for the first time.
    for number in range(2 + 2 * ROUNDS):
        if number >= 2:
            assert jobs.wait_until(lambda: scene.row(job)["eviction"]["state"] == "evicted", BOUND), scene.row(job)
            assert scene.row(job)["eviction"]["bytes"] >= 72 << 20, scene.row(job)
        answer = ready.with_suffix(f".{number}.answer")
        ready.with_suffix(f".{number}").touch()
        assert jobs.wait_until(lambda: answer.exists() or not job.running(), BOUND) and job.running(), job.explain()
        answers.append(answer.read_text().split()[0])
    assert len(set(answers)) == 2 and answers == answers[:2] * (1 + ROUNDS), answers
    assert scene.row(job)["eviction"]["wakes"] >= 2 * ROUNDS, scene.row(job)
    scene.running.unlink()
    scene.finish(job)
    assert json.loads(result.read_text())["answers"] == answers
