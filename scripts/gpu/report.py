# SPDX-License-Identifier: MIT OR Apache-2.0
"""Presents a run's result file to people: the table at the end, the missed phases, a summary as
JSON.
"""

import re

from harness import show

from . import phases, results


def listing(chosen, seconds):
    """The phases with the share of each if all phases before it use up theirs."""
    rows, left = [], seconds
    for number, entry in enumerate(chosen):
        share = phases.share(left, entry, chosen[number + 1 :])
        left -= share
        rows.append([entry.name, f"{share:.0f} s", entry.about])
    return show.table(["phase", "share", "what"], rows)


def head(lines):
    return next((line for line in lines if line["kind"] == "run"), {})


def of_phases(lines):
    """The last line of each phase, in the order of the run."""
    said = {line["phase"]: line for line in lines if line["kind"] == "phase"}
    wanted = head(lines).get("phases", list(said))
    return [(name, said.get(name)) for name in wanted]


def number(value):
    """A figure in readable form."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int) or value == int(value) and abs(value) >= 1000:
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(line):
    if line.get("p10") is None or line.get("p90") is None:
        return ""
    return f"{number(line['p10'])} - {number(line['p90'])}"


def table(lines):
    run = head(lines)
    parts = []
    values = [line for line in lines if line["kind"] == "value"]
    for name in ["facts", *(name for name, _ in of_phases(lines))]:
        rows = [
            [v["name"], f"{number(v['value'])} {v['unit']}", spread(v), f"{v.get('n', '')}{' (few)' if v.get('few') else ''}"]
            for v in values
            if v.get("phase") == name
        ]
        if rows:
            parts.append(f"{name}\n\n" + show.table(["figure", "value", "p10 - p90", "n"], rows))
    rows = []
    for name, line in of_phases(lines):
        line = line or {"verdict": results.LEFT_OUT, "seconds": 0, "why": "the suite ended before it"}
        cases = line.get("cases", {})
        rows.append(
            [
                name,
                line["verdict"],
                f"{line['seconds']:.0f} s",
                *(cases.get(k, 0) for k in (results.OK, results.FAILED, results.SKIPPED, results.LEFT_OUT)),
                (line.get("why") or "")[:120],
            ]
        )
    parts.append(show.table(["phase", "verdict", "took", "ok", "failed", "skipped", "left out", "why"], rows))
    if failures := table_of_causes(lines):
        parts.append(failures)
    kind = "SIMULATED GPU, no figure here is a measurement of one" if run.get("simulated") else "real GPU"
    return f"run {run.get('run')}: {run.get('gpu')} ({kind}), commit {str(run.get('commit'))[:12]}\n\n" + "\n\n".join(parts)


def causes(cases):
    """{cause: names of the failed cases}, most frequent first. A case may have several causes.
    Numbers and quoted names do not distinguish causes.
    """
    found = {}
    for case in cases:
        if case["verdict"] == results.FAILED:
            for part in str(case.get("why") or "no reason given").split("; "):
                cause = re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", part)
                cause = re.sub(r"\b(?:0x[0-9a-f]+|\d+(?:[.,]\d+)*)\b", "N", cause)
                # A reason that contains its case's name is the same for all.
                cause = cause.replace(case["name"].split("/")[0], "CASE")
                names = found.setdefault(cause[:160], [])
                if case["name"] not in names:
                    names.append(case["name"])
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def table_of_causes(lines):
    """Failed cases by their cause, or nothing."""
    rows = []
    for name, _ in of_phases(lines):
        cases = [line for line in lines if line["kind"] == "case" and line.get("phase") == name]
        for cause, names in causes(cases).items():
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            rows.append([name, len(names), cause, ", ".join(names[:4]) + more])
    return show.table(["phase", "failed", "cause", "cases"], rows) if rows else None


def missed(lines):
    """Phases that failed or were left out, wholly or in part, with the reason."""
    found = []
    # Facts are no phase of the run; only their failures are reported.
    facts = [("facts", line) for line in lines if line["kind"] == "phase" and line["phase"] == "facts" and line["verdict"] == results.FAILED]
    for name, line in [*facts, *of_phases(lines)]:
        if line is None:
            found.append(f"{name}: left out: the suite ended before it")
        elif line["verdict"] != results.OK or line.get("partly"):
            verdict = line["verdict"] if line["verdict"] != results.OK else "left out in part"
            found.append(f"{name}: {verdict}: {line.get('why') or 'no reason given'}")
    return found


def summary(lines):
    run = head(lines)
    return {
        "run": run.get("run"),
        "gpu": run.get("gpu"),
        "simulated": run.get("simulated"),
        "phases": {name: line for name, line in of_phases(lines)},
        "values": [line for line in lines if line["kind"] == "value"],
        "missed": missed(lines),
    }
