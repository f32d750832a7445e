# SPDX-License-Identifier: MIT OR Apache-2.0
"""Draws the device's work during one job's requests as one SVG: a strip per run, a row per job, all
strips to one scale.

It draws only the contents of the device's log. The shown stretch of a run is the one whose requests
took nearest to the run's median.
"""

import xml.etree.ElementTree as tree
from dataclasses import dataclass

from .. import devicelog
from . import gaps

WIDTH, LEFT, RIGHT = 960, 92, 12
ROW, BETWEEN, HEAD, FOOT = 18, 6, 26, 34

# Spans nearer than this on the page are drawn as one: a file of ten thousand rectangles is useless.
MERGE_PX = 0.35

# Colours that can be read on a light page and on a dark one.
STYLE = """
text { font: 12px sans-serif; fill: #666 } .title { font-weight: bold }
.row { fill: #8882 } .first { fill: #2a78c2 } .second { fill: #e08a1e } .switch { fill: #888 } .request { fill: #2a78c2; opacity: .16 }
"""


@dataclass
class Run:
    """One run: its name, the lines of its device log, the process whose requests are shown, and the
    jobs by their process ids.
    """

    title: str
    records: list
    service: int
    names: dict
    # A gap longer than this, device ns, lies between two requests; a shorter one lies inside a
    # request.
    shortest: float


def requests(run):
    """The spans of the device's part of each request: [(begin, end)], device ns."""
    found = gaps.find(run.records, run.service, run.shortest)
    return [(start, end) for (_, start, _), (end, _, _) in zip(found, found[1:])]


def stretch(run, count):
    """`count` requests in a row whose longest is nearest to the run's median, and the span of their
    picture; None if the run has too few.
    """
    spans = requests(run)
    if len(spans) < count + 2:
        return None
    lengths = sorted(end - begin for begin, end in spans)
    median = lengths[len(lengths) // 2]
    # The first and the last are left out: other jobs may still be starting or already ending.
    first = min(range(1, len(spans) - count), key=lambda at: max(abs(end - begin - median) for begin, end in spans[at : at + count]))
    shown = spans[first : first + count]
    return shown, (spans[first - 1][1] + shown[0][0]) / 2


def write(path, runs, count=3):
    """Writes the picture. Returns the number of runs that it shows."""
    parts = [(run, found) for run in runs if (found := stretch(run, count))]
    if not parts:
        return 0
    length = max(shown[-1][1] - begin for _, (shown, begin) in parts) * 1.02
    scale = (WIDTH - LEFT - RIGHT) / length
    svg = tree.Element("svg", xmlns="http://www.w3.org/2000/svg", width=str(WIDTH), role="img")
    tree.SubElement(svg, "title").text = "the GPU's work over time"
    tree.SubElement(svg, "style").text = STYLE
    top = 4
    for run, (shown, begin) in parts:
        top = strip(svg, run, shown, begin, scale, length, top)
    axis(svg, top, scale, length)
    svg.set("height", str(top + FOOT))
    svg.set("viewBox", f"0 0 {WIDTH} {top + FOOT}")
    tree.indent(svg)
    tree.ElementTree(svg).write(path, encoding="utf-8", xml_declaration=False)
    return len(parts)


def strip(svg, run, shown, begin, scale, length, top):
    """Draws one run's title and rows. Returns the top of the next strip."""
    words(svg, 4, top + 16, run.title, "title")
    rows = list(run.names.items())
    height = len(rows) * (ROW + BETWEEN)
    for start, end in shown:
        box(svg, LEFT + (start - begin) * scale, top + HEAD - 3, (end - start) * scale, height, "request", f"a request: {(end - start) / 1e6:.2f} ms")
    for number, (pid, name) in enumerate(rows):
        y = top + HEAD + number * (ROW + BETWEEN)
        words(svg, 4, y + 13, name)
        box(svg, LEFT, y, length * scale, ROW, "row")
        for start, end in spans(run.records, pid, begin, begin + length, MERGE_PX / scale):
            box(svg, LEFT + (start - begin) * scale, y, max((end - start) * scale, MERGE_PX), ROW, "first" if pid == run.service else "second")
    return top + HEAD + height + 8


def spans(records, pid, begin, end, near):
    """The spans of a process's kernels and fills between two moments; spans that nearly touch are
    merged.
    """
    pieces = sorted(
        tuple(piece) for r in records if r["pid"] == pid and r.get("op") in ("kernel", "memset") and r.get("end") is not None for piece in devicelog.slices(r)
    )
    united = []
    for start, stop in pieces:
        start, stop = max(start, begin), min(stop, end)
        if stop <= start:
            continue
        if united and start - united[-1][1] < near:
            united[-1][1] = max(united[-1][1], stop)
        else:
            united.append([start, stop])
    return united


def axis(svg, top, scale, length):
    """Draws the axis in milliseconds at the bottom."""
    step = next(step for step in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 10**9) if step * 1e6 * scale >= 60)
    at = 0.0
    while at * 1e6 <= length:
        x = LEFT + at * 1e6 * scale
        box(svg, x, top, 1, 5, "switch")
        words(svg, x - 4, top + 20, f"{at:g}")
        at += step
    words(svg, 4, top + 20, "device ms")


def box(svg, x, y, width, height, kind, title=None):
    drawn = tree.SubElement(svg, "rect", {"x": f"{x:.2f}", "y": f"{y:g}", "width": f"{width:.2f}", "height": f"{height:g}", "class": kind})
    if title:
        tree.SubElement(drawn, "title").text = title


def words(svg, x, y, text, kind=None):
    tree.SubElement(svg, "text", {"x": f"{x:.0f}", "y": f"{y:g}", **({"class": kind} if kind else {})}).text = text
