# SPDX-License-Identifier: MIT OR Apache-2.0
"""The tests of all packages: built by cargo, their programs run several at a time.

`cargo test` runs one program after the other, though many of them mostly wait. A program that does
not end is ended, with a report of its state; the others continue.
"""

import concurrent.futures
import json
import os
import re
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from .. import paths, workspaces
from . import reasons, stages, watch

# Variables that scripts/test sets for cargo for the whole run.
ONCE = {
    # clippy in the compiler's place, as `cargo clippy` calls it. Warnings are errors.
    "RUSTC_WORKSPACE_WRAPPER": str(paths.ROOT / "scripts" / "harness" / "ci" / "compiler"),
    "CLIPPY_ARGS": "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__",
}
# Compiling all packages and tests.
BUILD_MINUTES = 40
# Bound of one program. The longest takes half a minute on two busy cores.
PROGRAM_MINUTES = 10


def results(text):
    """Sums the result lines of test programs: passed, failed, ignored."""
    pattern = r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored"
    found = re.findall(pattern, text, re.MULTILINE)
    return tuple(sum(int(row[i]) for row in found) for i in range(3))


def programs(text):
    """(title, folder of the package, program) of each test program, from cargo's messages."""
    found = []
    for line in text.splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if not message.get("executable") or "bench" in message["target"]["kind"]:
            continue
        if message["profile"]["test"]:
            folder = Path(message["manifest_path"]).parent
            source = Path(message["target"]["src_path"]).relative_to(folder)
            name = message["target"]["name"]
            found.append((f"{name} {source}", folder, message["executable"]))
    return found


class Programs:
    """Runs test programs, one per core at a time, and keeps their output."""

    def __init__(self, words, log):
        self.words, self.log, self.lock = words, log, threading.Lock()
        self.failed = []
        self.done = self.all = 0
        self.shown = time.monotonic()

    def run(self, program):
        """Runs one; its whole output goes into the log at once."""
        title, folder, command = program
        # Through a file: a process that a test leaves behind would hold a pipe open.
        with tempfile.TemporaryFile("w+", errors="replace") as out:
            process = subprocess.Popen(
                [*command, *self.words],
                cwd=folder,
                env={**os.environ, "CARGO_MANIFEST_DIR": str(folder), "WEFT_TEST_BUILT": "1"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
            ended = ""
            try:
                process.wait(PROGRAM_MINUTES * 60)
            except subprocess.TimeoutExpired:
                ended = f"{title} is not done after {PROGRAM_MINUTES} minutes and was ended. "
                ended += f"What it did:\n{watch.diagnosis(process.pid)}\n"
                watch.end([*watch.descendants(process.pid), process.pid])
                process.wait()
            out.seek(0)
            said = out.read() + ended
        with self.lock:
            with open(self.log, "a") as log:
                log.write(f"     Running {title}\n{said}\n")
            # A program that was ended or aborted printed no result.
            if process.returncode and not results(said)[1]:
                self.failed.append(f"{title}: exit code {process.returncode}")
            self.done += 1
            if time.monotonic() - self.shown > stages.SIGN_OF_LIFE:
                self.shown = time.monotonic()
                stages.say(f"        cargo-test: {self.done} of {self.all} programs")

    def run_all(self, programs):
        self.all = len(programs)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(self.run, programs))


def messages(workspace):
    """The file with cargo's messages of a workspace's last build."""
    return stages.LOGS / f"build-{workspace.name}.log"


def mark(workspace):
    """A file that is there while the tests of a workspace have passed as they are built."""
    return stages.LOGS / f"passed-{workspace.name}"


def build(workspace):
    """Lints and compiles a workspace with its tests. Returns the ended command and its exit code."""
    command = workspace.build("--all-targets", "--message-format", "json-render-diagnostics")
    running = stages.Command(messages(workspace).stem, command)
    code = running.wait(BUILD_MINUTES)
    if code or '"fresh":false' in running.text():
        mark(workspace).unlink(missing_ok=True)
    return running, code


def stage(tally, words, chosen):
    """Runs the tests of these workspaces that `build` made; cargo runs the documents' examples."""
    begin = time.monotonic()
    log = stages.LOGS / "cargo-test.log"
    log.unlink(missing_ok=True)
    own = []
    for workspace in chosen:
        found = programs(messages(workspace).read_text(errors="replace"))
        own += [(title, folder, [program]) for title, folder, program in found]
    # The longest first: programs of tests/ run whole jobs, unit tests of a library mostly compute.
    own.sort(key=lambda program: "src/" in program[0])
    # The other workspaces have no examples.
    options = ["--workspace", "--no-fail-fast", "--doc", "--"]
    examples = ("examples in documents", paths.ROOT, workspaces.NODE.cargo("test", *options))
    player = Programs(words, log)
    player.run_all([examples, *own])
    text = log.read_text(errors="replace")
    passed, failed, ignored = results(text)
    failures = re.findall(r"^test (.+) \.\.\. FAILED$", text, re.MULTILINE) + player.failed
    if failures:
        stages.say("    failed: " + ", ".join(failures))
    failed += len(player.failed)
    if not (failed or words):
        for workspace in chosen:
            mark(workspace).touch()
    why = [*player.failed, *reasons.of_cargo(text)]
    tally.add("cargo-test", passed, failed, ignored, f"{time.monotonic() - begin:.0f} s", why)
