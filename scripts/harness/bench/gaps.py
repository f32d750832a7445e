# SPDX-License-Identifier: MIT OR Apache-2.0
"""Attributes every nanosecond of a job's gaps to an activity of the device, from the device's log.

A gap lies between the last kernel of one request and the first kernel of the next. It contains the
answer's way back to the host, the host's work and the input's copy. Each moment of the compute
engine in a gap counts as the first of these that applies:

    kernels         another job's kernels ran
    fills           another job's memsets ran (they use the compute engine as kernels do)
    switch in       the engine switched to the other job
    switch back     the engine switched back
    copies          idle while the other job copied: a step that begins with the copy of its batch
                    has nothing else to do
    head            idle before the other job's first kernel or copy in this gap
    on the way      idle, though the other job's next operation had been submitted
    at the gate     idle while the other job's next launch waited for weft's permission (only if
                    the broker's trace is given)
    not launched    idle because the other job launched nothing: its host worked, or had no core
    tail            idle after the other job's last operation in this gap, without the foreground
                    job's input copy
    input           idle while the foreground job copied its input, or after the copy while its
                    first kernel was on the way

The parts of a gap add up to its length.
"""

import bisect
import collections

from .. import devicelog

PARTS = ("kernels", "fills", "switch in", "switch back", "copies", "head", "on the way", "at the gate", "not launched", "tail", "input")

# Operations that use the compute engine.
ON_COMPUTE = {"kernel": "kernels", "memset": "fills"}


def find(records, pid, shortest, count=None):
    """The gaps of a process that last longer than `shortest` ns, the last `count` of them: [(end of
    a kernel, begin of an input, begin of a kernel)].
    """
    mine = sorted((r for r in records if r["pid"] == pid and r["op"] in ("kernel", "memset", "copy")), key=lambda r: r["t"])
    gaps, end, stirred = [], None, None
    for record in mine:
        if record["op"] == "copy":
            # The first copy into the device after the last kernel. Answers are copied the other
            # way.
            if stirred is None and record.get("direction") == "h2d":
                stirred = record["t"]
            continue
        if end is not None and record["t"] - end > shortest:
            gaps.append((end, min(stirred or record["t"], record["t"]), record["t"]))
        end, stirred = max(end or 0, record["end"]), None
    return gaps[-count:] if count else gaps


# The largest error of the guess of a device's clock, and the step of the search, ns of wall time.
# The broker hears of a launch some us before it is submitted.
CLOCK_REACH, CLOCK_STEP = 40_000_000, 10_000


def clock(records, lines, pid, guess, dilation):
    """Converts CLOCK_MONOTONIC ns to device time, given a rough guess. It uses the distance between
    the broker's time of a launch and the device's, which is the same for all pairs that belong
    together. None if the broker recorded too few launches.
    """
    told = [line["t"] for line in lines if line.get("pid") == pid and line.get("event") == "launch"][::7][:2000]
    got = sorted(record["submitted"] * dilation for record in records if record["pid"] == pid and record["op"] == "kernel")
    distances = collections.Counter()
    for at in told:
        near = guess(at) * dilation
        for submitted in got[bisect.bisect_left(got, near - CLOCK_REACH) : bisect.bisect_right(got, near + CLOCK_REACH)]:
            distances[int(submitted - at) // CLOCK_STEP] += 1
    if len(told) < 100:
        return None
    best = distances.most_common(1)[0][0] * CLOCK_STEP
    return lambda at: (at + best) / dilation


def waits(lines, pid, device_time):
    """The spans in which a job's launches waited at the gate, in device time: [(begin, end)]."""
    spans, since = [], None
    for line in lines:
        if line.get("pid") != pid:
            continue
        if line["event"] == "wait":
            since = line["t"] if since is None else since
        elif since is not None and line["event"] in ("launch", "graph", "transfer") and line["t"] >= since:
            spans.append((device_time(since), device_time(line["t"])))
            since = None
    return sorted(spans)


def parts(records, foreground, others, gaps, waits=()):
    """The parts of each gap, ns: [{part: ns}]. `waits`: spans in which launches of `others` waited
    at the gate.
    """
    compute, copies, launches = [], [], []
    for record in records:
        what = ON_COMPUTE.get(record["op"])
        if record["op"] == "switch":
            what = "switch back" if record["pid"] == foreground else "switch in"
            compute.append((record["t"], record["end"], what))
        elif record["pid"] in others and record["op"] in ("kernel", "memset", "copy"):
            if what:
                compute += [(begin, end, what) for begin, end in devicelog.slices(record)]
            else:
                copies.append((record["t"], record["end"], "copies"))
            launches.append((record["t"], record["submitted"]))
    for spans in (compute, copies, launches):
        spans.sort()
    copies = merged(copies)
    return [one(compute, copies, (launches, waits), gap) for gap in gaps]


def merged(spans):
    """Sorted spans of two copy engines, merged into spans that do not overlap."""
    united = []
    for start, stop, what in spans:
        if united and start <= united[-1][1]:
            united[-1] = (united[-1][0], max(united[-1][1], stop), what)
        else:
            united.append((start, stop, what))
    return united


def within(spans, begin, end):
    """The spans that reach into an interval, cut to it. They do not overlap, so their ends are in
    the same order as their begins.
    """
    first = max(bisect.bisect_left(spans, (begin,)) - 1, 0)
    cut = []
    for start, stop, what in spans[first:]:
        if start >= end:
            break
        if min(stop, end) > max(start, begin):
            cut.append((max(start, begin), min(stop, end), what))
    return cut


def near(spans, begin, end):
    """The spans that may reach into an interval, from sorted spans that do not overlap."""
    return spans[max(bisect.bisect_left(spans, (begin,)) - 1, 0) : bisect.bisect_left(spans, (end,))]


def one(compute, copies, launches, gap):
    begin, stirred, end = gap
    found = dict.fromkeys(PARTS, 0)
    busy = within(compute, begin, end)
    copying = within(copies, begin, end)
    work = [span for span in busy if not span[2].startswith("switch")] + copying
    first = min((span[0] for span in work), default=stirred)
    last = max((span[1] for span in work), default=begin)
    now = begin
    for start, stop, what in [*busy, (end, end, None)]:
        idle(found, max(now, begin), max(start, now), copying, launches, (first, last, stirred))
        if what:
            found[what] += max(stop - max(start, now), 0)
        now = max(now, stop)
    if sum(found.values()) != end - begin:
        raise ValueError(f"the parts of a gap of {end - begin} ns make {sum(found.values())} ns")
    return found


def idle(found, begin, end, copying, launches, edges):
    """Adds an idle span of the compute engine, from `begin` to `end`."""
    first, last, stirred = edges
    now = begin
    for start, stop, _ in [*(span for span in copying if span[1] > begin and span[0] < end), (end, end, None)]:
        start, stop = max(start, begin), min(stop, end)
        quiet(found, now, start, launches, (first, last, stirred))
        found["copies"] += max(stop - start, 0)
        now = max(now, stop)


def quiet(found, begin, end, launches, edges):
    """Adds an idle span of the compute engine, from `begin` to `end`, in which no other job copied.
    """
    if end <= begin:
        return
    first, last, stirred = edges
    if begin >= last:
        found["tail"] += max(min(end, stirred) - begin, 0)
        found["input"] += max(end - max(begin, stirred), 0)
    elif begin < first:
        found["head"] += end - begin
    else:
        # Until its submission, the next operation counts as not launched.
        launches, waits = launches
        at = bisect.bisect_left(launches, (end,))
        submitted = launches[at][1] if at < len(launches) else end
        submitted = min(max(submitted, begin), end)
        waited = sum(stop - start for start, stop, _ in within([(*span, None) for span in near(waits, begin, submitted)], begin, submitted))
        waited = min(int(waited), submitted - begin)
        found["at the gate"] += waited
        found["not launched"] += submitted - begin - waited
        found["on the way"] += end - submitted


def means(found):
    """The mean of each part over the gaps, ns."""
    return {part: sum(parts[part] for parts in found) / len(found) for part in PARTS} if found else {}
