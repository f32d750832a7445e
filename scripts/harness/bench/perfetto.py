# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes a trace for the Perfetto UI (Chrome's JSON format): the device's work over time, and
weft's decisions.

Times in the file are device time, in microseconds from the first operation shown.
"""

import json

from .. import devicelog

DEVICE, WEFT = 1, 2
MIB = 1 << 20

# Fields of an operation that are shown when it is clicked.
SHOWN = ("grid", "block", "bytes", "direction", "stream", "seq", "graph")

# Fields of a job's managed memory in the broker's trace that are drawn as curves.
CURVES = ("working_set", "resident", "prefetched", "evicted", "discarded", "faulted")

# The row of an operation in its process. Managed memory that moves ahead is neither the job's copy
# nor its kernel.
ROWS = {"kernel": "kernels", "memset": "kernels", "host": "kernels", "copy": "copies", "prefetch": "moved ahead", "discard": "moved ahead"}


def write(path, records, names, decisions=(), clock=None, memory=()):
    """Writes the trace.

    records: lines of the device's log. names: {pid: name of the process}. decisions: lines of the
    broker's trace; `clock(ns)` converts their monotonic time to device time. Their fields on
    managed memory become curves. memory: (device time, pid, {field: bytes}), samples of the
    device's own ledger: curves next to those of weft.
    """
    shown = [r for r in records if r.get("op") in ROWS and r.get("end") is not None]
    start = min((r["t"] for r in shown), default=0)
    events = [
        meta(DEVICE, None, "process_name", "GPU (simulated device time)"),
        meta(WEFT, None, "process_name", "weft"),
    ]
    tracks = {}
    for record in sorted(shown, key=lambda r: r["t"]):
        engine = ROWS[record["op"]]
        if record["op"] == "prefetch":
            engine += " to the host" if record.get("direction") == "d2h" else " to the device"
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
                    "name": title(record),
                    "cat": names.get(record["pid"], str(record["pid"])),
                    "args": {k: record[k] for k in SHOWN if record.get(k) is not None},
                }
            )
    events += moved(shown, names, start)
    rows = {}
    end = max((r["end"] for r in shown), default=0)
    for line in decisions:
        if clock is None or line.get("event") in ("launch", "transfer"):
            continue
        at = clock(line["t"])
        if not start <= at <= end:
            continue
        job = names.get(line.get("pid"), str(line.get("pid")))
        if line.get("event") == "memory":
            for what in CURVES:
                name = f"{job}: {what.replace('_', ' ')}, MiB"
                events.append({"ph": "C", "pid": WEFT, "ts": (at - start) / 1e3, "name": name, "args": {what: line[what] / MIB}})
            continue
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
    for at, pid, sizes in memory:
        for what, size in sizes.items():
            events.append({"ph": "C", "pid": DEVICE, "ts": (at - start) / 1e3, "name": f"{names.get(pid, pid)}: {what}, MiB", "args": {what: size / MIB}})
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ns"}, file)
    return len(shown)


def title(record):
    """The label of an operation."""
    if record["op"] == "prefetch":
        return f"{'evict' if record.get('direction') == 'd2h' else 'prefetch'} {record.get('bytes', 0) / MIB:.1f} MiB"
    return record.get("name") or record["op"]


def moved(shown, names, start):
    """Curves of the bytes moved ahead for each process so far."""
    so_far, events = {}, []
    for record in sorted((r for r in shown if r["op"] in ("prefetch", "discard")), key=lambda r: r["end"]):
        sums = so_far.setdefault(record["pid"], {"prefetched": 0.0, "evicted": 0.0, "discarded": 0.0})
        what = "discarded" if record["op"] == "discard" else "evicted" if record.get("direction") == "d2h" else "prefetched"
        sums[what] += (record.get("bytes") or 0) / MIB
        name = names.get(record["pid"], str(record["pid"]))
        events.append({"ph": "C", "pid": DEVICE, "ts": (record["end"] - start) / 1e3, "name": f"{name}: moved ahead, MiB", "args": dict(sums)})
    return events


def meta(pid, tid, name, value):
    event = {"ph": "M", "pid": pid, "name": name, "args": {"name": value}}
    return event if tid is None else {**event, "tid": tid}
