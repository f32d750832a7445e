"""Why a case failed, out of what its runner printed: for the end of a run, where often nothing else of it can be read.

A failed case begins with a line that says FAILED and ends where the next case or the runner's end begins.
"""

import re
import xml.etree.ElementTree
from collections import Counter

# Of one case: what it is, its first lines, where an assertion stands, those of its error, and its
# last lines. Of one stage so many cases; of one line so much.
FIRST, LINES = 3, 12
CASES = 8
WIDTH = 400

# `[3/9] order/alone FAILED why`, `FAILED  name`, `killed 3.2s FAILED why`.
FAILED = re.compile(r"^(?:\[\d+/\d+\] )?(?:\S[^:]{0,120}? )?FAILED(?:\s|$)")
# What follows a case.
NEXT = re.compile(r"^(?:\[\d+/\d+\] |ok\b|failed: |\d+ passed, \d+ failed|\S+ \d+\.\d+s (?:ok|FAILED)\b|\S+ \.\.\.$|kept: )")
ERROR = re.compile(r"^\s*[\w.]*(?:Error|Failure|Exception|Expired|Trouble)\b|^thread '.*' .*panicked at ")
# Of cargo test.
OUTPUT = re.compile(r"^---- (\S+) stdout ----$")
OUTPUT_END = re.compile(r"^(?:---- \S+ stdout ----|failures:|test result: .*)$")


def short(block):
    """A case's lines, no more than are wanted."""
    block = [line.rstrip()[:WIDTH] for line in block if line.strip()]
    if len(block) <= 1 + 2 * FIRST + LINES:
        return block
    kept = set(range(1 + FIRST)) | set(range(len(block) - LINES, len(block)))
    # The output before the assertion may be longer than what is kept.
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
    """Of a runner that counts its own cases; each text is one of its streams."""
    found = [block for text in texts for block in blocks(text, FAILED.match, NEXT.match)]
    return bounded(found) or of_stage(*texts)


def of_junit(path):
    """Of pytest's file: how many cases passed, failed and were skipped, why those that failed did,
    and reasons of skips, each with how many cases it kept.
    """
    passed, failed, skipped, why, untried = 0, 0, 0, [], Counter()
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        wrong = [*case.findall("failure"), *case.findall("error")]
        if wrong:
            failed += 1
            why.append([f"FAILED {case.get('classname')}::{case.get('name')}"])
            for one in wrong:
                why[-1] += (one.text or "").splitlines()
        elif (skip := case.find("skipped")) is not None:
            skipped += 1
            untried[skip.get("message") or "no reason was given"] += 1
        else:
            passed += 1
    return (passed, failed, skipped), bounded(why), untried


def of_cargo(text):
    """Of cargo test: what the failed tests printed; else the last errors of the compiler, or the end of it."""
    found = blocks(text, OUTPUT.match, OUTPUT_END.match)
    if not found:
        found = blocks(text, lambda line: line.startswith(("error", "signal:", "thread '")), lambda line: not line.strip())
    return bounded(found) or of_stage(text)


def of_stage(*texts):
    """Of anything else: its last lines."""
    return [line.rstrip()[:WIDTH] for text in texts for line in [line for line in text.splitlines() if line.strip()][-LINES:]]
