"""Writes a trace that the Perfetto UI opens (Chrome's JSON format): what ran on the device when, and what weft decided.

Times in the file are device time, in microseconds from the first operation shown.
"""

import json

from . import devicelog

DEVICE, WEFT = 1, 2

# What is shown of an operation when it is clicked.
SHOWN = ("grid", "block", "bytes", "stream", "seq", "graph")


def write(path, records, names, decisions=(), clock=None):
    """Writes the trace.

    records: lines of the device's log. names: {pid: what the process is called}.
    decisions: lines of the broker's trace; `clock(ns)` turns their monotonic time into device time.
    """
    shown = [r for r in records if r.get("op") in ("kernel", "copy", "memset", "host") and r.get("end") is not None]
    start = min((r["t"] for r in shown), default=0)
    events = [
        meta(DEVICE, None, "process_name", "GPU (simulated device time)"),
        meta(WEFT, None, "process_name", "weft"),
    ]
    tracks = {}
    for record in sorted(shown, key=lambda r: r["t"]):
        engine = "copies" if record["op"] == "copy" else "kernels"
        key = (record["pid"], engine)
        if key not in tracks:
            tracks[key] = len(tracks) + 1
            events.append(meta(DEVICE, tracks[key], "thread_name", f"{names.get(record['pid'], record['pid'])}: {engine}"))
        for begin, end in devicelog.slices(record):
            events.append(
                {
                    "ph": "X",
                    "pid": DEVICE,
                    "tid": tracks[key],
                    "ts": (begin - start) / 1e3,
                    "dur": (end - begin) / 1e3,
                    "name": record.get("name") or record["op"],
                    "cat": names.get(record["pid"], str(record["pid"])),
                    "args": {k: record[k] for k in SHOWN if record.get(k) is not None},
                }
            )
    rows = {}
    end = max((r["end"] for r in shown), default=0)
    for line in decisions:
        if clock is None or line.get("event") in ("launch", "transfer"):
            continue
        at = clock(line["t"])
        if not start <= at <= end:
            continue
        job = names.get(line.get("pid"), str(line.get("pid")))
        if job not in rows:
            rows[job] = len(rows) + 1
            events.append(meta(WEFT, rows[job], "thread_name", f"decisions: {job}"))
        what = " ".join(str(line[k]) for k in ("event", "what") if line.get(k) is not None)
        events.append(
            {
                "ph": "i",
                "s": "t",
                "pid": WEFT,
                "tid": rows[job],
                "ts": (at - start) / 1e3,
                "name": what,
                "args": {k: line[k] for k in ("ns", "kernel") if line.get(k) is not None},
            }
        )
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ns"}, file)
    return len(shown)


def meta(pid, tid, name, value):
    event = {"ph": "M", "pid": pid, "name": name, "args": {"name": value}}
    return event if tid is None else {**event, "tid": tid}
