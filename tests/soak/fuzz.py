# SPDX-License-Identifier: MIT OR Apache-2.0
"""Random bytes on all code that reads bytes from outside: libFuzzer on the crate tests/soak/fuzz,
led by coverage.

It runs on the stable compiler: the flags below have rustc put libFuzzer's counters in, into a
folder of its own. There is no address sanitizer (that needs a nightly compiler). The fuzzer finds a
panic, an overflow, a broken promise, more memory than an input may take, and an input that takes
long. The inputs that it finds lie in target/soak-failures.
"""

import os
import re
import subprocess
import sys
import time

import stage
from harness import paths

CRATE = stage.HERE / "fuzz"
TARGET = paths.TARGET / "fuzz"
TRIPLE = "x86_64-unknown-linux-gnu"
PROGRAM = TARGET / TRIPLE / "debug" / "weft-fuzz"
# Inputs that reached something new, kept from run to run by hand; CI begins with the seeds.
CORPUS = TARGET / "corpus"
TARGETS = ("packet", "desk", "lane", "turn", "profile", "trace", "ledger", "known")
COVERAGE = ("-Cpasses=sancov-module", *(f"-Cllvm-args=-sanitizer-coverage-{what}" for what in ("level=4", "inline-8bit-counters", "pc-table", "trace-compares")))
# An input that takes longer hangs, seconds. The slowest takes some milliseconds.
LONG = 20


def build():
    """Builds the crate if it changed. Returns the seconds that it took."""
    begin = time.monotonic()
    # With a target named, build scripts and macros are built without counters.
    environment = {**os.environ, "RUSTFLAGS": " ".join(COVERAGE), "CARGO_TARGET_DIR": str(TARGET)}
    command = [os.environ.get("CARGO", "cargo"), "build", "--quiet", "--target", TRIPLE]
    done = subprocess.run(command, cwd=CRATE, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, "the fuzz crate is not built\n" + done.stderr[-3000:]
    return time.monotonic() - begin


def run(target, corpus, seconds, seed):
    """A run of this many seconds: (inputs, the failure or None)."""
    stage.FAILURES.mkdir(parents=True, exist_ok=True)
    corpus.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "WEFT_FUZZ": target, "RUST_BACKTRACE": "0"}
    seeds = subprocess.run([PROGRAM], env={**environment, "WEFT_FUZZ_SEEDS": str(corpus)}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=stage.BOUND, check=False)
    assert seeds.returncode == 0 and any(corpus.iterdir()), f"{target}: no seeds\n{seeds.stderr}"
    options = [f"-max_total_time={max(1, round(seconds))}", f"-seed={seed % (1 << 32) or 1}", f"-timeout={LONG}", "-rss_limit_mb=2048", "-print_final_stats=1", "-reload=0"]
    options.append(f"-artifact_prefix={stage.FAILURES}/fuzz-{target}-")
    done = subprocess.run([PROGRAM, corpus, *options], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=seconds + 10 * stage.BOUND, check=False)
    found = re.findall(r"^stat::number_of_executed_units:\s+(\d+)$", done.stderr, re.MULTILINE)
    counted = re.findall(r"^#(\d+)", done.stderr, re.MULTILINE)
    inputs = int(found[-1]) if found else int(counted[-1]) if counted else 0
    if done.returncode == 0:
        return inputs, None
    kept = re.findall(r"Test unit written to (\S+)", done.stderr)
    said = [line for line in done.stderr.splitlines() if re.search(r"panicked|ERROR: libFuzzer|more than it may|assertion|thread '", line)]
    replay = f"WEFT_FUZZ={target} {PROGRAM} {kept[-1]}" if kept else f"seed {seed}"
    return inputs, "\n    ".join([f"{target}: exit {done.returncode}; {replay}", *(said or done.stderr.splitlines())[-6:]])


def play(folder, options, seconds, seed, figures, progress):
    """The part: each target for its share. `options.corpus`: continue with the inputs of earlier
    runs, and keep this run's."""
    took = build()
    if took > 5:
        print(f"soak: the fuzz crate was built in {took:.0f} s", file=sys.stderr, flush=True)
    before = len(figures.troubles)
    lines = []
    for target in TARGETS:
        corpus = CORPUS / target if options.corpus else folder / target
        inputs, wrong = run(target, corpus, seconds / len(TARGETS), seed)
        figures.inputs += inputs
        lines.append(f"{target} {inputs:,}")
        if wrong:
            figures.trouble("hung" if "timeout" in wrong else "lost", wrong)
        elif not inputs:
            figures.trouble("lost", f"{target}: no input was tried")
        progress(f"{target}: {inputs:,} inputs; {figures.line()}")
    figures.settle(before)
    return ", ".join(lines)
