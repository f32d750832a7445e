#!/usr/bin/env python3
"""Every fault that outside review found stays found: a case a finding, called as the finding is.

  tests/regressions/run.py                    all cases
  tests/regressions/run.py correctness-3 F6   the cases with one of these words in their name
  tests/regressions/run.py --list             the cases, and how the findings are covered; plays nothing

findings.md beside this file lists the findings of the reviews, each with its case or with why it has none. A run of all
cases fails where that list and the cases differ. Each case has a simulated GPU and a broker of its own; every wait is bounded.
"""

import importlib
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import stage  # noqa: E402
from harness import cases, scene  # noqa: E402

# The reviews' numbers: each must be in findings.md.
EXPECTED = [
    *(f"correctness-{n}" for n in range(1, 27)),
    *(f"clients-F{n}" for n in range(1, 8)),
    *(f"clients-S{n}" for n in range(1, 6)),
    *(f"users-B{n}" for n in range(1, 15)),
    *(f"hardware-F{n}" for n in range(1, 19)),
]
ROW = re.compile(r"^\| ((?:correctness|clients|users|hardware)-\w+) \|(.*)\|([^|]*)\|$", re.MULTILINE)


def uncovered():
    """How findings.md and the cases differ, a line each."""
    rows = {name: how.strip() for name, _, how in ROW.findall((stage.HERE / "findings.md").read_text())}
    played = {name for case in stage.CASES for name in case.findings}
    wrong = [f"{name} is not in findings.md" for name in EXPECTED if name not in rows]
    wrong += [f"{name} has a case and no row in findings.md" for name in sorted(played - rows.keys())]
    for name, how in rows.items():
        if not how:
            wrong.append(f"{name} has neither a case nor a reason in findings.md")
        elif name not in played and not how.startswith("none: "):
            wrong.append(f"{name} names {how!r} in findings.md, and no case is marked with it")
    return wrong


def main():
    options = cases.parser(__doc__, policy=False)
    options.add_argument("--list", action="store_true", help="the cases and what is not covered, without playing any")
    options = options.parse_args()
    for file in sorted(stage.HERE.glob("*.py")):
        if file.stem not in ("run", "stage"):
            importlib.import_module(file.stem)
    wrong = uncovered()
    if options.list:
        print("\n".join([case.name for case in stage.CASES] + wrong))
        return int(bool(wrong))
    missing = scene.missing()
    if missing:
        print(f"regressions: {missing}", file=sys.stderr)
        return 1

    def one(case):
        return lambda folder: case.play(folder, options)

    chosen = [(case.name, one(case)) for case in stage.CASES if not options.words or any(word.lower() in case.name.lower() for word in options.words)]
    if not options.words:
        chosen.append(("findings.md lists every finding", lambda _: agreed(wrong)))
    if not chosen:
        print(f"regressions: no case is called so: {', '.join(options.words)}", file=sys.stderr)
    return cases.play("regressions", chosen, options.keep)


def agreed(wrong):
    assert not wrong, "\n".join(wrong)


if __name__ == "__main__":
    sys.exit(main())
