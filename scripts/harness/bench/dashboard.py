# SPDX-License-Identifier: MIT OR Apache-2.0
"""Draws the Grafana dashboard of deploy/grafana as one SVG: its panels in their places, with the
answers of a Prometheus to their expressions.

Grafana itself draws more: this has the lines, the last values and the figures, and no tables.
"""

import itertools
import re
import time
from html import escape

# Pixels of one of the 24 columns and of one row of the dashboard's grid, and between two panels.
COLUMN_PX, ROW_PX, GAP_PX = 58, 34, 8
# Around a panel's chart: its title above, its values at the left, its legend at the right.
ABOVE_PX, LEFT_PX, BELOW_PX, LEGEND_PX = 30, 56, 20, 226
# A legend has no room for more series.
MOST_SERIES = 9
# As in Grafana's classic palette.
COLOURS = ["#56a64b", "#e0b400", "#3274d9", "#e24d42", "#8f3bb8", "#ff780a", "#37872d", "#1f60c4", "#c4162a"]
STYLE = """
text { font: 11px sans-serif; fill: #555 } .title { font: bold 12px sans-serif; fill: #222 } .figure { font: bold 30px sans-serif }
.panel { fill: #fff; stroke: #ddd } .grid { stroke: #e8e8e8 } .line { fill: none; stroke-width: 1.4 } .area { opacity: .2 }
"""


def shown(value, unit):
    """A value with its unit, as short as Grafana writes it."""
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    steps = [(1 << 30, " GiB"), (1 << 20, " MiB"), (1 << 10, " KiB")] if unit in ("bytes", "Bps") else [(1e6, " M"), (1e3, " k")]
    size, name = next(((size, name) for size, name in steps if abs(value) >= size), (1, ""))
    return f"{value / size:.3g}{name}"


def label(legend, labels):
    """The legend of a series: Grafana's `{{name}}`, filled in."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), legend or "").strip(" :") or "value"


class Board:
    """The dashboard and the server that answers it."""

    def __init__(self, board, server, seconds):
        self.panels = board["panels"]
        self.server, self.end = server, time.time()
        self.begin = self.end - seconds

    def expression(self, text):
        return text.replace("$instance", ".*").replace("$__rate_interval", "15s")

    def series(self, panel):
        """(legend, [(second, value)]) of each series of a panel."""
        found = []
        span = {"start": self.begin, "end": self.end, "step": max(1, (self.end - self.begin) / 120)}
        for target in panel["targets"]:
            data = self.server.api("query_range", query=self.expression(target["expr"]), **span)
            for row in data["result"]:
                points = [(float(at), float(value)) for at, value in row["values"] if value != "NaN"]
                found.append((label(target.get("legendFormat"), row["metric"]), points))
        return [one for one in found if one[1]][:MOST_SERIES]

    def stat(self, panel, wide, high):
        # The last value, as in Grafana: a busy machine may miss the last answer.
        told = self.series(panel)
        unit = panel["fieldConfig"]["defaults"].get("unit")
        text = shown(told[0][1][-1][1], unit) if told else "No data"
        yield f'<text class="figure" x="{wide / 2}" y="{high / 2 + 22}" text-anchor="middle">{escape(text)}</text>'

    def timeseries(self, panel, wide, high):
        defaults = panel["fieldConfig"]["defaults"]
        unit, custom = defaults.get("unit"), defaults.get("custom", {})
        right, bottom = wide - LEGEND_PX, high - BELOW_PX
        found = self.series(panel)
        drawn, below = [], {}
        for legend, points in found:
            if custom.get("stacking", {}).get("mode") == "normal":
                drawn.append((legend, [(at, value + below.get(at, 0), below.get(at, 0)) for at, value in points]))
                below |= {at: top for at, top, _ in drawn[-1][1]}
            else:
                drawn.append((legend, [(at, value, 0) for at, value in points]))
        top = max((value for _, points in drawn for _, value, _ in points), default=0) or 1
        low = min([0, *(value for _, points in drawn for _, value, _ in points)])

        def place(at, value):
            x = LEFT_PX + (at - self.begin) / (self.end - self.begin) * (right - LEFT_PX - 12)
            return f"{x:.1f},{bottom - (value - low) / (top - low) * (bottom - ABOVE_PX):.1f}"

        for part in range(4):
            value = low + (top - low) * part / 3
            y = bottom - (bottom - ABOVE_PX) * part / 3
            yield f'<line class="grid" x1="{LEFT_PX}" x2="{right - 12}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield f'<text x="{LEFT_PX - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(shown(value, unit))}</text>'
        for second in range(0, int(self.end - self.begin) + 1, 15 if right > 400 else 45):
            x = place(self.begin + second, low).split(",")[0]
            yield f'<text x="{x}" y="{high - 6}" text-anchor="middle">{second} s</text>'
        if not drawn:
            yield f'<text x="{(LEFT_PX + right) / 2}" y="{high / 2}" text-anchor="middle">No data</text>'
        for number, (colour, (legend, points)) in enumerate(zip(itertools.cycle(COLOURS), drawn)):
            line = " ".join(place(at, value) for at, value, _ in points)
            if custom.get("fillOpacity"):
                back = " ".join(place(at, under) for at, _, under in reversed(points))
                yield f'<polygon class="area" fill="{colour}" points="{line} {back}"/>'
            yield f'<polyline class="line" stroke="{colour}" points="{line}"/>'
            y = ABOVE_PX + 10 + 15 * number
            last = shown(found[number][1][-1][1], unit)
            yield f'<rect x="{right}" y="{y - 8}" width="10" height="4" fill="{colour}"/>'
            yield f'<text x="{right + 14}" y="{y}">{escape(legend[:28])}  {escape(last)}</text>'

    def svg(self, rows):
        """The picture of the panels within the first `rows` rows of the grid."""
        parts = []
        for panel in self.panels:
            place, kind = panel["gridPos"], getattr(self, panel["type"], None)
            if kind is None or place["y"] + place["h"] > rows:
                continue
            wide, high = place["w"] * COLUMN_PX - GAP_PX, place["h"] * ROW_PX - GAP_PX
            parts.append(f'<g transform="translate({place["x"] * COLUMN_PX + GAP_PX},{place["y"] * ROW_PX + GAP_PX})">')
            parts.append(f'<rect class="panel" width="{wide}" height="{high}" rx="2"/>')
            parts.append(f'<text class="title" x="10" y="19">{escape(panel["title"][: wide // 8])}</text>')
            parts += [*kind(panel, wide, high), "</g>"]
        wide, high = 24 * COLUMN_PX + GAP_PX, rows * ROW_PX + GAP_PX
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}">'
        return "\n".join([head, f"<style>{STYLE}</style>", '<rect width="100%" height="100%" fill="#f4f5f5"/>', *parts, "</svg>\n"])
