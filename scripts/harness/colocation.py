# SPDX-License-Identifier: MIT OR Apache-2.0
"""Pairs that others measured on hardware, and `weft predict` of the nearest files.

Gavel (stanford-futuredata/gavel, c4fa4009) has each training's steps a second, solo and with
another training on the same GPU. A row is compared if the folder or profiles/recorded has both its
models. The figure is the speed with the other job, as a part of the solo speed.

No file is of Gavel's cards. But the table has each job's solo speed, so a file is stretched to it:
once by its kernels, as on a slower card, and once by time of its host between steps. The table does
not have which it was, so a row's interval covers both.

MISO's table (boringlee24/socc22-miso, 39b1ee69) has solo trainings on MIG slices. `weft predict`
plays no slices, and no file is of one of its trainings.
"""

import csv
import gzip
import json
import os
import subprocess
import tempfile
from pathlib import Path

from . import paths

RECORDED = paths.ROOT / "profiles" / "recorded" / "simulated-A100"
# Gavel's job: the file that stands for it, and how they differ. Gavel's ResNet-50 has images of
# 224 x 224 and eight processes that decode them. Its LM is PyTorch's word language model of that
# time: LSTM, width 200, 35 words a step.
GAVEL = {
    "ResNet-50 (batch size 16)": ("resnet50-train", "estimated for an A100, no images decoded"),
    "ResNet-50 (batch size 32)": ("v100_resnet50_ddp_w4-train", "measured, another V100"),
    "LM (batch size 20)": ("lstm-train", "estimated for an A100; width 650, 16 x 48 words"),
}
# The ways that a row may have been measured under: Gavel starts MPS only if it is told to.
WAYS = ("MPS", "time slices")
# How a file is stretched to a job's solo speed.
STRETCHES = ("kernels", "host")
# Solo predictions for a stretch, and how near to the wanted speed is near enough.
TRIES, NEAR = 5, 0.02
# The aim: this part of the measured values lies inside.
AIM = 0.9
# Seconds for a prediction by an unoptimized build on two busy cores.
BOUND_S = 300


class NoData(Exception):
    """The folder has no tables."""


def folder():
    """The folder of measured data, as for `scripts/lab measured`."""
    named = Path(os.environ.get("WEFT_TRACES", paths.ROOT.parent / "shared" / "data" / "traces"))
    if not (named / "colocation" / "gavel-pairs.csv.gz").is_file():
        raise NoData(
            f"{named}/colocation: no gavel-pairs.csv.gz; set WEFT_TRACES to a folder with the pairs of"
            " Gavel's scheduler/simulation_throughputs.json (stanford-futuredata/gavel, c4fa4009)"
        )
    return named


def file(data, name):
    """The trace of this name."""
    own = RECORDED / f"{name}.trace"
    return own if own.exists() else data / "weft" / f"{name}.trace"


def weft(*words):
    """The output of a weft command."""
    command = [str(word) for word in (paths.BUILT / "weft", *words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return done.stdout


def predicted(*jobs):
    """The prediction of a solo job, or of two that share a GPU."""
    return json.loads(weft("predict", "--json", *jobs))


def latency_ns(answer):
    """The time of a step of the service in a solo run, without the host's time before it."""
    return answer["solo_ns"]["mean"]["point"]


def stretched(trace, how, by):
    """The trace with kernel times multiplied, or with more ns before each step."""
    for step in trace["steps"]:
        if how == "host":
            step["think"] += int(by)
        for operation in step["operations"]:
            if how == "kernels" and "Launch" in operation["call"]:
                operation["call"]["Launch"]["duration"] = int(operation["call"]["Launch"]["duration"] * by)
    return trace


def fitted(trace, how, wanted_ns, folder):
    """A file whose solo steps take this time. `None`: the host cannot make them shorter."""
    weft("trace", "export", trace, folder / "plain.json")
    plain = (folder / "plain.json").read_text()
    steps = json.loads(plain)["steps"]
    think_ns = sum(step["think"] for step in steps) / len(steps)
    file = folder / f"{trace.stem}-{how}-{wanted_ns:.0f}.json"
    by = {"kernels": 1.0, "host": wanted_ns - think_ns - latency_ns(predicted(trace))}[how]
    if by < 0:
        return None
    for _ in range(TRIES):
        file.write_text(json.dumps(stretched(json.loads(plain), how, by)))
        if how == "host":
            break
        off = (wanted_ns - think_ns) / latency_ns(predicted(file))
        if abs(off - 1) <= NEAR:
            break
        by *= off
    return file


def rows(data):
    """Gavel's rows whose two jobs have files of one GPU."""
    with gzip.open(data / "colocation" / "gavel-pairs.csv.gz", "rt") as table:
        every = list(csv.DictReader(table))
    played = [row for row in every if row["job"] in GAVEL and row["other"] in GAVEL]
    # Kernel times of an A100 and of a V100 are not those of one GPU.
    own = lambda job: (RECORDED / f"{GAVEL[job][0]}.trace").exists()  # noqa: E731
    return [row for row in played if own(row["job"]) == own(row["other"])], every


def interval(row, way, answers):
    """The least and the greatest speed that any stretch predicts."""
    of = [answer["ways"] for answer in answers]
    parts = [one["batch"][0] for ways in of for one in ways if one["way"] == way]
    if not parts:
        raise RuntimeError(f"no prediction of {row['job']}")
    return {"low": min(part["low"] for part in parts), "high": max(part["high"] for part in parts)}


def compared(data, predict=predicted, fit=fitted):
    """Each row with its intervals, the played steps a second of solo runs, and all rows."""
    found, every = rows(data)
    with tempfile.TemporaryDirectory() as folder:
        files, solo, out = {}, {}, []
        speed = {(row["gpu"], row["job"]): float(row["alone_steps_per_s"]) for row in every}
        for row in found:
            answers = []
            for how in STRETCHES:
                for job in (row["job"], row["other"]):
                    key = (row["gpu"], job, how)
                    if key not in files:
                        plain = file(data, GAVEL[job][0])
                        if job not in solo:
                            solo[job] = 1e9 / latency_ns(predict(plain))
                        files[key] = fit(plain, how, 1e9 / speed[key[:2]], Path(folder))
                # The figure of the table is the speed of the batch job.
                pair = [files[(row["gpu"], row[which], how)] for which in ("other", "job")]
                if all(pair):
                    answers.append(predict(*pair))
            out.append((row, {way: interval(row, way, answers) for way in WAYS}))
    return out, solo, every


def inside(row, interval):
    """Whether the measured part lies inside the interval, both to two places as printed."""
    low, high = (round(interval[end], 2) for end in ("low", "high"))
    return low <= round(float(row["share_of_alone"]), 2) <= high


def text(out, solo, every):
    """The tables for people."""
    cell = "{:5} {:26} {:26} {:>8}  {:11}  {}"
    lines = ["Gavel: a training's speed with another one, of its solo speed; predictions, * inside"]
    lines.append(cell.format("GPU", "job", "with", "measured", *WAYS))
    for row, ways in out:
        shown = []
        for way in WAYS:
            mark = " *" if inside(row, ways[way]) else ""
            shown.append(f"{ways[way]['low']:.2f}-{ways[way]['high']:.2f}{mark}")
        measured = f"{float(row['share_of_alone']):.2f}"
        lines.append(cell.format(row["gpu"], row["job"], row["other"], measured, *shown))
    lines.append("")
    for gpu in ("all", *sorted({row["gpu"] for row, _ in out})):
        of = [(row, ways) for row, ways in out if gpu in ("all", row["gpu"])]
        within = [[inside(row, ways[way]) for way in WAYS] for row, ways in of]
        counts = [f"{way} {sum(one)}" for way, one in zip(WAYS, zip(*within))]
        either = sum(any(one) for one in within)
        lines.append(f"inside, {gpu}: {', '.join(counts)}, either {either} of {len(of)}; aim {AIM:.0%}")
    lines += ["", "Steps a second of solo runs, Gavel's by GPU and the file's:"]
    jobs = {row["job"] for row in every}
    for job, (name, differs) in GAVEL.items():
        of = {row["gpu"]: float(row["alone_steps_per_s"]) for row in every if row["job"] == job}
        on = ", ".join(f"{gpu} {speed:.1f}" for gpu, speed in sorted(of.items()))
        lines.append(f"{job}: {on}; {name} {solo[job]:.1f} ({differs})")
    lines.append(f"{len(out)} of {len(every)} rows. No file of {len(jobs - set(GAVEL))} of {len(jobs)} jobs:")
    lines.append("  " + ", ".join(sorted(jobs - set(GAVEL))))
    return lines


def main():
    """Prints the comparison. Returns the exit code."""
    try:
        data = folder()
    except NoData as why:
        print(f"scripts/lab colocation: {why}")
        return 2
    for line in text(*compared(data)):
        print(line)
    return 0
