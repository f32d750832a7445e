# SPDX-License-Identifier: MIT OR Apache-2.0
"""Files of real GPUs' profilers: each is imported, and its trace, played without other jobs, takes
about the time of the file. Two pairs of them then share a GPU in the laboratory, `scripts/lab
measured`.

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
# A service and a training of one GPU generation each.
PAIRS = [("a100_particle16", "a100_ddp_small"), ("h100_vllm", "h100_pp_train")]
# Largest latency of the service under weft, of a solo run: mean, and worst of 60 requests. The aims
# for 1,000 requests are 1.01, and 1.03 for the 99th percentile.
MEAN, WORST = 1.02, 1.06


def programs():
    """The files of each program, by its name."""
    if not FOLDER.is_dir():
        pytest.skip(f"no folder {FOLDER}: set WEFT_TRACES")
    found = collections.defaultdict(list)
    for file in sorted(FOLDER.iterdir()):
        found[file.name.split(".")[0].split("-")[0]].append(file)
    assert found
    return found


def imported(name, files, folder, *options):
    """The report of an import."""
    command = [paths.WEFT, "trace", "import", "--json", *options, *files, folder / f"{name}.trace"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{name}: {done.stderr}"
    shown = subprocess.run([paths.WEFT, "trace", "show", folder / f"{name}.trace"], capture_output=True, check=False)
    assert shown.returncode == 0, f"{name}: {shown.stderr}"
    return json.loads(done.stdout)["report"]


def test_traces_of_real_gpus_are_near_their_files(tmp_path, record_property):
    every = programs()
    far = []
    for name, files in every.items():
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
    record_property("told", f"{len(every) - len(far)} of {len(every)} near")


def test_imported_pairs_share_a_gpu_in_the_laboratory(tmp_path):
    every = programs()
    lab = paths.BUILT / "weft-lab"
    if not lab.exists():
        pytest.skip(f"no {lab}: scripts/lab builds it")
    jobs = []
    for service, training in PAIRS:
        imported(f"{service}-infer", every[service], tmp_path, "--service")
        imported(f"{training}-train", every[training], tmp_path, "--training")
        jobs += ["--job", service, "--job", training]
    results = tmp_path / "results.json"
    words = ["--quick", "--device", "mps", "--rule", "weft", "--rule", "default", "--json", results]
    kinds = ["--kind", "measured", "--kind", "distributed"]
    command = [lab, "measured", "--traces", tmp_path, *words, *kinds, *jobs]
    done = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    rows = [row for row in json.loads(results.read_text())["rows"] if row["closed"]]
    played = collections.defaultdict(dict)
    for row in rows:
        assert row["finished"], row
        played[row["service"], row["host_time"]][row["rule"]] = row
    assert {service for service, _ in played} == {service for service, _ in PAIRS}

    def added(row, figure):
        return row["latency"][figure] / row["alone"][figure]

    for case, by_rule in played.items():
        weft, device = by_rule["weft"], by_rule["default"]
        assert added(weft, "mean") < MEAN and added(weft, "worst") < WORST, (case, weft["latency"], weft["alone"])
        # The device's own rule favours nobody: the training gets more, and the service is later.
        assert added(device, "worst") > added(weft, "worst") - 0.01, case
        assert 0 <= weft["batch_sum"] < device["batch_sum"] <= 1.1, case
    # Kernels shorter than the gaps fill them.
    assert min(by["weft"]["batch_sum"] for (service, _), by in played.items() if service == PAIRS[0][0]) > 0.5
