#!/usr/bin/env python3
"""How well templates foretell what launches touch: learnt from one run of a model, judged on another one.

    tests/clients/prediction.py [--check] [--json FILE] [--only NAME...] [--requests N] [--keep]

    tests/clients/prediction.py --only resnet50-infer gpt2-train   some of the models
    tests/clients/prediction.py --check --json prediction.json     all of them; exit 1 where an aim is missed
    tests/clients/prediction.py --only resnet152-train --worst 5 --keep     why; judged again with `weft-lab memory prediction` on what is kept

Each model (scripts/workloads/models.py: real PyTorch on the simulated GPU) runs twice in stage 1 on managed memory, each run with WEFT_EVIDENCE: every launch's parameters, and
what the simulated GPU's ledger says it touched. `weft-lab memory prediction` fits templates to the first run and judges them on the second one, another process with its memory
elsewhere; with --other-batch also on a run (NAME@N) whose sizes were never seen, for comparison. Each launch's evidence says whether it is exact or
a guess, and the aims are judged on the exact ones; the guessed ones are printed beside them, with their share. Exact is what the simulated GPU reads off the parameters of PyTorch's own kernels, and
what PyTorch itself says of its operations' tensors (operands.py); a guess is what closed libraries do in workspaces of their own.
With --residency a third run's templates are learnt from what the host's page table shows of launches one by one, as on a real GPU (`weft profile --evidence residency`), and judged in granules of 64 KB by what the
simulated GPU's ledger says it did: that is what the page table shows, and what PyTorch says of kernels that the simulated GPU guesses at it never did.
Needs scripts/layout, scripts/setup torch and cargo build --release -p weft-lab.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "scripts"))

from harness import jobs, paths  # noqa: E402

MODELS_SCRIPT = paths.ROOT / "scripts" / "workloads" / "models.py"

# Those of the models that MSched lists which are here, a decoder and a transformer in training; the batch of the run that is judged for comparison.
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


class Failure(Exception):
    """A recording that could not be made, with why."""


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
        program = [HERE / "operands.py", f"{evidence}.operands", MODELS_SCRIPT]
        begin = time.monotonic()
        job = jobs.Job([paths.python("torch"), *program, *words], environment=environment, folder=place, name="job", cwd=place)
        if job.wait(BOUND) != 0:
            raise Failure(job.explain())
        took = time.monotonic() - begin
    device.wait_gone()
    if not evidence.exists():
        raise Failure(f"{name}: no launches were written\n" + job.explain())
    return evidence, took


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 where an aim is missed")
    parser.add_argument("--json", type=Path, help="the figures go there")
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME", help="some of: " + ", ".join(MODELS))
    parser.add_argument("--requests", type=int, default=6, help="requests of each run (default 6)")
    parser.add_argument("--other-batch", action="store_true", help="also judge on a run with another batch, whose sizes were never seen (no aim)")
    parser.add_argument("--residency", action="store_true", help="also learn from the host's page table, as on a real GPU, and judge that by the ledger")
    parser.add_argument("--worst", type=int, default=0, help="name so many kernels that miss most, per model: what was learnt of them, what they miss")
    parser.add_argument("--keep", action="store_true", help="keep the recordings")
    arguments = parser.parse_args()
    lab = paths.TARGET / "release" / "weft-lab"
    if not lab.exists():
        sys.exit(f"prediction: no {lab}: cargo build --release -p weft-lab")
    try:
        with jobs.workspace(arguments.keep) as folder:
            pairs, others, observed, missed = [], [], [], 0
            for name in arguments.only:
                print(f"{name} ...", file=sys.stderr, flush=True)
                learn, alone = record(folder, name, "learn", arguments.requests)
                judge, _ = record(folder, name, "judge", arguments.requests)
                pairs.append(f"{name}={learn},{judge}")
                if arguments.residency:
                    learn, took = record(folder, name, "residency", arguments.requests, source="residency")
                    observed.append(f"{name}={learn},{judge}")
                    print(f"{name}: a run that is observed by the host's page table takes {took:.0f} s, by the ledger {alone:.0f} s", flush=True)
                if arguments.other_batch:
                    batch = MODELS[name]
                    others.append(f"{name}@{batch}={learn},{record(folder, name, 'other', arguments.requests, batch)[0]}")
            more = ["--worst", str(arguments.worst)]
            if observed:
                print("Learnt from the host's page table, judged by the ledger:", flush=True)
                check = ["--check"] if arguments.check else []
                missed = subprocess.run([lab, "memory", "prediction", *observed, *more, *check], check=False, timeout=BOUND).returncode
                print("Learnt from the ledger:", flush=True)
            if others:
                print("With sizes that were never seen (no aim):")
                subprocess.run([lab, "memory", "prediction", *others, *more], check=True, timeout=BOUND)
                print("The same job again:")
            more += ["--json", arguments.json] if arguments.json else []
            more += ["--check"] if arguments.check else []
            return subprocess.run([lab, "memory", "prediction", *pairs, *more], check=False, timeout=BOUND).returncode or missed
    except (Failure, RuntimeError, OSError, subprocess.SubprocessError) as error:
        print(f"prediction: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
