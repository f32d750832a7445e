# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reads the simulated device's log (SIMGPU_LOG) and compares two runs.

Before two runs are compared, these are normalised:

* Process ids, context and stream numbers: they differ from run to run. A run is taken as a multiset
  of processes, a process as a multiset of streams. Each stream's sequence of operations is
  compared.
* Times: weft may change when an operation runs, never the operation nor its order in its stream.
* Waits of a stream for an event: the simulated driver leaves out a wait for work that has ended
  already, so their number depends on times. tests/clients/test_order.py and the clients that check
  their data verify that no wait is lost or moved.
* Graph ids: numbers given by the driver. Whether an operation belongs to a graph is kept.
* Names of kernels are compared whole.
"""

import collections
import json


def read(path, without=None):
    """All lines of a log, in the order in which the device took them.

    `without`: the id of a process whose lines are left out, unread: a busy one has millions.
    """
    records = []
    other = b'"pid":%d,' % without if without is not None else None
    with open(path, "rb") as file:
        for line in file:
            if other and other in line:
                continue
            try:
                records.append(json.loads(line))
            except ValueError:
                # The last line of a killed device may be torn. Any other torn line would show as a
                # difference.
                continue
    return records


def operation(record):
    """One operation, without the fields that differ from run to run."""
    return (
        record.get("op"),
        record.get("name"),
        tuple(record.get("grid") or ()),
        tuple(record.get("block") or ()),
        record.get("shared"),
        record.get("bytes"),
        record.get("graph") is not None,
    )


def streams(records, pids=None):
    """{pid: [sequence of operations of a stream, ...]}, each sequence in the order of submission.
    """
    by_stream = collections.defaultdict(list)
    for record in records:
        if record.get("op") != "wait" and (pids is None or record["pid"] in pids):
            by_stream[record["pid"], record.get("ctx"), record.get("stream")].append(record)
    processes = collections.defaultdict(list)
    for (pid, _, _), items in by_stream.items():
        items.sort(key=lambda r: r["seq"])
        processes[pid].append([operation(r) for r in items])
    return dict(processes)


def counts(records, pids=None):
    """The number of operations of each kind; graph kernels count separately."""
    total = collections.Counter()
    for record in records:
        if record.get("op") != "wait" and (pids is None or record["pid"] in pids):
            kind = record.get("op")
            total[kind if record.get("graph") is None else f"graph-{kind}"] += 1
    return total


def busy(records, pids, begin=None, end=None, ops=("kernel",)):
    """Nanoseconds the device spent on kernels of these processes, in a span of device time.

    A kernel that was interrupted for another context counts with its own slices. `ops`: the kinds
    that count; memsets use the compute engine as kernels do.
    """
    total = 0
    for record in records:
        if record["pid"] in pids and record.get("op") in ops:
            for start, stop in slices(record):
                start = start if begin is None else max(start, begin)
                stop = stop if end is None else min(stop, end)
                total += max(stop - start, 0)
    return total


def slices(record):
    """The spans in which a kernel really ran."""
    return record.get("slices") or [(record["t"], record["end"])]


def extra_operations(expected, seen):
    """The items of `seen` beyond `expected`, or None if `expected` is not a subsequence of it."""
    extras = []
    position = 0
    for item in seen:
        if position < len(expected) and item == expected[position]:
            position += 1
        else:
            extras.append(item)
    return extras if position == len(expected) else None


def first_difference(expected, seen):
    """The first difference of two sequences, in words."""
    for index, (a, b) in enumerate(zip(expected, seen)):
        if a != b:
            return f"operation {index} of {len(expected)}: expected {describe(a)}, seen {describe(b)}"
    if len(seen) < len(expected):
        return f"ends after {len(seen)} of {len(expected)} operations; next would be {describe(expected[len(seen)])}"
    return f"has {len(seen) - len(expected)} more operations, first {describe(seen[len(expected)])}"


def describe(item):
    op, name, grid, block, shared, size, graph = item
    words = [op or "?"]
    if name:
        words.append(name if len(name) < 70 else name[:67] + "...")
    if grid:
        words.append(f"grid {grid} block {block} shared {shared}")
    if size is not None:
        words.append(f"{size} bytes")
    if graph:
        words.append("in a graph")
    return " ".join(words)


def compare(expected_processes, seen_processes, allowed_extra=frozenset()):
    """Differences between two runs, as lines; empty if there is none.

    `allowed_extra`: kinds of operations that the second run may have in addition (weft's own event
    records, with which it times the end of a background job's work). They are tolerated only if all
    else is equal and in order.
    """
    if len(expected_processes) != len(seen_processes):
        return [f"{len(expected_processes)} processes used the device without weft, {len(seen_processes)} with it"]
    differences = []
    # Equal processes are paired first; each of the others is paired with the most similar one.
    left = sorted(expected_processes.values(), key=shape)
    right = sorted(seen_processes.values(), key=shape)
    for number, expected in enumerate(left):
        found = [(compare_process(expected, seen, allowed_extra), at) for at, seen in enumerate(right)]
        lines, at = min(found, key=lambda pair: len(pair[0]))
        right.pop(at)
        differences += [f"process {number}: {line}" for line in lines]
    return differences


def shape(process):
    """A sort key of a process that does not depend on its numbers: its kernels."""
    return sorted([item for item in stream if item[0] == "kernel"] for stream in process)


def compare_process(expected, seen, allowed_extra):
    expected, seen = sorted(expected, key=repr), sorted(seen, key=repr)
    if expected == seen:
        return []
    # Equal streams are paired first; the others are paired by similarity.
    left = list(expected)
    right = list(seen)
    for stream in expected:
        if stream in right:
            left.remove(stream)
            right.remove(stream)
    differences = []
    for stream in left:
        match = next((s for s in right if only_allowed(extra_operations(stream, s), allowed_extra)), None)
        if match is not None:
            right.remove(match)
            continue
        if not right:
            differences.append(f"a stream of {len(stream)} operations is missing, first {describe(stream[0])}")
            continue
        nearest = max(right, key=lambda s: common_prefix(stream, s))
        right.remove(nearest)
        differences.append(first_difference(stream, nearest))
    for stream in right:
        if not only_allowed(stream, allowed_extra):
            differences.append(f"a stream of {len(stream)} operations is new, first {describe(stream[0])}")
    return differences


def only_allowed(extras, allowed):
    return extras is not None and all(item[0] in allowed for item in extras)


def common_prefix(a, b):
    count = 0
    for x, y in zip(a, b):
        if x != y:
            break
        count += 1
    return count
