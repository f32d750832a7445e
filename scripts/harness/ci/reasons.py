# SPDX-License-Identifier: MIT OR Apache-2.0
"""Extracts the reasons of failed cases from a runner's output, for the end of a run. Often that is
all that can be read.

A failed case begins with a line that contains FAILED. It ends where the next case or the runner's
end begins.
"""

import re
import xml.etree.ElementTree
from collections import Counter

# Kept of a case: its name, its first lines, the first lines of its error, and its last lines.
# CASES: cases of a stage. WIDTH: characters of a line.
FIRST, LINES = 3, 12
CASES = 8
WIDTH = 400

# `[3/9] order/alone FAILED why`, `FAILED  name`, `killed 3.2s FAILED why`.
FAILED = re.compile(r"^(?:\[\d+/\d+\] )?(?:\S[^:]{0,120}? )?FAILED(?:\s|$)")
# Lines that follow a case.
NEXT = re.compile(r"^(?:\[\d+/\d+\] |ok\b|failed: |\d+ passed, \d+ failed|\S+ \d+\.\d+s (?:ok|FAILED)\b|\S+ \.\.\.$|kept: )")
ERROR = re.compile(r"^\s*[\w.]*(?:Error|Failure|Exception|Expired|Trouble)\b|^thread '.*' .*panicked at ")
# Output of cargo test: a test program begins; a test's output; the calls that led to a panic.
PROGRAM = re.compile(r"^     Running (.+)$")
OUTPUT = re.compile(r"^---- (\S+) stdout ----$")
BACKTRACE = re.compile(r"^stack backtrace:\n(?:[ \t].*\n)*(?:note: .*\n?)?", re.MULTILINE)
OUTPUT_END = re.compile(r"^(?:---- \S+ stdout ----|failures:|test result: .*)$")


def short(block):
    """A case's lines, shortened."""
    block = [line.rstrip()[:WIDTH] for line in block if line.strip()]
    if len(block) <= 1 + 2 * FIRST + LINES:
        return block
    kept = set(range(1 + FIRST)) | set(range(len(block) - LINES, len(block)))
    # The output before the assertion may be longer than the kept lines.
    error = next((number for number, line in enumerate(block) if ERROR.match(line)), 0)
    kept |= set(range(error, min(error + FIRST, len(block))))
    lines = []
    for number in sorted(kept):
        if lines and number - 1 not in kept:
            lines.append("[...]")
        lines.append(block[number])
    return lines


def bounded(blocks):
    more = len(blocks) - CASES
    kept = [line for block in blocks[:CASES] for line in short(block)]
    return kept + ([f"[and {more} more]"] if more > 0 else [])


def blocks(text, begins, ends):
    found, block = [], None
    for line in text.splitlines():
        if begins(line):
            block = [line]
            found.append(block)
        elif block is not None and ends(line):
            block = None
        elif block is not None:
            block.append(line)
    return found


def of_runner(*texts):
    """Reasons of a runner that counts its own cases. Each text is one of its streams."""
    found = [block for text in texts for block in blocks(text, FAILED.match, NEXT.match)]
    return bounded(found) or of_stage(*texts)


def of_junit(path):
    """Results in pytest's file: the numbers of cases that passed, failed and were skipped, the
    reasons of the failures, and reasons of skips, each with its number of cases.
    """
    passed, failed, skipped, why, untried = 0, 0, 0, [], Counter()
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        wrong = [*case.findall("failure"), *case.findall("error")]
        if wrong:
            failed += 1
            why.append([f"FAILED {case.get('classname')}::{case.get('name')}"])
            for one in wrong:
                why[-1] += BACKTRACE.sub("", one.text or "").splitlines()
        elif (skip := case.find("skipped")) is not None:
            skipped += 1
            untried[skip.get("message") or "no reason was given"] += 1
        else:
            passed += 1
    return (passed, failed, skipped), bounded(why), untried


def of_cargo(text):
    """Reasons of cargo test: the output of the failed tests, with their program, assertion and
    place; else the last errors of the compiler, or the end of the output.
    """
    text = BACKTRACE.sub("", text)
    title, found = "", []
    for line in text.splitlines():
        if program := PROGRAM.match(line):
            title = program[1]
        elif output := OUTPUT.match(line):
            found.append([f"FAILED {title}: {output[1]}".replace("FAILED : ", "FAILED ")])
            inside = True
        elif found and OUTPUT_END.match(line):
            inside = False
        elif found and inside:
            found[-1].append(line)
    if not found:
        found = blocks(text, lambda line: line.startswith(("error", "signal:", "thread '")), lambda line: not line.strip())
    return bounded(found) or of_stage(text)


def of_stage(*texts):
    """Reasons of any other stage: its last lines."""
    return [line.rstrip()[:WIDTH] for text in texts for line in [line for line in text.splitlines() if line.strip()][-LINES:]]
