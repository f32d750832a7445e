# SPDX-License-Identifier: MIT OR Apache-2.0
"""Output for people: progress on stderr, tables on stdout."""

import math
import os
import statistics
import sys
import time


class Progress:
    """A line that is overwritten on a terminal, or one line per step elsewhere."""

    def __init__(self, total, what):
        self.total = total
        self.done = 0
        self.what = what
        self.start = time.monotonic()
        self.tty = sys.stderr.isatty()

    def step(self, name):
        """Shows the name of the current step."""
        if self.tty:
            width = 24
            filled = width * self.done // max(self.total, 1)
            bar = "#" * filled + "." * (width - filled)
            sys.stderr.write(f"\r\x1b[K{self.what} [{bar}] {self.done}/{self.total} {time.monotonic() - self.start:.0f}s {name}")
            sys.stderr.flush()

    def finish_one(self, line):
        """Counts one more as done; `line` describes its result."""
        self.done += 1
        self.line(f"[{self.done}/{self.total}] {line}")

    def line(self, text):
        if self.tty:
            sys.stderr.write("\r\x1b[K")
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def close(self):
        if self.tty:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def table(headings, rows):
    """A table as Markdown, aligned, so that it is readable on a terminal and in a README."""
    cells = [[str(c) for c in row] for row in [headings, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headings))]
    lines = []
    for number, row in enumerate(cells):
        lines.append("| " + " | ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))) + " |")
        if number == 0:
            lines.append("|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|")
    return "\n".join(lines)


def quantile(values, q):
    """The q-quantile of a sample (nearest rank)."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    rank = max(0, min(len(ordered) - 1, int(q * len(ordered) + 0.999999) - 1))
    return ordered[rank]


def median_interval(values):
    """The median of a sample and its 95 % confidence interval. It uses only the ranks, so it holds
    for any distribution.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    # The number of values below the median is binomial; 0.98 = 1.96 / 2 standard deviations to
    # either side.
    reach = 0.98 * math.sqrt(len(ordered))
    low = max(0, math.floor(len(ordered) / 2 - reach))
    high = min(len(ordered) - 1, math.ceil(len(ordered) / 2 + reach))
    return statistics.median(ordered), ordered[low], ordered[high]


def warn_if_busy():
    """Prints a note if other work runs on this machine, since that changes the figures. Returns the
    load at the start.
    """
    load = os.getloadavg()[0]
    if load > 1.0:
        print(
            f"note: this machine is busy already (load {load:.1f} on {os.cpu_count()} cores): the figures will show it",
            file=sys.stderr,
            flush=True,
        )
    return load


def verdict(runner, cases, failed, skipped=0):
    """Prints the end of a runner that counts its own cases, which scripts/test reads: the names of
    failed cases, then the counts. Returns the exit code.
    """
    for name in failed:
        print(f"failed: {runner}/{name}" if runner else f"failed: {name}")
    passed = cases - len(failed) - skipped
    print(f"{passed} passed, {len(failed)} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed or not passed else 0
