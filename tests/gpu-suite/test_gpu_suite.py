# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests of scripts/gpu-bundle, scripts/gpu-suite and scripts/gpu-results, on the simulated GPU.

Needs the build of scripts/layout. Without .venv-torch, the phases that run PyTorch must report why
they were left out.
"""

import ast
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from gpu import bundle, clients, fold, leases, mps, phases, rehearse, report, results, safety, supervise
from gpu import suite as suite_
from gpu.phases import facts
from harness import elf, jobs, paths

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

PHASES = HERE / "phases.py"

# A run of the suite ends by itself within its budget; this is for one that does not.
PATIENCE = 600
# Seconds for a lease that is to leave nothing out. It ends when it is done: the budget is for a
# busy machine.
LEASE_BUDGET = leases.MOST
# Any other command: a compiler, a listing; seconds. gpu-bundle copies and strips what is built.
TOOL = 180


def suite(*arguments, bundle_folder, bound=PATIENCE, **more):
    command = [ROOT / "scripts" / "gpu-suite", "--bundle", bundle_folder, *arguments]
    done = subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=bound,
        check=False,
        **more,
    )
    return done


def result_file(out):
    found = sorted(path for path in out.rglob("*.jsonl"))
    assert found, f"no result file in {out}"
    return found[-1]


def unpacked(archive, folder):
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder


def verdicts(lines):
    return {name: (line or {}).get("verdict") for name, line in report.of_phases(lines)}


def alive(pid):
    entry = supervise.process(pid)
    return entry is not None and entry[1] != "Z"


@pytest.fixture(scope="module")
def place(request):
    """One folder for all cases: they share the bundle that the first one makes."""
    missing = [str(path) for name, _ in bundle.FILES if not (path := paths.BUILT / name).exists()]
    if missing:
        pytest.fail(f"not built: {', '.join(missing)}: run scripts/layout")
    with jobs.workspace(request.config.option.keep) as folder:
        yield folder


@pytest.mark.timeout(900)
class TestSuite:
    @pytest.fixture(autouse=True)
    def shared(self, place):
        self.folder = place
        self.bundle = place / "bundle"

    # The bundle.

    def test_elf_reader_agrees_with_nm(self):
        for file in (paths.BUILT / "libsimcuda.so", paths.BUILT / "weft"):
            read = elf.Elf(file)
            done = subprocess.run(["nm", "-D", str(file)], capture_output=True, text=True, check=True, timeout=TOOL)
            exported, needed = set(), set()
            for line in done.stdout.splitlines():
                *_, kind, name = line.split()
                name, _, version = name.partition("@")
                if kind in "TWi" and "U" != kind:
                    exported.add(name)
                elif kind in "Uwv" and version:
                    needed.add((name, version.lstrip("@")))
            assert read.exports() == exported, f"{file}: exports differ: {sorted(read.exports() ^ exported)[:5]}"
            seen = {(symbol, version) for symbol, _, version in read.needs() if symbol}
            assert seen == needed, f"{file}: needs differ: {sorted(seen ^ needed)[:5]}"

    def too_new(self, version):
        """A library that needs a symbol of this glibc version."""
        place = self.folder / f"glibc-{version}"
        place.mkdir()
        (place / "libc.c").write_text("int from_the_future(void) { return 1; }\n")
        (place / "libc.map").write_text(f"GLIBC_{version} {{ global: from_the_future; local: *; }};\n")
        (place / "user.c").write_text("int from_the_future(void); int use(void) { return from_the_future(); }\n")
        libc, user = place / "libc.so.6", place / "user.so"
        compiler = ["cc", "-shared", "-fPIC", "-nostdlib"]
        subprocess.run(
            [*compiler, "-Wl,-soname,libc.so.6", f"-Wl,--version-script={place / 'libc.map'}", "-o", libc, place / "libc.c"],
            check=True,
            timeout=TOOL,
        )
        subprocess.run([*compiler, "-o", user, place / "user.c", libc], check=True, timeout=TOOL)
        return user

    def test_a_symbol_of_a_newer_glibc_is_found(self):
        new, old = self.too_new("2.35"), self.too_new("2.34")
        assert elf.too_new(new, (2, 34)) == [("from_the_future", "GLIBC_2.35")], f"found {elf.too_new(new, (2, 34))}"
        assert elf.too_new(old, (2, 34)) == [], f"found {elf.too_new(old, (2, 34))}"
        done = subprocess.run(
            [ROOT / "scripts" / "gpu-bundle", "--verify", new, old], capture_output=True, text=True, check=False,
            timeout=TOOL,
        )
        assert done.returncode == 1 and "from_the_future" in done.stdout and str(new) in done.stdout, done.stdout + done.stderr
        # A target folder with such a file makes no bundle, and leaves the old one as it was.
        release, out = self.folder / "t" / paths.BUILT.name, self.folder / "kept"
        release.mkdir(parents=True)
        shutil.copy(old, release / "libx.so")
        bundle.make(out, from_target=release.parent, files=[("libx.so", "weft/libx.so")])
        shutil.copy(new, release / "libx.so")
        try:
            bundle.make(out, from_target=release.parent, files=[("libx.so", "weft/libx.so")])
            pytest.fail("a file that needs a newer glibc was bundled")
        except bundle.Trouble as why:
            assert "from_the_future" in str(why) and "libx.so" in str(why), str(why)
        assert bundle.damaged(out, bundle.manifest_of(out)) == [], "the old bundle was touched"

    def test_bundle(self):
        done = subprocess.run(
            [ROOT / "scripts" / "gpu-bundle", "--no-build", "--out", self.bundle], capture_output=True, text=True, check=False,
            timeout=TOOL,
        )
        assert done.returncode == 0, done.stderr
        manifest = bundle.manifest_of(self.bundle)
        there = {str(path.relative_to(self.bundle)) for path in self.bundle.rglob("*") if path.is_file()} - {"manifest.json"}
        programs = {place for _, place in bundle.FILES}
        assert there == set(manifest["files"]) == programs | {clients.PLACE}, f"holds {sorted(there)}"
        with open(paths.CLIENTS / "clients.toml", "rb") as file:
            assert clients.carried(self.bundle / clients.PLACE) == tomllib.load(file), "the carried table of clients is another one"
        assert not any(path.is_symlink() for path in self.bundle.rglob("*")), "links do not travel"
        total = sum(path.stat().st_size for path in self.bundle.rglob("*") if path.is_file())
        assert paths.PROFILE != "release" or total < bundle.MOST_BYTES, f"{total} bytes"
        assert bundle.glibc_faults([self.bundle / place for place in programs]) == [], "a file needs a newer glibc"
        ran = subprocess.run([self.bundle / "weft" / "weft", "--version"], capture_output=True, text=True, check=True, timeout=TOOL).stdout
        assert ran.strip() == manifest["weft"], f"{ran} is not {manifest['weft']}"

    def test_a_bundle_replaces_a_bundle_and_nothing_else(self):
        self.need_bundle()
        mine, beside = self.folder / "mine", self.folder / "mine.old"
        for place in (mine, beside):
            place.mkdir()
            (place / "thesis.txt").write_text("years of work")
        link, file = self.folder / "link", self.folder / "file"
        link.symlink_to(self.folder / "nowhere")
        file.write_text("x")
        for place in (mine, link, file):
            done = subprocess.run(
                [ROOT / "scripts" / "gpu-bundle", "--no-build", "--out", place], capture_output=True, text=True, check=False, timeout=TOOL
            )
            assert done.returncode == 1 and "no bundle" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
        assert (mine / "thesis.txt").exists() and (beside / "thesis.txt").exists() and file.read_text() == "x" and link.is_symlink()
        # An earlier bundle and an empty folder are replaced, and no further file is left next to
        # them.
        before = set(self.folder.iterdir())
        empty = self.folder / "empty"
        empty.mkdir()
        for _ in range(2):
            bundle.make(empty, files=[("weft-test-client", "release/weft-test-client")])
        assert set(self.folder.iterdir()) == before | {empty} and bundle.damaged(empty, bundle.manifest_of(empty)) == []
        done = suite("--simulated", "--lease", "--out", file, bundle_folder=self.bundle, bound=TOOL)
        assert done.returncode == 1 and "no folder" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr

    def test_each_file_of_the_bundle_has_a_package_that_builds_it(self):
        wanted = {"weft-cli", "weft-interposer", "weft-gpu-probe", "weft-client-programs", "simgpu-driver", "simgpu-device"}
        assert wanted <= set(bundle.packages(bundle.FILES)), f"{bundle.packages(bundle.FILES)}"
        try:
            bundle.packages([("no-such-program", "x")])
            pytest.fail("a file that nobody builds was accepted")
        except bundle.Trouble as why:
            assert "no-such-program" in str(why), str(why)

    def test_bundle_that_did_not_arrive_whole_is_refused(self):
        self.need_bundle()
        broken = self.folder / "broken"
        shutil.copytree(self.bundle, broken)
        file = broken / "weft" / "libweft.so"
        file.write_bytes(file.read_bytes()[:-1])
        done = suite("--simulated", "--budget", 60, "--out", self.folder / "no", bundle_folder=broken)
        assert done.returncode != 0 and "weft/libweft.so" in done.stderr, done.stderr
        assert not (self.folder / "no").exists(), "it ran all the same"

    def need_bundle(self):
        if not self.bundle.exists():
            bundle.make(self.bundle)

    # The suite.

    def extra(self, *names):
        return [word for name in names for word in ("--extra-phase", f"{name}={PHASES}")]

    def test_a_failing_a_crashing_and_a_hanging_phase_stop_no_other(self):
        self.need_bundle()
        out, summary = self.folder / "injected", self.folder / "injected.json"
        names = ["hangs", "fails", "crashes", "last"]
        done = suite(
            "--simulated", "--budget", 60, "--out", out, "--check", "--json", summary, *self.extra(*names), "--only", *names,
            bundle_folder=self.bundle,
        )  # fmt: skip
        lines = results.read(result_file(out))
        assert verdicts(lines) == {"fails": "failed", "crashes": "failed", "hangs": "failed", "last": "ok"}, f"{verdicts(lines)}\n{done.stderr}"
        values = {line["name"] for line in lines if line["kind"] == "value"}
        assert values == {"after the failure", "before the crash", "before it hung", "answer"}, f"values {values}"
        said = dict(report.of_phases(lines))
        assert any("ZeroDivisionError" in line.get("why", "") for line in lines if line["kind"] == "case"), "no reason for the failing case"
        assert "the last words of a dying phase" in said["crashes"]["tail"], f"{said['crashes']}"
        assert "killed" in said["hangs"]["why"] and said["hangs"]["ended_by_force"] >= 1, f"{said['hangs']}"
        # It slept for 900 s; its share was a quarter of 55.
        assert said["hangs"]["seconds"] < 120, f"the hanging phase was left for {said['hangs']['seconds']} s"
        pid = int((result_file(out).parent / "daemon.pid").read_text())
        assert not alive(pid), f"the daemon {pid} of the hanging phase still runs"
        assert done.returncode == 1, f"--check ended with {done.returncode}"
        last = done.stdout.strip().splitlines()[-3:]
        assert [line.split(":")[1].strip() for line in last] == ["hangs", "fails", "crashes"], f"the last lines are {last}"
        assert json.loads(summary.read_text())["simulated"] is True, "the summary does not say that it is simulated"

    def test_told_to_stop_it_ends_everything_and_keeps_what_it_has(self):
        self.need_bundle()
        out = self.folder / "stopped"
        command = [ROOT / "scripts" / "gpu-suite", "--bundle", self.bundle, "--simulated", "--budget", "500", "--out", out]
        command += [*self.extra("hangs", "last"), "--only", "hangs", "last"]
        process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            end = time.monotonic() + 60
            while not list(out.rglob("daemon.pid")) and time.monotonic() < end:
                time.sleep(0.1)
            assert list(out.rglob("daemon.pid")), "the phase did not begin"
            time.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            text, _ = process.communicate(timeout=90)
        finally:
            process.kill()
            process.wait()
        lines = results.read(result_file(out))
        assert verdicts(lines) == {"hangs": "failed", "last": "left out"}, f"{verdicts(lines)}\n{text}"
        pid = int(list(out.rglob("daemon.pid"))[0].read_text())
        assert not alive(pid), f"the daemon {pid} still runs"

    def test_no_real_gpu_is_said(self):
        self.need_bundle()
        done = suite("--real", "--budget", 60, "--out", self.folder / "real", bundle_folder=self.bundle)
        real = "no real GPU" in done.stderr
        if done.returncode == 0:
            pytest.fail("this machine has a GPU: these tests are for one without")
        assert real and not (self.folder / "real").exists(), done.stderr
        # A driver that is the simulated one is not taken for a real one, however it is found.
        library = self.bundle / "simgpu" / "lib"
        environment = {**os.environ, "LD_LIBRARY_PATH": str(library), "SIMGPU_SOCKET": str(self.folder / "s.sock")}
        environment["SIMGPU_DEVICE_BIN"] = str(self.bundle / "simgpu" / "bin" / "simgpu-device")
        done = suite("--real", "--budget", 60, "--out", self.folder / "real", bundle_folder=self.bundle, env=environment)
        assert done.returncode == 1 and "simulated" in done.stderr, f"{done.returncode}: {done.stderr}"

    # Processes that a real GPU must never get, in the list of a dry run.

    def planned(self, *arguments):
        """The processes that --dry-run names, and the outcome. Its last line is of the plan."""
        self.need_bundle()
        done = suite("--dry-run", *arguments, bundle_folder=self.bundle, bound=TOOL)
        return [json.loads(line) for line in done.stdout.splitlines()[:-1]], done

    def test_a_real_gpu_meets_no_managed_memory_unasked(self):
        rows, done = self.planned("--real")
        assert done.returncode == 0, done.stderr
        of_phases = {row["phase"] for row in rows} - {"facts"}
        assert of_phases == {entry.name for entry in phases.ALL} - {"memory"}, f"{of_phases}"
        for row in rows:
            assert "WEFT_BACKING" not in row["environment"] and row["managed_bytes"] == 0 and "refused" not in row, f"{row}"
        cases = [row["case"] for row in rows]
        assert "torch-oom/alone" in cases and not any("managed" in case for case in cases), f"{cases}"
        # Words choose fewer, never more.
        rows, _ = self.planned("--real", "--only", "interception", "--case", "managed", "torch-oom")
        cases = [row["case"] for row in rows if row["phase"] == "interception"]
        assert {case.split("/")[0].split(":")[0] for case in cases} == {"torch-oom"}, f"{cases}"
        # It is no blind list: on the simulated GPU the same shows the clients that are left out.
        rows, _ = self.planned("--simulated", "--only", "interception")
        without_bound = {row["case"].split("/")[0] for row in rows if row["managed_bytes"] == "unbounded"}
        assert {"managed-torch-oom", "managed-torch-train", "managed-patterns"} <= without_bound, f"{without_bound}"

    def test_managed_memory_is_bounded_last_and_asked_for(self):
        rows, done = self.planned("--managed")
        assert done.returncode == 0, done.stderr
        managed = [row for row in rows if row["managed_bytes"]]
        assert managed and all(row["managed_bytes"] <= 256 << 20 for row in managed), f"{managed}"
        assert {row["phase"] for row in managed} == {"memory"}, f"{managed}"
        first = next(at for at, row in enumerate(rows) if row["phase"] == "memory")
        assert all(row["phase"] == "memory" for row in rows[first:]), "a phase follows the one with managed memory"
        assert "swap" in managed[-1]["case"] and all("swap" not in row["case"] for row in managed[:-1]), "two processes at once are not last"
        _, done = self.planned("--only", "memory")
        assert done.returncode == 1 and "--managed" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr

    def test_a_process_with_managed_memory_is_not_started_on_a_real_gpu(self):
        """The guard that a phase on a real GPU runs under, whatever the lists contain."""
        program = "\n".join([
            "import os, subprocess, sys",
            f"sys.path.insert(0, {str(ROOT / 'scripts')!r})",
            "from gpu import safety",
            "phase, *words = sys.argv[1:]",
            "safety.guard(phase)",
            "variables = dict(word.split('=') for word in words if '=' in word)",
            "words = [word for word in words if '=' not in word]",
            "try:",
            "    print('started', subprocess.run(words, env={**os.environ, **variables}, stdout=subprocess.DEVNULL).returncode)",
            "except safety.Refused as why:",
            "    print('refused', why)",
        ])  # fmt: skip
        place = self.folder / "guard"
        place.mkdir()
        probe = place / safety.PROBE
        probe.symlink_to(shutil.which("true"))
        cases = [
            ("interception", ["true"], "started 0"),
            ("interception", ["true", "WEFT_BACKING=device"], "started 0"),
            ("interception", ["true", "WEFT_BACKING=managed"], "refused"),
            ("memory", ["true", "WEFT_BACKING=auto"], "refused"),
            ("calibration", [probe, "calibration", "--only", "launch", "--only", "copy"], "started 0"),
            ("calibration", [probe, "calibration", "--only", "launch", "--only", "fault"], "refused"),
            ("calibration", [probe, "calibration"], "refused"),
            ("memory", [probe, "calibration", "--only", "fault"], "started 0"),
            ("memory", [probe, "memory", "--only", "a-new-one"], "refused"),
        ]
        for phase, words, expected in cases:
            command = [sys.executable, "-c", program, phase, *map(str, words)]
            said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TOOL)
            assert said.stdout.startswith(expected), f"{phase} {words}: {said.stdout}{said.stderr}, expected {expected}"

    def test_the_bound_of_each_probe_is_known(self):
        for group, known in safety.PROBES.items():
            command = [paths.BUILT / safety.PROBE, group, "--list"]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TOOL)
            assert {line.split()[0] for line in done.stdout.splitlines()} == set(known), f"{group}: {done.stdout}"
            # Those on managed memory are the last of their group, in case the program is run by
            # itself.
            names = [line.split()[0] for line in done.stdout.splitlines()]
            managed = [name for name in names if known[name]]
            assert names[len(names) - len(managed) :] == managed, f"{group}: {names}"
        # The table's figures are the most that the sources ask for.
        sources = ROOT / "tests" / "gpu-probe" / "src"
        assert "const MAX_MANAGED_BYTES: usize = 256 << 20;" in (sources / "driver" / "memory.rs").read_text(), "the cap of one allocation"
        assert "const LARGE_BYTES: usize = 128 << 20;" in (sources / "memory" / "swap.rs").read_text(), "what each of swap's two jobs has"

    # Leases, facts, the keeper.

    def test_each_lease_fits_its_15_minutes_and_is_safe(self):
        for lease in leases.ALL.values():
            rows, done = self.planned("--lease", lease.name)
            assert done.returncode == 0 and rows, f"lease {lease.name}: {done.stderr}"
            plan = json.loads(done.stdout.splitlines()[-1])
            of_phases = {row["phase"] for row in rows} - {"facts"}
            assert of_phases == set(lease.steps), f"lease {lease.name} plays {of_phases}"
            assert set(plan["bounds"]) == {"facts", *lease.steps} and sum(plan["bounds"].values()) <= leases.MOST, f"{plan}"
            # A release's files are 28 MiB; those of CI's build are larger, and stay here.
            files = plan["travels_bytes"] - bundle.manifest_of(self.bundle)["bytes"]
            assert 0 < files <= 20 << 20 and plan["travels_at_most"] <= 62 << 20, f"{plan}"
            assert paths.PROFILE != "release" or plan["travels_bytes"] <= plan["travels_at_most"], f"{plan}"
            assert not any(row["managed_bytes"] or "refused" in row for row in rows), f"lease {lease.name}: managed memory"
            done = suite("--lease", lease.name, "--budget", 541, "--simulated", bundle_folder=self.bundle, bound=TOOL)
            assert done.returncode == 1 and "at most 540 s" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
        done = suite("--help", bundle_folder=self.bundle, bound=TOOL)
        for lease in leases.ALL.values():
            assert lease.about in " ".join(done.stdout.split()), f"--help has nothing of lease {lease.name}"
        for wrong in (["--lease", "--only", "cost"], ["--lease", "third"]):
            done = suite(*wrong, bundle_folder=self.bundle, bound=TOOL)
            assert done.returncode in (1, 2) and done.stderr.splitlines()[-1].startswith("gpu-suite: "), done.stderr

    def test_the_jobs_of_a_pair_are_started_as_their_users_start_them(self):
        rows, _ = self.planned("--lease")
        pair = "+".join(leases.PAIRS[0])
        found = {row["case"].split(": ")[1]: row for row in rows if row["phase"] == "sharing" and row["case"].startswith(pair)}
        assert set(found) == {
            "service", "batch", "weft service", "weft batch", "mps service", "mps batch", "mps weft service", "mps weft batch", "learn service", "learn batch",
        }, f"{sorted(found)}"  # fmt: skip
        for name, row in found.items():
            words = " ".join(row["command"])
            # `weft run` sets MPS variables for a job's priority. A plain job sets nothing.
            assert ("weft run -q --priority" in words) == ("weft" in name), f"{name}: {words}"
            assert "LD_PRELOAD" not in row["environment"] and "CUDA_MPS_CLIENT_PRIORITY" not in row["environment"], f"{name}: {row['environment']}"
        assert "--priority 0 --profile service" in " ".join(found["mps weft service"]["command"])
        assert "--priority 5 --profile batch" in " ".join(found["mps weft batch"]["command"])

    def test_a_second_lease_records_what_the_first_one_did_not(self):
        names = {}
        for lease in leases.ALL:
            rows, _ = self.planned("--lease", lease)
            names[lease] = [row["case"] for row in rows if row["phase"] == "record"]
        assert names["first"][:2] == ["resnet50-infer", "resnet50-train"] and names["more"][:2] == ["gpt2-infer", "densenet201-train"], f"{names}"
        assert sorted(names["first"]) == sorted(names["more"]) and set(names["more"][-6:]) == set(names["first"][:6]), f"{names}"

    def test_a_word_chooses_a_case_exactly(self):
        pair = "+".join(leases.PAIRS[0])
        cases = set()
        for words in ([f"={pair}: weft"], [f"{pair}: weft"]):
            rows, _ = self.planned("--only", "sharing", "--case", *words)
            rows = [row for row in rows if row["phase"] == "sharing"]
            cases.add(tuple(sorted({name for row in rows for name in row["case"].split(": ")[2].split(", ")})))
        assert cases == {("alone", "weft"), ("alone", "weft", "weft both profiled", "weft ends by events")}, f"{cases}"

    @pytest.mark.skipif(not paths.python("torch").exists(), reason="no .venv-torch")
    def test_products_tell_the_order_of_their_launches(self):
        def data(*arguments):
            command = [paths.python("torch"), HERE / "early.py", *arguments]
            return json.loads(subprocess.run(command, capture_output=True, check=True, timeout=TOOL).stdout)

        first, again, early = data(), data(), data("early")
        assert first == again, "two runs differ"
        same = [name for name in first if first[name] == early[name] and "deep" not in name]
        assert len(first) == 9 and not same, f"an early launch left {same} as they were"

    # Parts that a GPU machine may lack: PyTorch, Python 3.11.

    def travelling(self):
        """Every Python file that runs on the GPU machine. scripts/gpu/fold.py runs on the machine
        that keeps the repository."""
        folders = [ROOT / "scripts" / name for name in ("gpu", "harness", "workloads")] + [paths.CLIENTS / "programs"]
        found = [path for folder in folders for path in folder.rglob("*.py") if path.name != "fold.py"]
        return [ROOT / "scripts" / "gpu-suite", *found]

    def test_nothing_that_travels_needs_more_than_python_3_10(self):
        files = self.travelling()
        assert len(files) > 40 and any(path.name == "suite.py" for path in files), f"{len(files)} files"
        wrong = [f"{path}: {what}" for path in files for what in newer_than_3_10(path.read_text())]
        assert not wrong, "\n".join(wrong)
        # No file that travels imports the one that does not.
        assert not [path for path in files if "import fold" in path.read_text() or "gpu.fold" in path.read_text()], "fold.py travels"
        # The check finds the breaches that it is for.
        for text in ("import tomllib", "from enum import StrEnum", "import datetime\nx = datetime.UTC", "try:\n  pass\nexcept* OSError:\n  pass",
                     "import contextlib\nwith contextlib.chdir('/'): pass", "raise ExceptionGroup('', [])", "def f():\n  import tomllib"):  # fmt: skip
            assert newer_than_3_10(text), f"not seen: {text!r}"
        assert not newer_than_3_10("try:\n  import tomllib\nexcept ModuleNotFoundError:\n  pass"), "a guarded import was refused"

    def test_a_table_of_another_checkout_is_refused(self):
        self.need_bundle()
        other = self.folder / "other.json"
        table = json.loads((self.bundle / clients.PLACE).read_text())
        other.write_text(json.dumps({**table, "of": "0" * 64}))
        for file, words in ((other, "another clients.toml"), (self.folder / "none.json", "reads no TOML")):
            try:
                clients.carried(file)
                pytest.fail(f"{file} was taken")
            except clients.Trouble as why:
                assert words in str(why) and "gpu-bundle" in str(why), str(why)

    def test_without_torch_and_on_python_3_10(self):
        """A Python of the system without packages, the oldest that may be there: it measures all
        that it can, and reports why the rest is not measured."""
        self.need_bundle()
        old = python_3_10()
        python = old or bare_python(self.folder / "bare")
        print(f"    by {python}", file=sys.stderr)
        out = self.folder / "bare-results"
        command = [python, ROOT / "scripts" / "gpu-suite", "--bundle", self.bundle, "--python", python, "--simulated", "--quick", "--check"]
        command += ["--budget", "90", "--out", out, "--only", "interception", "--case", "doctor", "symbols", "cudarc", "torch-elementwise"]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
        lines = results.read(result_file(out))
        cases = {line["name"]: line for line in lines if line["kind"] == "case"}
        for name in ("doctor", "symbols", "cudarc/alone", "cudarc/background"):
            assert cases[name]["verdict"] == "ok", f"{cases[name]}"
        for name in ("warm-up", "torch-elementwise/alone"):
            assert cases[name]["verdict"] == "skipped" and "torch" in cases[name]["why"], f"{cases[name]}"
        version = report.head(lines)["python_version"]
        assert version.startswith("3.10.") if old else version, f"it ran on {version}"
        # If only models are asked for, it reports why there are none.
        command[command.index("--only") :] = ["--only", "record"]
        command.remove("--check")
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert done.returncode == 0 and "no Python package torch" in done.stdout, f"{done.stdout}{done.stderr}"

    def test_the_clients_of_a_lease_exist(self):
        with open(paths.CLIENTS / "clients.toml", "rb") as file:
            tables = tomllib.load(file)
        for name in (*leases.RIGHT, *leases.MORE_RIGHT):
            assert name in tables and not safety.asks_for_managed(tables[name].get("env", {})), f"{name}"

    def test_facts_come_first_and_are_all_there(self):
        self.need_bundle()
        out = self.folder / "facts"
        done = suite("--simulated", "--budget", 60, "--out", out, *self.extra("last"), "--only", "last", bundle_folder=self.bundle)
        assert done.returncode == 0, done.stderr
        lines = results.read(result_file(out))
        names = [line["name"] for line in lines if line["kind"] == "fact" and line.get("phase") == "facts"]
        assert names == ["keeper", *facts.NAMES], f"{names}"
        order = [line["phase"] for line in lines if "phase" in line]
        assert order == sorted(order, key=["facts", "last"].index), f"{order}"
        data = {line["name"]: line["data"] for line in lines if line["kind"] == "fact"}
        device = data["device"]
        assert device["major"] > 0 and "mps_enabled" in device, f"compute capability and attribute 133: {device}"
        assert data["keeper"]["initialised"] and not alive(data["keeper"]["pid"]), f"{data['keeper']}"
        # The simulated driver hands out the tables that drivers 535 to 555 do.
        refused = [name for name, handed_out in device["export_tables"].items() if not handed_out]
        assert refused == ["f8cff951-2146-8b4e-b9e2-fb469e7c0dd9"], f"{refused}"
        assert data["clocksource"].get("current") or data["clocksource"].get("error"), f"{data['clocksource']}"
        assert data["ulimits"]["nofile"] and data["python"]["version"] and isinstance(data["packages"], dict), "ulimits, Python, packages"
        # No phase that starts PyTorch: no time for a warm-up.
        assert not [line for line in lines if line["kind"] == "case" and line["name"] == "warm-up"], "a warm-up for nothing"

    def test_limits_of_control_groups_are_found(self):
        place = self.folder / "groups"
        inner = place / "fs" / "memory" / "slurm" / "job_7"
        inner.mkdir(parents=True)
        (inner / "memory.limit_in_bytes").write_text("1000\n")
        (inner.parent / "memory.limit_in_bytes").write_text("2000\n")
        second = place / "fs" / "user.slice"
        second.mkdir()
        (second / "memory.max").write_text("3000\n")
        own = place / "own"
        own.write_text("4:memory:/slurm/job_7\n3:devices:/x\n0::/user.slice/not/there\n")
        found = facts.cgroup_limits(place / "fs", own)["limits"]
        assert sorted(found.values()) == ["1000", "2000", "3000"], f"{found}"

    def test_what_nvidia_smi_says_is_kept_without_the_serial_number(self):
        place = self.folder / "smi"
        place.mkdir()
        program = place / "nvidia-smi"
        program.write_text("#!/bin/sh\n[ \"$1\" = -q ] || exit 9\necho '    Product Name : X'\necho '    Serial Number   : 165'\necho '  GPU UUID : GPU-1-2'\n")
        program.chmod(0o755)
        before = os.environ["PATH"]
        os.environ["PATH"] = f"{place}:{before}"
        try:
            said = facts.smi(dict(os.environ), "-q")
            assert said == ["    Product Name : X", "    Serial Number   : (left out)", "  GPU UUID : (left out)"], f"{said}"
            assert "exit 9" in facts.smi(dict(os.environ), "-x")["error"], "an error of nvidia-smi is not told"
        finally:
            os.environ["PATH"] = before

    def test_the_keeper_ends_with_the_run_whatever_happens(self):
        self.need_bundle()
        out = self.folder / "kept"
        command = [ROOT / "scripts" / "gpu-suite", "--bundle", self.bundle, "--simulated", "--budget", "300", "--out", out / "x"]
        command += [*self.extra("hangs"), "--only", "hangs"]
        process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            end = time.monotonic() + 60
            pid = daemon = None
            while not daemon and time.monotonic() < end:
                time.sleep(0.1)
                found = [line for file in out.rglob("*.jsonl") for line in results.read(file) if line.get("name") == "keeper"]
                pid = found[0]["data"].get("pid") if found else None
                daemon = next((file.read_text() for file in out.rglob("daemon.pid")), None)
            assert pid and alive(pid), f"no keeper: {pid}"
            children = supervise.descendants(process.pid)
            assert pid in children, "the keeper is not the run's own"
        finally:
            process.kill()
            process.wait()
        gone = time.monotonic() + 30
        while alive(pid) and time.monotonic() < gone:
            time.sleep(0.05)
        if daemon:
            # This test ends the processes that a run which was killed outright could not end.
            supervise.send({int(daemon)}, signal.SIGKILL)
        assert not alive(pid), f"the keeper {pid} outlived a run that was killed"

    def test_a_rehearsal_sees_what_is_missing(self):
        """A lease of one step that went well, by lines made here, and the same with each fault."""
        step = {"calibration": leases.Step(60)}
        lease = leases.Lease("tried", "", "", step)
        planned = {"calibration": ["copy", "memset"]}
        keys = [(probe, name) for probe, name in rehearse.keys_of(planned["calibration"])]
        assert ("copy", "to_device_latency") in keys and ("switch", "time_slice") in rehearse.keys_of(["switch"]), f"{keys}"
        lines = [{"kind": "run", "lease": "tried", "simulated": True, "packages": {}}]
        lines += [{"kind": "fact", "phase": "facts", "name": name} for name in ("keeper", *facts.NAMES)]
        lines += [{"kind": "phase", "phase": "facts", "verdict": "ok"}]
        lines += [{"kind": "value", "phase": "calibration", "name": f"{probe}.{name}", "probe": probe, "key": name} for probe, name in keys]
        lines += [{"kind": "case", "phase": "calibration", "name": name, "verdict": "ok"} for name in planned["calibration"]]
        lines += [{"kind": "phase", "phase": "calibration", "verdict": "ok"}, {"kind": "end"}]
        assert rehearse.faults(lease, planned, lines, self.folder) == [], "a fault of a run without one"

        def without(**what):
            return [line for line in lines if any(line.get(key) != value for key, value in what.items())]

        def instead(line, **more):
            return [{**entry, **more} if entry is line else entry for entry in lines]

        case = next(line for line in lines if line["kind"] == "case" and line["name"] == "copy")
        damaged = {
            "no clocksource": without(kind="fact", name="clocksource"),
            "did not finish": without(kind="end"),
            "calibration: nothing": without(kind="phase", phase="calibration"),
            "no verdict on memset": without(kind="case", name="memset"),
            "copy failed": instead(case, verdict="failed", why="of no reason"),
            "copy must go well": instead(case, verdict="left out", why="no time"),
            "no to_device_latency of copy": without(kind="value", key="to_device_latency"),
            "another order": [lines[0], *reversed(lines[1:])],
            "does not name the lease": instead(lines[0], lease="other"),
            "does not say that it is simulated": instead(lines[0], simulated=False),
        }
        for words, changed in damaged.items():
            found = rehearse.faults(lease, planned, changed, self.folder)
            assert any(words in line for line in found), f"{words}: not seen: {found}"
        # Figures of the other steps.
        for name in ("facts", *{name for entry in leases.ALL.values() for name in entry.steps}):
            ok = {"kind": "case", "phase": name, "name": "launches", "verdict": "ok"}
            found = rehearse.faults(lease, {name: ["launches"]}, [*lines, ok], self.folder)
            expected = rehearse.values_of(name, "launches")
            wrote_no = [line for line in found if "wrote no" in line and line.startswith(name)]
            assert len(wrote_no) == len(expected), f"{name}: {wrote_no}, expected {expected}"
        assert rehearse.recordings(self.folder, ["x-infer"]), "a recording that is nowhere was found"

    def test_a_rehearsal_of_a_lease_that_fails_is_a_fault(self):
        self.need_bundle()
        broken = self.folder / "without-probe"
        shutil.copytree(self.bundle, broken)
        manifest = bundle.manifest_of(broken)
        # Programs that end at once, by a manifest of their own: they arrived whole, and do not
        # work.
        for name in ("weft/weft", "release/weft-gpu-probe"):
            program = broken / name
            program.write_text("#!/bin/sh\nexit 7\n")
            manifest["files"][name]["sha256"] = hashlib.sha256(program.read_bytes()).hexdigest()
        (broken / "manifest.json").write_text(json.dumps(manifest))
        done = suite("--rehearse", "--quick", "--budget", 60, "--lease", "more", "--python", sys.executable, bundle_folder=broken)
        assert done.returncode == 1 and "fault: lease more: interception" in done.stdout, done.stdout + done.stderr
        for words in (["--budget", "541"], ["--budget", "3"], ["--only", "cost"], ["--real"]):
            done = suite("--rehearse", *words, bundle_folder=self.bundle, bound=TOOL)
            assert done.returncode in (1, 2) and done.stderr.strip() and "Traceback" not in done.stderr, f"{words}: {done.stderr}"

    def test_shares_fit_the_budget(self):
        for budget in (30.0, 540.0):
            left = budget
            for number, entry in enumerate(phases.ALL):
                share = phases.share(left, entry, phases.ALL[number + 1 :])
                assert 0 < share <= left + 1e-9, f"{entry.name} gets {share} of {left}"
                left -= share
            assert abs(left) < 1e-6, f"{left} s of {budget} are nobody's"
        done = subprocess.run(
            [ROOT / "scripts" / "gpu-suite", "--only", "nothing"], capture_output=True, text=True, check=False,
            timeout=TOOL,
        )
        assert done.returncode == 1 and "no such phase" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr

    def test_a_process_that_ends_badly_is_counted(self):
        self.need_bundle()
        broken, out = self.folder / "bad-exit", self.folder / "exits"
        shutil.copytree(self.bundle, broken)
        client = broken / "release" / "weft-test-client"
        real = client.with_name("weft-test-client-real")
        client.rename(real)
        # It does its work and dies at its end.
        client.write_text(f'#!/bin/sh\n{real} "$@"\nkill -SEGV $$\n')
        client.chmod(0o755)
        manifest = bundle.manifest_of(broken)
        manifest["files"]["release/weft-test-client"]["sha256"] = hashlib.sha256(client.read_bytes()).hexdigest()
        (broken / "manifest.json").write_text(json.dumps(manifest))
        for folder, bad in ((self.bundle, 0), (broken, 3)):
            arguments = ["--simulated", "--quick", "--budget", 60, "--only", "interception", "--case", "exits", "--out", out / str(bad)]
            suite(*arguments, bundle_folder=folder)
            lines = results.read(result_file(out / str(bad)))
            values = {line["name"]: line["value"] for line in lines if line["kind"] == "value"}
            case = next(line for line in lines if line["kind"] == "case" and line["name"] == "exits")
            assert values["exits.tried"] == 3 and values["exits.bad"] == bad, f"{values}"
            assert case["verdict"] == ("failed" if bad else "ok"), f"{case}"

    def test_nothing_is_measured_once_weft_changed_data(self):
        file = self.folder / "wrong.jsonl"
        writer = results.Writer(file, time.time(), "interception")
        writer.write("value", name="data.differing", value=0, unit="hashes")
        assert not suite_.data_differ(file)
        writer.write("value", name="data.differing", value=1, unit="hashes")
        assert suite_.data_differ(file)
        run = SimpleNamespace(wrong=True, stop=lambda: False, deadline=time.monotonic() + 100, file=file, start=time.time())
        suite_.one_phase(run, phases.BY_NAME["sharing"], [])
        last = results.read(file)[-1]
        assert (last["kind"], last["verdict"], last["why"]) == ("phase", "left out", "data differ under weft"), f"{last}"

    def test_failures_are_told_by_their_cause(self):
        cases = [
            {"kind": "case", "phase": "p", "name": f"client{n}/background", "verdict": "failed", "why": f"unnamed: {n * 100}; data 'out{n}' differs"}
            for n in range(1, 7)
        ]
        cases += [{"kind": "case", "phase": "p", "name": "other/alone", "verdict": "failed", "why": "unnamed: 3"}]
        cases += [{"kind": "case", "phase": "p", "name": "fine/alone", "verdict": "ok"}]
        found = report.causes(cases)
        assert {cause: len(names) for cause, names in found.items()} == {"unnamed: N": 7, "data '...' differs": 6}, f"{found}"
        text = report.table([{"kind": "run", "phases": ["p"]}, *cases, {"kind": "phase", "phase": "p", "verdict": "failed", "seconds": 1}])
        assert "unnamed: N" in text and "and 3 more" in text, text

    def test_data_that_differ_in_a_third_run_are_not_held_against_weft(self):
        from gpu.phases import interception

        runs = []

        def execute(device, place, name, _more=()):
            runs.append(name)
            return None, {"hashes": {"same": "1", "by chance": "9"}}, []

        phase = SimpleNamespace(place=lambda name: name, device=lambda place: SimpleNamespace(wait_gone=lambda: True))
        client = SimpleNamespace(name="x", phase=phase, execute=execute)
        reference, gathered = {"hashes": {"same": "1", "by chance": "2"}, "by_chance": ["known"]}, interception.Gathered()
        for _ in range(2):
            assert interception.third(client, reference, gathered) == ["by chance"], f"{reference}"
        assert runs == ["bare3"], f"it ran {runs}"
        assert gathered.by_chance == {"x": ["by chance", "known"]}, f"{gathered.by_chance}"

    def test_a_machine_without_mps_loses_the_conditions_under_mps_alone(self, monkeypatch):
        from gpu import machine
        from gpu.phase import Skip
        from gpu.phases import sharing

        monkeypatch.setattr(machine, "mps_control", lambda: None)
        broker = SimpleNamespace(stop=lambda: None)
        phase = SimpleNamespace(simulated=False, quick=True, place=lambda name: self.folder, device=lambda *_, **__: None, broker=lambda *_, **__: broker)
        condition = sharing.Condition("mps", mps=True)
        pair = sharing.Pair(phase, "a", "b", [condition])
        pair.alone = {"p50": 1.0, "p99": 1.0, "rate": 1.0}
        with contextlib.ExitStack() as stack:
            for is_mps in (False, True):
                stage = pair.stages[is_mps] = sharing.Stage(pair, is_mps)
                stage.attempt(stage.open, stack, [], False)
            assert pair.stages[False].trouble is None
            with pytest.raises(Skip, match="nvidia-cuda-mps-control"):
                pair.under(condition)

    def test_a_figure_of_few_requests_is_kept_and_marked(self):
        from gpu.phases import sharing

        values = {}
        stub = type("Stub", (), {"quick": False, "simulated": False, "value": lambda self, name, value, unit, **more: values.update({name: more})})
        pair = sharing.Pair(stub(), "a", "b", ())
        for count, few in ((sharing.ENOUGH - 1, True), (sharing.ENOUGH, None)):
            pair.tell("default", [1.0] * count, 1.0)
            for name in ("p50", "p99"):
                more = values[f"a+b: default: {name}"]
                assert more["few"] is few and more["n"] == count and ("only" in more["how"]) == bool(few), f"{count}: {more}"

    def test_a_torn_line_swallows_no_other(self):
        file = self.folder / "torn.jsonl"
        first = results.Writer(file, time.time(), "a")
        first.write("value", name="whole", value=1, unit="x")
        os.write(first.file, b'{"kind": "value", "na')
        results.Writer(file, time.time(), "b").write("value", name="next", value=2, unit="x")
        assert [line["name"] for line in results.read(file)] == ["whole", "next"], file.read_text()

    def test_mps_daemon_is_ended_by_its_id(self):
        """A stand-in for NVIDIA's control program: a daemon, a server in a session of its own,
        pipes in the private folder."""
        place = self.folder / "mps"
        (place / "bin").mkdir(parents=True)
        program = place / "bin" / "nvidia-cuda-mps-control"
        program.write_text(FAKE_MPS.replace("#!PYTHON", f"#!{sys.executable}"))
        program.chmod(0o755)
        before = os.environ["PATH"]
        # The time in which it must end when asked.
        patience, mps.STOP = mps.STOP, 1.0
        os.environ["PATH"] = f"{place / 'bin'}:{before}"
        try:
            for stubborn in ("", "stubborn"):
                work = place / f"work{stubborn}"
                work.mkdir()
                if stubborn:
                    (work / "stubborn").touch()
                with mps.Service(work) as service:
                    assert service.variables["CUDA_MPS_PIPE_DIRECTORY"].startswith(str(work)), "not in a folder of its own"
                    # The control program starts its server by name.
                    assert service.environment["PATH"].split(os.pathsep)[-1] == str(place / "bin"), service.environment["PATH"]
                    daemon, servers = service.job.pid, service.servers()
                    assert len(servers) == 1 and alive(servers[0]) and alive(daemon), f"servers {servers}"
                assert not alive(daemon) and not alive(servers[0]), f"daemon {daemon} or server {servers[0]} outlived its use"
        finally:
            os.environ["PATH"], mps.STOP = before, patience
            supervise.reap()

    @pytest.mark.timeout(3600)
    def test_the_leases_are_rehearsed(self):
        """Every step, as a real GPU is given them."""
        self.need_bundle()
        out = self.folder / "leases"
        bound = len(leases.ALL) * (LEASE_BUDGET + rehearse.BEYOND)
        done = suite("--rehearse", "--quick", "--budget", LEASE_BUDGET, "--out", out, bundle_folder=self.bundle, bound=bound)
        print(done.stderr)
        assert done.returncode == 0 and f"{len(leases.ALL)} leases rehearsed, 0 faults" in done.stdout, done.stdout
        archives = {name: out / name / f"lease-{name}.tgz" for name in leases.ALL}
        files = {name: result_file(unpacked(archive, self.folder / f"brought-{name}")) for name, archive in archives.items()}
        each = {name: results.read(file) for name, file in files.items()}
        heads = {name: report.head(lines) for name, lines in each.items()}
        for name, file in files.items():
            assert heads[name]["simulated"] and file.parent.name.startswith("simulated-"), f"{file} looks like a real GPU's"
        torch = {"torch", "torchvision"} <= set(heads["first"]["packages"])
        for lease, lines in each.items():
            for name, line in report.of_phases(lines):
                if name in ("sharing", "record") and not torch:
                    assert line["verdict"] == "left out" and "torch" in line["why"], f"{lease}, {name}: {line}"
                else:
                    assert line["verdict"] == "ok", f"{lease}, {name}: {line}"
        values = {line["name"]: line["value"] for line in each["first"] if line["kind"] == "value"}
        assert values["launches"] > 0 and values["launches.unnamed"] == 0, f"launches {values.get('launches')}"
        assert values["data.differing"] == 0 and (values["data.compared"] > 0 or not torch), f"data {values.get('data.compared')}"
        assert values["symbols.driver"] > 600 and values["symbols.table_lacks"] == 0, f"symbols {values.get('symbols.driver')}"
        for name in ("bare", "attached", "foreground", "background"):
            assert values[f"launch.{name}.burst"] > 0, f"no time of a launch, {name}"
        if torch:
            for condition in ("alone", "weft", "mps weft both profiled"):
                assert any(f": {condition}: p50" in name for name in values), f"no latency under {condition}"
            # The client priority that `weft run` set, by the job's own environment.
            asked = next(line["data"] for line in each["first"] if line["kind"] == "fact" and "client priorities" in line["name"])
            assert {name for name, priority in asked.items() if priority == "1"} == {"weft batch", "mps weft batch"}, f"{asked}"
        self.folded(out, files["first"], heads["first"])

    def folded(self, out, file, run):
        """The same archives through scripts/gpu-results: once, twice, not into the repository."""
        done = subprocess.run([ROOT / "scripts" / "gpu-results", out], capture_output=True, text=True, check=False, timeout=TOOL)
        assert done.returncode == 1 and "simulated" in done.stderr, f"the repository took simulated results: {done.stdout}{done.stderr}"
        into = self.folder / "folded"
        command = [ROOT / "scripts" / "gpu-results", out, "--into", into]
        subprocess.run(command, capture_output=True, check=True, timeout=TOOL)
        first = snapshot(into)
        assert all("simulated" in str(path) for path in first), f"a name like a real GPU's: {sorted(map(str, first))}"
        subprocess.run(command, capture_output=True, check=True, timeout=TOOL)
        assert snapshot(into) == first, "folding the same run again changed something"
        table = next(text for path, text in first.items() if path.name == "RESULTS.md").decode()
        assert "SIMULATED" in table and run["run"] in table, "the table does not say what it is of"
        for name in ("symbols.driver", "copy.to_device_latency", "launch.background.burst"):
            assert f"| {name} " in table, f"{name} is not in the table"
        toml = [path for path in first if path.suffix == ".toml"]
        assert len(toml) == 1, f"calibration files {toml}"
        recorded = [path for path in first if path.suffix in (".profile", ".trace")]
        assert bool(recorded) == bool(list(file.parent.glob("*.tar"))), f"recordings {recorded}"

    # Folding.

    def run_file(self, place, stamp, values, **head):
        """A result file of our own making: a real GPU's, by its own fields."""
        place.mkdir(parents=True, exist_ok=True)
        file = place / f"{stamp}.jsonl"
        line = {
            "kind": "run",
            "run": stamp,
            "gpu": "NVIDIA H100 80GB HBM3",
            "simulated": False,
            "driver": {"cuda": 13000, "simulated": False},
        }
        lines = [{**line, "phases": ["calibration"], "commit": "c" * 40, "packages": {}, "budget": 60, **head}]
        lines += [{"kind": "value", "phase": "calibration", "how": "weft-gpu-probe calibration", **value} for value in values]
        lines += [{"kind": "phase", "phase": "calibration", "verdict": "ok", "seconds": 1}]
        file.write_text("".join(json.dumps(entry) + "\n" for entry in lines))
        return file

    def test_newer_runs_replace_and_older_ones_do_not(self):
        place, root = self.folder / "runs", self.folder / "root"
        switch = {"probe": "switch", "key": "switch", "name": "switch.switch", "unit": "ns"}
        slice_ = {"probe": "switch", "key": "time_slice", "name": "switch.time_slice", "unit": "ns"}
        first = self.run_file(
            place,
            "20300101T000000Z",
            [{**switch, "value": 90000.4, "n": 5, "p10": 80000.0, "p90": 99000.0}, {**slice_, "value": 2e6}],
        )
        second = self.run_file(place, "20300102T000000Z", [{**switch, "value": 70000.0}])
        name = "nvidia-h100-80gb-hbm3"
        table, toml = (
            root / "profiles" / "recorded" / name / "RESULTS.md",
            root / "tests" / "simgpu" / "calibration" / f"{name}.toml",
        )
        fold.fold([first], root, False)
        values = tomllib.loads(toml.read_text())["values"]
        assert values["switch_ns"]["value"] == 90000 and values["switch_ns"]["p10"] == 80000, f"{values}"
        assert "20300101T000000Z" in values["switch_ns"]["source"], f"{values}"
        fold.fold([second], root, False)
        values = tomllib.loads(toml.read_text())["values"]
        assert values["switch_ns"]["value"] == 70000 and "p10" not in values["switch_ns"], f"{values}"
        assert values["slice_ns"]["value"] == 2_000_000 and "20300101" in values["slice_ns"]["source"], f"{values}"
        after = snapshot(root)
        fold.fold([first], root, False)
        fold.fold([place], root, False)
        assert snapshot(root) == after, "an older run changed what a newer one measured"
        assert table.read_text().count("| switch.switch ") == 1, "a figure stands there twice"
        device = paths.SIMGPU_DEVICE
        usage = subprocess.run([device, "--help"], capture_output=True, text=True, check=False, timeout=TOOL)
        if "calibration" not in usage.stdout + usage.stderr:
            return
        done = subprocess.run([device, "calibration", toml], capture_output=True, text=True, check=False, timeout=TOOL)
        assert done.returncode == 0 and "70000" in done.stdout, f"the simulated GPU does not read it: {done.stdout}{done.stderr}"

    def test_simulated_results_never_look_like_a_real_gpus(self):
        value = [{"probe": "switch", "key": "switch", "name": "switch.switch", "unit": "ns", "value": 1000}]
        heads = [
            {"simulated": True},
            {"driver": {"simulated": True, "cuda": 13000}},
            {"gpu": "NVIDIA A100-SXM4-40GB (simulated)"},
            {"simulated": None},
        ]
        for number, head in enumerate(heads):
            file = self.run_file(self.folder / f"lies{number}", "20300101T000000Z", value, **head)
            try:
                fold.fold([file], self.folder / "nowhere", False)
                pytest.fail(f"folded: {head}")
            except fold.Trouble as why:
                assert "simulated" in str(why), str(why)
            fold.fold([file], self.folder / f"root{number}", True)
            names = [path for path in snapshot(self.folder / f"root{number}")]
            assert names and all("simulated-" in str(path) for path in names), f"{head}: {names}"
        assert not (self.folder / "nowhere").exists(), "something was written"

    def test_an_older_recording_does_not_replace_a_newer_one(self):
        import io

        place, root = self.folder / "recordings", self.folder / "recordings-root"
        for stamp in ("20300102T000000Z", "20300101T000000Z"):
            file = self.run_file(
                place, stamp, [{"phase": "record", "name": "m-infer.trace.bytes", "unit": "bytes", "value": 16}]
            )
            with tarfile.open(place / f"{stamp}.recorded.tar", "w") as tar:
                entry = tarfile.TarInfo("m-infer.trace")
                entry.size = len(stamp)
                tar.addfile(entry, io.BytesIO(stamp.encode()))
            fold.fold([file], root, False)
        kept = [path.read_bytes() for path in root.rglob("*.trace")]
        assert kept == [b"20300102T000000Z"], f"{kept}"

    def test_what_a_lease_brought_home_is_folded_and_nothing_else(self):
        place = self.folder / "brought"
        value = {"probe": "switch", "key": "switch", "name": "switch.switch", "unit": "ns", "value": 1000.0}
        file = self.run_file(place / "made" / "nvidia-h100-80gb-hbm3", "20300101T000000Z", [value])
        archive = place / "lease-first.tgz"
        for name, fault in ((f"nvidia-h100-80gb-hbm3/{file.name}", None), (f"../{file.name}", "no result"), ("nvidia-h100/run.sh", "no result")):
            with tarfile.open(archive, "w:gz") as tar:
                tar.add(file, name)
            if fault is None:
                said = fold.fold([archive], self.folder / "brought-root", False)
                assert f"{file.name}: nvidia-h100-80gb-hbm3: 3 new" in said[0], f"{said}"
                continue
            with pytest.raises(fold.Trouble, match=fault):
                fold.fold([archive], self.folder / "brought-no", False)
        archive.write_bytes(archive.read_bytes()[:100])
        with pytest.raises(fold.Trouble, match="not a complete archive"):
            fold.fold([archive], self.folder / "brought-no", False)
        assert not (self.folder / "brought-no").exists(), "something was written"

    def test_an_archive_with_anything_else_is_refused(self):
        import io

        file = self.run_file(self.folder / "tar", "20300101T000000Z", [])
        for name in ("../../escape.trace", "program.sh", "/abs.profile", "sub/x.trace"):
            with tarfile.open(file.with_suffix("").with_name(file.stem + ".recorded.tar"), "w") as tar:
                entry = tarfile.TarInfo(name)
                entry.size = 1
                tar.addfile(entry, io.BytesIO(b"x"))
            try:
                fold.fold([file], self.folder / "tarroot", False)
                pytest.fail(f"unpacked {name}")
            except fold.Trouble as why:
                assert "no recording" in str(why), str(why)
        assert not list(self.folder.rglob("*escape*")), "a file escaped"


# Additions after Python 3.10: modules, names of modules, builtins.
NEW_MODULES = {"tomllib", "wsgiref.types"}
NEW_NAMES = {
    "asyncio": {"TaskGroup", "Runner", "timeout", "timeout_at", "Barrier"},
    "contextlib": {"chdir"},
    "datetime": {"UTC"},
    "enum": {"StrEnum", "ReprEnum", "EnumCheck", "verify", "member", "nonmember", "global_enum"},
    "hashlib": {"file_digest"},
    "inspect": {"getmembers_static"},
    "itertools": {"batched"},
    "logging": {"getLevelNamesMapping"},
    "math": {"cbrt", "exp2", "sumprod"},
    "operator": {"call"},
    "typing": {"Self", "LiteralString", "Never", "assert_never", "assert_type", "reveal_type", "Required", "NotRequired", "TypeVarTuple", "Unpack", "override"},
    "calendar": {"Month", "Day"},
}  # fmt: skip
NEW_BUILTINS = {"ExceptionGroup", "BaseExceptionGroup", "PythonFinalizationError"}


def newer_than_3_10(text):
    """Parts of a program's text that Python 3.10 does not have, except imports that are tried and
    caught."""
    try:
        tree = ast.parse(text, feature_version=(3, 10))
    except SyntaxError as error:
        return [f"syntax: {error}"]
    guarded = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.Try)
        and any(isinstance(h.type, ast.Name) and h.type.id in ("ImportError", "ModuleNotFoundError") for h in block.handlers)
        for part in block.body
        for node in ast.walk(part)
    }
    found = []
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name in NEW_MODULES]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found += [node.module] if node.module in NEW_MODULES else []
            found += [f"{node.module}.{alias.name}" for alias in node.names if alias.name in NEW_NAMES.get(node.module, ())]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in NEW_NAMES.get(node.value.id, ()):
            found.append(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.Name) and node.id in NEW_BUILTINS:
            found.append(node.id)
        elif type(node).__name__ == "TryStar":
            found.append("except*")
    return found


def python_3_10():
    """A Python 3.10 of this machine, or None."""
    places = [shutil.which("python3.10"), *sorted((Path.home() / ".pyenv" / "versions").glob("3.10.*/bin/python3.10")), Path("/usr/bin/python3.10")]
    for place in filter(None, places):
        try:
            done = subprocess.run([place, "-c", "import sys; print(sys.version_info[:2] == (3, 10))"], capture_output=True, text=True, timeout=TOOL, check=False)
        except OSError:
            continue
        if done.stdout.strip() == "True":
            return Path(place)
    return None


def bare_python(place):
    """This Python, without any package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True, timeout=TOOL)
    return place / "bin" / "python"


FAKE_MPS = """#!PYTHON
import os, signal, sys, time
pipes = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
state = os.path.join(pipes, "server")
if sys.argv[1:] == ["-f"]:
    stubborn = os.path.exists(os.path.join(os.path.dirname(pipes), "stubborn"))
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    read, write = os.pipe()
    if not os.fork():
        os.setsid()
        os.execv(sys.executable, ["nvidia-cuda-mps-server", "-c", "import signal,time\\n" + ("signal.signal(15, signal.SIG_IGN)\\n" if stubborn else "") + "time.sleep(900)"])
    # The server is this program's child.
    children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    open(state, "w").write(children[0])
    open(os.path.join(pipes, "control"), "w").close()
    while stubborn or not os.path.exists(os.path.join(pipes, "quit")):
        time.sleep(0.05)
    os.kill(int(children[0]), 15)
    os.waitpid(int(children[0]), 0)
else:
    words = sys.stdin.read().split()
    if words[0] == "get_server_list":
        print(open(state).read())
    elif words[0] == "quit":
        open(os.path.join(pipes, "quit"), "w").close()
"""


def snapshot(root):
    return {path.relative_to(root): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
