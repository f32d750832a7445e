# SPDX-License-Identifier: MIT OR Apache-2.0
"""A terminal's screen as a picture: SGR sequences (ECMA-48, 8.3.117) to SVG text.

Only the output of `tmux capture-pane -e` is understood, including the 16 colours, bold, dim and
reverse; other sequences are left out. The picture is text, so it stays sharp and small.
"""

import re
from html import escape

# Pixels of a cell, and of the outer frame.
WIDTH_PX, HEIGHT_PX, FRAME_PX = 8.4, 17, 12
SGR = re.compile(r"\x1b\[([0-9;]*)m")
OTHER = re.compile(r"\x1b(\[[0-9;?]*[A-Za-ln-z]|\([A-Z0-9]|[=>])|\x0e|\x0f")
BACK, PLAIN = "#16181d", "#d7dae0"
COLOURS = "#5c6370 #e06c75 #98c379 #e5c07b #61afef #c678dd #56b6c2 #d7dae0".split()


def cells(line):
    """The line's runs of equal attributes: (column, text, attributes)."""
    look, column, at = {}, 0, 0
    for found in [*SGR.finditer(line), None]:
        end = found.start() if found else len(line)
        text = OTHER.sub("", line[at:end])
        if text:
            yield column, text, dict(look)
            column += len(text)
        if found:
            changed(look, found.group(1))
            at = found.end()


def changed(look, codes):
    """Applies the codes of one sequence to the attributes."""
    numbers = [int(code or 0) for code in codes.split(";")]
    while numbers:
        code = numbers.pop(0)
        if code == 0:
            look.clear()
        elif code in (1, 2, 7):
            look[{1: "bold", 2: "dim", 7: "reverse"}[code]] = True
        elif code in (22, 27):
            for name in ("bold", "dim") if code == 22 else ("reverse",):
                look.pop(name, None)
        elif 30 <= code <= 37 or 90 <= code <= 97:
            look["colour"] = COLOURS[code % 10]
        elif code == 39:
            look.pop("colour", None)
        elif code in (38, 48) and numbers[:1] == [5]:
            if code == 38:
                look["colour"] = COLOURS[numbers[1] % 8]
            del numbers[:2]


def svg(screen, columns, title):
    """The picture of a screen's text."""
    lines = screen.rstrip("\n").split("\n")
    width = columns * WIDTH_PX + 2 * FRAME_PX
    height = len(lines) * HEIGHT_PX + 2 * FRAME_PX
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'role="img" font-family="ui-monospace, DejaVu Sans Mono, monospace" font-size="14">',
        f"<title>{escape(title)}</title>",
        f'<rect width="100%" height="100%" rx="8" fill="{BACK}"/>',
    ]
    for row, line in enumerate(lines):
        y = FRAME_PX + row * HEIGHT_PX
        for column, text, look in cells(line):
            x, wide = FRAME_PX + column * WIDTH_PX, len(text) * WIDTH_PX
            colour = look.get("colour", PLAIN)
            if look.get("reverse"):
                box = f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{HEIGHT_PX}" '
                out.append(f'{box}fill="{colour}"/>')
                colour = BACK
            if text.strip():
                more = ' font-weight="bold"' if look.get("bold") else ""
                more += ' opacity="0.6"' if look.get("dim") else ""
                out.append(
                    f'<text x="{x:.1f}" y="{y + 13}" fill="{colour}" textLength="{wide:.1f}" '
                    f'xml:space="preserve"{more}>{escape(text)}</text>'
                )
    return "\n".join([*out, "</svg>", ""])
