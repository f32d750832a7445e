# SPDX-License-Identifier: MIT OR Apache-2.0
"""Accuracy of templates for the memory that launches touch: learnt from one run of a model, judged
on another one.

  pytest -s tests/clients/test_prediction.py --json prediction.json
                                       all of the models, and the figures
  pytest -s tests/clients/test_prediction.py -k "llama-infer or gpt2-train"        some of them
  pytest -s tests/clients/test_prediction.py -k resnet152-train --worst 5 --keep
                                       the reasons; judged again with
                                       `weft-lab memory prediction` on the kept files

Each model (scripts/workloads/models.py: real PyTorch on the simulated GPU) runs twice in stage 1 on
managed memory, each run with WEFT_EVIDENCE: every launch's parameters, and the memory that it
touched by the simulated GPU's ledger. `weft-lab memory prediction` fits templates to the first run
and judges them on the second one, another process with its memory elsewhere; with --other-batch
also on a run (NAME@N) whose sizes were never seen, for comparison.
Each launch's evidence is exact or a guess. The aims are judged on the exact ones; the guessed ones
are also printed, with their share. Evidence is exact if the simulated GPU reads it off the
parameters of PyTorch's own kernels, or if PyTorch itself reports its operations' tensors
(operands.py). It is a guess for the workspaces of closed libraries.
With --residency a third run's templates are learnt from the host's page table, launch by launch, as
on a real GPU (`weft profile --evidence residency`). They are judged in granules of 64 KB by the
simulated GPU's ledger, which is the state that the page table shows. PyTorch's report of kernels
that the simulated GPU guesses at does not show there.
Needs scripts/layout, scripts/setup torch and cargo build --release in tests/lab.
"""

import json
import subprocess
import time

import pytest
from harness import jobs, paths

LAB = paths.BUILT / "weft-lab"
MODELS_SCRIPT = paths.ROOT / "scripts" / "workloads" / "models.py"

# The models in MSched's list that are here, a decoder and a transformer in training; the batch of
# the run that is judged for comparison.
MODELS = {
    "resnet152-infer": 2,
    "resnet152-train": 2,
    "vgg19-infer": 2,
    "inception_v3-infer": 2,
    "densenet201-infer": 2,
    "llama-infer": 2,
    "gpt2-train": 2,
}

# Seconds for one run.
BOUND = 200


def record(folder, name, which, requests, batch=0, source="auto"):
    """One run of a model in stage 1. Returns its recording, and how long the run took, s."""
    model, mode = name.rsplit("-", 1)
    place = folder / f"{name}.{which}"
    place.mkdir()
    evidence = place / "evidence"
    device = jobs.Device(place, memory=64 << 30)
    with jobs.Broker(place, device, trace=False) as broker:
        environment = {
            **jobs.clean_environment(),
            **device.environment(),
            **jobs.preload(broker.variables(), profile=name, mode="profile"),
            "WEFT_BACKING": "managed",
            "WEFT_EVIDENCE": str(evidence),
            "WEFT_EVIDENCE_FROM": source,
            "SIMGPU_PAGE_TABLE": "on" if source == "residency" else "off",
            "OMP_NUM_THREADS": "1",
        }
        words = [model, "--mode", mode, "--requests", str(requests), "--warm-up", "1", *(["--batch", str(batch)] if batch else [])]
        program = [paths.CLIENTS / "operands.py", f"{evidence}.operands", MODELS_SCRIPT]
        begin = time.monotonic()
        job = jobs.Job([paths.python("torch"), *program, *words], environment=environment, folder=place, name="job", cwd=place)
        assert job.wait(BOUND) == 0, job.explain()
        took = time.monotonic() - begin
    device.wait_gone()
    assert evidence.exists(), f"{name}: no launches were written\n{job.explain()}"
    return evidence, took


@pytest.fixture(scope="module")
def rows(request):
    """The figures of all models, for --json."""
    told = []
    yield told
    if request.config.option.json:
        request.config.option.json.write_text(json.dumps(told, indent=2) + "\n")


def judged(pair, folder, options, what):
    """The figures of `weft-lab memory prediction` for templates learnt from one recording and
    judged on another.

    Returns them, and a line for each aim that is missed."""
    figures = folder / "figures.json"
    command = [LAB, "memory", "prediction", pair, "--worst", str(options.worst), "--json", figures]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BOUND)
    assert done.returncode == 0, done.stderr
    print(f"{what}:\n{done.stdout}")
    return json.loads(figures.read_text()), done.stdout[done.stdout.rindex(" aims met") :].splitlines()[1:]


@pytest.mark.timeout(8 * BOUND)
@pytest.mark.parametrize("name", MODELS)
def test_templates_foretell_what_launches_touch(name, folder, rows, request, record_property):
    options = request.config.option
    assert LAB.exists(), f"no {LAB}: cargo build --release in tests/lab"
    if not paths.python("torch").exists():
        pytest.skip("no .venv-torch: scripts/setup torch")
    learn, alone = record(folder, name, "learn", options.requests)
    judge, _ = record(folder, name, "judge", options.requests)
    wrong = []
    if options.residency:
        observed, took = record(folder, name, "residency", options.requests, source="residency")
        record_property("told", f"a run that is observed by the host's page table takes {took:.0f} s, by the ledger {alone:.0f} s")
        wrong += judged(f"{name}={observed},{judge}", folder, options, "Learnt from the host's page table, judged by the ledger")[1]
    if options.other_batch:
        batch = MODELS[name]
        other, _ = record(folder, name, "other", options.requests, batch)
        judged(f"{name}@{batch}={learn},{other}", folder, options, "With sizes that were never seen (no aim)")
    figures, missed = judged(f"{name}={learn},{judge}", folder, options, "Learnt from the ledger")
    rows += figures
    assert not wrong + missed, "\n".join(wrong + missed)
