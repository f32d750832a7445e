"""Prints for people: progress on stderr, tables on stdout."""

import sys
import time


class Progress:
    """One line that moves on a terminal, one line a step elsewhere."""

    def __init__(self, total, what):
        self.total = total
        self.done = 0
        self.what = what
        self.start = time.monotonic()
        self.tty = sys.stderr.isatty()

    def step(self, name):
        """Says what is being done now."""
        if self.tty:
            width = 24
            filled = width * self.done // max(self.total, 1)
            bar = "#" * filled + "." * (width - filled)
            sys.stderr.write(f"\r\x1b[K{self.what} [{bar}] {self.done}/{self.total} {time.monotonic() - self.start:.0f}s {name}")
            sys.stderr.flush()

    def finish_one(self, line):
        """One more is done; `line` says how it went."""
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
    """A table as Markdown, aligned, so that it reads on a terminal and in a README."""
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
