# SPDX-License-Identifier: MIT OR Apache-2.0
"""Folds result files into the repository: one table per GPU, its recordings, and the figures for
the simulated GPU.

`profiles/recorded/GPU-NAME/results.jsonl` has everything that is known of a GPU: one line for each
figure, case, fact and phase, with its run. A newer run replaces the figures that it measured again
and leaves the rest. Folding the same run twice changes nothing. RESULTS.md and the calibration file
are written anew from it each time.
"""

import json
import re
import tarfile
import tempfile
import tomllib
from pathlib import Path

from harness import paths, show

from . import machine, report, results

KEYS = paths.ROOT / "tests" / "simgpu" / "calibration" / "keys.toml"

# Files that an archive of recordings may hold.
RECORDING = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.(profile|trace)")

# Source of figures that a run did not measure (tests/simgpu/calibration/README.md).
BASE = "a100-like"


class Trouble(RuntimeError):
    """The reason why a file is not folded, in one line."""


# The suffix of the file that a lease brings back.
ARCHIVE = ".tgz"

# Names in that archive: a folder of a GPU with result files, logs and recordings.
MEMBER = re.compile(r"[a-z0-9-]+/[A-Za-z0-9_-]+(\.jsonl|\.log|\.recorded(-\d+)?\.tar)")


def unpacked(archive, into):
    """The folder with the files that a lease brought back."""
    folder = into / f"{len(list(into.iterdir()))}"
    folder.mkdir()
    try:
        with tarfile.open(archive) as tar:
            for entry in tar.getmembers():
                if not entry.isfile() or not MEMBER.fullmatch(entry.name):
                    raise Trouble(f"{archive}: {entry.name!r} is no result")
            tar.extractall(folder, filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise Trouble(f"{archive}: not a complete archive of scripts/gpu-suite: {str(error).splitlines()[0]}") from error
    return folder


def files_of(places, into):
    """The given result files, and those in the given folders and archives. Archives are unpacked
    below `into`.
    """
    found = []
    for place in map(Path, places):
        if place.suffix == ARCHIVE and place.is_file():
            found += files_of([unpacked(place, into)], into)
        elif place.is_dir():
            found += sorted(path for path in place.rglob("*.jsonl") if path.name != "results.jsonl")
            for archive in sorted(place.rglob(f"*{ARCHIVE}")):
                found += files_of([archive], into)
        elif place.is_file():
            found.append(place)
        else:
            raise Trouble(f"{place}: not there")
    if not found:
        raise Trouble(f"{', '.join(map(str, places))}: no result files (*.jsonl, *{ARCHIVE}) there")
    return found


def is_simulated(run):
    """Whether any field shows that these are not figures of a real GPU."""
    named = "simulated" in str(run.get("gpu", "")).lower()
    return bool(run.get("simulated") is not False or run.get("driver", {}).get("simulated") or named)


class Gpu:
    """The recorded results of one GPU."""

    def __init__(self, root, name, title, simulated):
        self.folder = root / "profiles" / "recorded" / name
        self.calibration = root / "tests" / "simgpu" / "calibration" / f"{name}.toml"
        self.name, self.title, self.simulated = name, title, simulated
        self.file = self.folder / "results.jsonl"
        self.lines = {}
        if self.file.exists():
            for line in results.read(self.file):
                self.lines[key(line)] = line

    def add(self, path):
        """Adds one run's lines. Returns the numbers of lines that were new, that replaced others,
        and that were older than the existing ones.
        """
        lines = results.read(path)
        run = report.head(lines)["run"]
        counts = {"new": 0, "replaced": 0, "older": 0}
        for line in lines:
            if line["kind"] == "end":
                continue
            line = {**line, "run": run}
            line.pop("at", None)
            before = self.lines.get(key(line))
            if before and before["run"] > run:
                counts["older"] += 1
                continue
            if before != line:
                counts["replaced" if before else "new"] += 1
            self.lines[key(line)] = line
        return counts

    def unpack(self, path):
        """Unpacks the recordings of a result file, which lie in the same folder."""
        written, run = [], report.head(results.read(path))["run"]
        for archive in sorted(path.parent.glob(f"{path.stem}.recorded*.tar")):
            with tarfile.open(archive) as tar:
                for entry in tar:
                    if not entry.isfile() or not RECORDING.fullmatch(entry.name):
                        raise Trouble(f"{archive}: {entry.name!r} is no recording")
                    known = self.lines.get(("value", "record", f"{entry.name}.bytes"))
                    if known and known["run"] > run:
                        continue
                    data = tar.extractfile(entry).read()
                    self.folder.mkdir(parents=True, exist_ok=True)
                    (self.folder / entry.name).write_bytes(data)
                    written.append(entry.name)
        return written

    def of(self, kind, phase=None):
        return [line for line in self.lines.values() if line["kind"] == kind and (phase is None or line.get("phase") == phase)]

    def write(self):
        """Writes all files of this GPU. Returns their paths."""
        self.folder.mkdir(parents=True, exist_ok=True)
        ordered = sorted(self.lines.values(), key=lambda line: tuple(map(str, key(line))))
        replace(self.file, "".join(json.dumps(line, sort_keys=True) + "\n" for line in ordered))
        replace(self.folder / "RESULTS.md", self.table())
        written = [self.file, self.folder / "RESULTS.md"]
        text = self.calibration_text()
        if text:
            self.calibration.parent.mkdir(parents=True, exist_ok=True)
            replace(self.calibration, text)
            written.append(self.calibration)
        return written

    def table(self):
        parts = [f"# {self.title}"]
        if self.simulated:
            parts.append(
                "**SIMULATED.** These runs were made on the simulated GPU: they show that the suite works, and measure no real GPU."
            )
        parts.append(
            "Written by `scripts/gpu-results` from `results.jsonl`; do not edit by hand. Each figure is the newest one, with its run."
        )
        runs = sorted(self.of("run"), key=lambda line: line["run"])
        used = {line["run"] for line in self.lines.values() if line["kind"] != "run"}
        rows = [
            [
                run["run"],
                str(run.get("commit"))[:12],
                cuda(run),
                run.get("packages", {}).get("torch", "-"),
                f"{run.get('budget', 0):g} s",
                " ".join(run.get("phases", [])),
            ]
            for run in runs
            if run["run"] in used
        ]
        parts.append(show.table(["run", "commit", "CUDA driver", "torch", "budget", "phases"], rows))
        phases = [
            name for name in ("interception", "sharing", "calibration", "cost", "movable", "record", "memory") if self.of("phase", name)
        ]
        phases += sorted({line["phase"] for line in self.of("phase")} - set(phases))
        rows = []
        for name in phases:
            line = self.of("phase", name)[-1]
            rows.append(
                [
                    name,
                    line["verdict"] + (", in part" if line.get("partly") else ""),
                    (line.get("why") or "-").replace("|", "/")[:200],
                    line["run"],
                ]
            )
        parts += ["## Phases", show.table(["phase", "verdict", "why", "run"], rows)]
        for name in phases:
            values = sorted(self.of("value", name), key=lambda line: line["name"])
            bad = sorted(
                (line for line in self.of("case", name) if line["verdict"] != results.OK), key=lambda line: line["name"]
            )
            if not values and not bad:
                continue
            parts.append(f"## {name}")
            if values:
                rows = [
                    [v["name"], f"{report.number(v['value'])} {v['unit']}", report.spread(v) or "-", v.get("n", "-"), v["run"]]
                    for v in values
                ]
                parts.append(show.table(["figure", "value", "p10 - p90", "n", "run"], rows))
            if bad:
                rows = [
                    [
                        line["name"],
                        line["verdict"],
                        str(line.get("why", "-")).replace("|", "/").replace("\n", " ")[:200],
                        line["run"],
                    ]
                    for line in bad
                ]
                parts.append(show.table(["case", "verdict", "why", "run"], rows))
        named = {line["name"]: line for line in self.of("fact", "interception")}
        if "symbols" in named:
            data = named["symbols"]["data"]
            parts.append(
                f"Functions that this driver exports and the symbol table lacks (run {named['symbols']['run']}): {words(data['table_lacks'])}."
            )
            parts.append(f"Functions that the table has and this driver does not export: {words(data['driver_lacks'])}.")
        if "unhooked" in named:
            parts.append(
                f"Functions that clients looked up and got past weft (run {named['unhooked']['run']}): {words(named['unhooked']['data'])}."
            )
        return "\n\n".join(parts) + "\n"

    def calibration_text(self):
        """The figures for the simulated GPU, or None if no figure was measured."""
        with open(KEYS, "rb") as file:
            keys = tomllib.load(file)
        measured = {}
        for line in [*self.of("value", "calibration"), *self.of("value", "memory")]:
            measured[line.get("probe"), line.get("key")] = line
        rows = []
        for name, entry in keys.items():
            line = measured.get((entry.get("probe"), entry.get("name"))) if "probe" in entry else None
            if line is None:
                continue
            if line["unit"] != entry["unit"]:
                raise Trouble(f"{name} is in {entry['unit']}, the probe's {entry['probe']}.{entry['name']} in {line['unit']}")
            value = rounded(name, line["value"])
            if value < 0 or (entry.get("positive") and value == 0):
                continue
            source = f"measured: {line.get('how', 'weft-gpu-probe')} --only {entry['probe']}; run {line['run']}"
            more = "".join(
                f", {key} = {line[key] if key == 'n' else rounded(name, line[key])}"
                for key in ("n", "p10", "p90")
                if line.get(key) is not None
            )
            rows.append(f"{name} = {{ value = {value}, source = {json.dumps(source)}{more} }}")
        if not rows:
            return None
        title = "# Written by scripts/gpu-results; do not edit by hand." + (
            " SIMULATED: figures of the simulated GPU, of no real one." if self.simulated else ""
        )
        return "\n".join([title, f"gpu = {json.dumps(self.title)}", f'base = "{BASE}"', "", "[values]", *rows]) + "\n"


def rounded(name, value):
    return round(float(value), 3) if name.endswith("_ratio") else round(float(value))


def cuda(run):
    number = run.get("driver", {}).get("cuda")
    return f"{number // 1000}.{number % 1000 // 10}" if number else "-"


def words(names):
    return ", ".join(f"`{name}`" for name in names) or "none"


def key(line):
    """The subject of a line: a newer line with the same key replaces it."""
    if line["kind"] == "run":
        return ("run", line["run"], "")
    return (line["kind"], line.get("phase", ""), line.get("name", ""))


def replace(path, text):
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.replace(path)


def fold(places, root, allow_simulated):
    """Folds all files. Returns lines for people."""
    with tempfile.TemporaryDirectory() as into:
        return fold_files(files_of(places, Path(into)), root, allow_simulated)


def fold_files(files, root, allow_simulated):
    gpus, said = {}, []
    for path in files:
        lines = results.read(path)
        run = report.head(lines)
        if not run:
            raise Trouble(f"{path}: not a result file of scripts/gpu-suite: it has no `run` line")
        simulated = is_simulated(run)
        if simulated and not allow_simulated:
            raise Trouble(
                f"{path}: made on the simulated GPU, so it measures no real one; to see it anyway: --into FOLDER"
            )
        name = machine.folder_name(run["gpu"], simulated)
        gpu = gpus.setdefault(name, Gpu(root, name, run["gpu"], simulated))
        counts = gpu.add(path)
        recordings = gpu.unpack(path)
        said.append(
            f"{path.name}: {gpu.name}: {counts['new']} new, {counts['replaced']} replaced, {counts['older']} older than the existing ones, {len(recordings)} recordings"
        )
    for gpu in gpus.values():
        said += [f"wrote {path}" for path in gpu.write()]
    return said
