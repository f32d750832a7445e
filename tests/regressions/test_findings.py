# SPDX-License-Identifier: MIT OR Apache-2.0
"""Every fault that an outside review found has a case, marked with the finding's name.

  pytest tests/regressions                                all cases
  pytest tests/regressions -k "correctness-3 or F6"       the cases of these findings

findings.md in this folder lists the findings of the reviews, each with its case or with the reason
why it has none. That list and the marks of the cases must agree.
"""

import ast
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The reviews' numbers: each must be in findings.md.
EXPECTED = [
    *(f"correctness-{n}" for n in range(1, 27)),
    *(f"clients-F{n}" for n in range(1, 8)),
    *(f"clients-S{n}" for n in range(1, 6)),
    *(f"users-B{n}" for n in range(1, 15)),
    *(f"hardware-F{n}" for n in range(1, 19)),
    *(f"bugs-B{n}" for n in range(1, 13)),
    *(f"bugs-V{n}" for n in range(1, 3)),
    *(f"attack-A{n}" for n in range(1, 15)),
    "users2-C1",
    *(f"users2-H{n}" for n in range(1, 9)),
    *(f"users2-M{n}" for n in range(1, 13)),
    *(f"users3-L{n}" for n in range(1, 9)),
    "users4-M2",
    *(f"users4-L{n}" for n in range(1, 6)),
    *(f"users5-M{n}" for n in (4, 5)),
    *(f"users5-L{n}" for n in range(1, 9)),
]
NAME = r"(?:attack|bugs|clients|correctness|hardware|users[2345]?)-\w+"
ROW = re.compile(rf"^\| ({NAME}) \|(.*)\|([^|]*)\|$", re.MULTILINE)


def marked():
    """The findings that cases of this folder are marked with, whichever of them this run plays."""
    calls = [node for file in HERE.glob("test_*.py") for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    return {word.value for call in calls if ast.unparse(call.func) == "pytest.mark.finding" for word in call.args}


def test_findings_md_lists_every_finding():
    rows = {name: how.strip() for name, _, how in ROW.findall((HERE / "findings.md").read_text())}
    played = marked()
    wrong = [f"{name} is not in findings.md" for name in EXPECTED if name not in rows]
    wrong += [f"{name} has a case and no row in findings.md" for name in sorted(played - rows.keys())]
    for name, how in rows.items():
        if not how:
            wrong.append(f"{name} has neither a case nor a reason in findings.md")
        elif name not in played and not how.startswith("none: "):
            wrong.append(f"{name} names {how!r} in findings.md, and no case is marked with it")
    assert not wrong, "\n".join(wrong)
