# SPDX-License-Identifier: MIT OR Apache-2.0
"""A service and background jobs that run together by README's own commands, and their figures.

The commands are read from README.md, "Use it on your GPU", and run exactly as printed. Only
serve.py and train.py are supplied: the folder where the commands run has them
(scripts/workloads/light). A simulated GPU takes the place of a real one.

The judged figures come from three sources: the service's own clock, alone and together with the
training in one run; the device's log; and weft's views.
"""

import bisect
import contextlib
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

from .. import jobs, paths, show

PROGRAMS = paths.ROOT / "scripts" / "workloads" / "light"
HEADING = "## Use it on your GPU"
# The service's kernels: 24 a request, of this width and time.
SERVICE_WIDTH, SERVICE_NS = 32, 120_000
# Bound of a start or an end on two busy cores, s. It does not judge a job.
BOUND = 60.0
# The service's pauses are 20 ms, and its kernels microseconds apart.
BETWEEN_REQUESTS_NS = 5_000_000
# The first second is not judged: weft has to learn a job without a profile.
LEARNING_NS = 1_000_000_000
# The first requests of any process are slow.
WARM = 5
# The longest that other work may delay a return, ns: weft's delay bound and a launch on its way.
DELAY_BOUND_NS = 500_000


def commands(text=None):
    """README's commands under the heading, in words, without their comments."""
    text = text or (paths.ROOT / "README.md").read_text()
    block = re.search(re.escape(HEADING) + r"\n+```console\n(.*?)```", text, re.DOTALL)
    if not block:
        raise ValueError(f"README.md has no commands under {HEADING!r}")
    lines = [line.removeprefix("$ ") for line in block[1].splitlines() if line.startswith("$ ")]
    return [shlex.split(line, comments=True) for line in lines]


def command(verb, program, text=None):
    """README's only command that begins with `weft VERB` and names the program."""
    fits = [words for words in commands(text) if words[:2] == ["weft", verb] and program in words]
    if len(fits) != 1:
        raise ValueError(
            f"README.md has {len(fits)} commands `weft {verb} ... {program}`, expected one"
        )
    return fits[0]


def looks(text=None):
    """README's commands that show the machine or jobs, and start none."""
    found = [words[words.index("&&") + 1 :] if "&&" in words else words for words in commands(text)]
    return [words for words in found if words[0] == "weft" and "--" not in words]


def profiled(words, name):
    """`weft run` with that profile too, which README leaves out for the training."""
    at = words.index("--")
    return [*words[:at], "--profile", name, *words[at:]]


def without_weft(words):
    """The job of a command, without weft."""
    return words[words.index("--") + 1 :]


class Play:
    """A device, a broker's folders and their jobs. `weft run` starts the broker."""

    def __init__(self, folder, widths, *, mode=None, profiles=None, trace=False):
        """`widths`: ns of the kernels of each width, or pairs of a part and ns."""
        self.folder = Path(folder)
        self.trace = self.folder / "trace.json" if trace else None
        for part in ("bin", "run", "place"):
            (self.folder / part).mkdir(parents=True)
        (self.folder / "run").chmod(0o700)
        # README's `python` is any Python. A link keeps the rest of this one's folder off the path.
        (self.folder / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
        self.profiles = profiles or self.folder / "profiles"
        settings = self.folder / "device.toml"
        settings.write_text("".join(map(rule, [(SERVICE_WIDTH, SERVICE_NS), *widths.items()])))
        self.device = jobs.Device(
            self.folder, config=settings, mode=mode, log=self.folder / "device.log"
        )
        self.jobs = {}

    def environment(self, **more):
        path = os.pathsep.join(
            [str(paths.WEFT.parent), str(self.folder / "bin"), os.environ.get("PATH", "")]
        )
        return {
            **jobs.clean_environment(),
            **self.device.environment(),
            **self.device.weft_environment(),
            "PATH": path,
            "PYTHONDONTWRITEBYTECODE": "1",
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
            "WEFT_PROFILE_DIR": str(self.profiles),
            "WEFT_STATE_DIR": str(self.folder / "state"),
            **more,
        }

    def __enter__(self):
        if self.trace:
            self.weft("broker", "--background", "--trace", self.trace)
        return self

    def __exit__(self, *_):
        for job in self.jobs.values():
            job.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.weft("stop", check=False)

    def weft(self, *words, check=True):
        """Runs a command of weft. Returns its output."""
        # Found on this path, as a job's command is.
        command = [str(word) for word in (paths.WEFT, *words)]
        done = subprocess.run(
            command,
            env=self.environment(),
            cwd=PROGRAMS,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BOUND,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"weft {words[0]}: exit {done.returncode}\n{done.stderr}")
        return done.stdout

    def start(self, name, words, **more):
        """Starts a job by a command, and waits until it is under way."""
        job = self.begin(name, words, **more)
        self.ready(name)
        return job

    def begin(self, name, words, *, cwd=PROGRAMS, **more):
        times = str(self.folder / f"{name}.times")
        environment = self.environment(TIMES=times, **more)
        # The programs are found on the job's path, as by a shell.
        job = self.jobs[name] = jobs.Job(
            words, environment=environment, folder=self.folder, name=name, cwd=cwd
        )
        return job

    def ready(self, name):
        job, ready = self.jobs[name], self.folder / f"{name}.times.ready"
        if (
            not jobs.wait_until(lambda: ready.exists() or not job.running(), BOUND)
            or not ready.exists()
        ):
            raise RuntimeError(f"{name} did not start\n{job.explain()}")

    def end(self, *names):
        """Sends SIGTERM, and waits for the end of each job, which must end well."""
        for name in names:
            if self.jobs[name].running():
                self.jobs[name].process.terminate()
        for name in names:
            self.finish(name)

    def finish(self, name):
        job = self.jobs[name]
        code = job.wait(BOUND)
        if code != 0:
            raise RuntimeError(f"{name}: exit {code}\n{job.explain()}")

    def times(self, name):
        return json.loads((self.folder / f"{name}.times").read_text())

    def outcomes(self, pids):
        """{process id: outcome} of jobs that ended, from `weft history`.

        A separate thread writes the rows, so they appear a little later.
        """
        found, pids = {}, set(pids)

        def there():
            rows = json.loads(self.weft("history", "--json"))["jobs"]
            found.update({row["pid"]: row["outcome"] for row in rows})
            return pids <= found.keys()

        if not jobs.wait_until(there, BOUND, step=0.1):
            raise RuntimeError("weft history does not have all jobs that ended")
        return found

    def log(self):
        """The device's log, once broker and device have left."""
        self.weft("stop", check=False)
        if not self.device.wait_gone(BOUND):
            raise RuntimeError("the simulated device did not leave")
        return Log(self.device.log)


def rule(of):
    """The device's settings for the kernels of one width."""
    width, ns = of
    time = f"ns = {ns}" if isinstance(ns, int) else f"quantiles = {json.dumps(ns)}"
    return f'[[kernel]]\nname = "simgpu_fill"\nblock = [{width}, 1, 1]\n{time}\n\n'


class Log:
    """The records of a device's log that are needed here, out of millions of lines."""

    # Per process: (submitted, began, ended, slices or None) of kernels and fills, as submitted.
    def __init__(self, path):
        self.kernels, self.copies = {}, {}
        with open(path, "rb") as file:
            for line in file:
                try:
                    record = json.loads(line)
                except ValueError:
                    # The last line of a killed device may be torn.
                    continue
                into = {"kernel": self.kernels, "memset": self.kernels, "copy": self.copies}.get(
                    record["op"]
                )
                if into is not None:
                    item = (record["submitted"], record["t"], record["end"], record.get("slices"))
                    into.setdefault(record["pid"], []).append(item)
        for items in (*self.kernels.values(), *self.copies.values()):
            items.sort(key=lambda item: item[0])

    def busy(self, pid, begin=0, end=1 << 62):
        """Nanoseconds of kernels of a process, in a span of device time."""
        return sum(covered(item, begin, end) for item in self.kernels.get(pid, ()))

    def span(self, pid):
        """The submission of its first kernel and the end of its last one."""
        items = self.kernels[pid]
        return items[0][0], max(item[2] for item in items)

    def requests(self, pid):
        """The requests of a service: (submitted, ended) of each."""
        found = []
        for submitted, _, end, _ in self.kernels[pid]:
            if found and submitted - found[-1][2] < BETWEEN_REQUESTS_NS:
                found[-1][1:] = [max(found[-1][1], end), submitted]
            else:
                found.append([submitted, end, submitted])
        return [(begin, end) for begin, end, _ in found]


def covered(item, begin, end):
    """Nanoseconds of a kernel that lie in a span."""
    return sum(
        max(min(stop, end) - max(start, begin), 0) for start, stop in item[3] or (item[1:3],)
    )


def met(log, service, others, learning=LEARNING_NS):
    """Other jobs' work that each request found on the device, after the time to learn the jobs.

    A dict per request: `waiting` is ns of their work that was on the device and not done when the
    request's first kernel arrived. `inside` is ns of it that ran until the request's last kernel
    had ended. `let_in` counts their kernels that were submitted and begun meanwhile.
    """
    begin = min(log.span(pid)[0] for pid in others) + learning
    end = min(log.span(pid)[1] for pid in others)
    return [
        one(log, others, *span)
        for span in log.requests(service)
        if begin <= span[0] and span[1] <= end
    ]


def one(log, others, begin, end):
    waiting = inside = let_in = 0
    for pid in others:
        items = log.kernels[pid]
        first = bisect.bisect_left(items, (begin,))
        for item in reversed(items[:first] if first < 2_000 else items[first - 2_000 : first]):
            if item[2] <= begin:
                break
            waiting += covered(item, begin, 1 << 62)
            inside += covered(item, begin, end)
        for item in items[first : bisect.bisect_left(items, (end,))]:
            if item[1] < end:
                let_in += 1
                inside += covered(item, begin, end)
    return {"waiting": waiting, "inside": inside, "let_in": let_in, "length": end - begin}


def alone_by_log(log, service, others):
    """Durations of requests on the device before the other jobs began."""
    first = min(log.span(pid)[0] for pid in others)
    return [end - begin for begin, end in log.requests(service) if end < first][WARM:]


def lost_by_log(log, service, others):
    """The part by which requests took longer on the device with the other jobs than before."""
    together = [each["length"] for each in met(log, service, others, learning=0)]
    return statistics.mean(together) / statistics.mean(alone_by_log(log, service, others)) - 1


def by_log(log, service, others):
    """The figures of the device's log: those of `met`, and durations of requests without and with
    the other jobs.
    """
    found, alone = met(log, service, others), alone_by_log(log, service, others)
    if len(found) < 10:
        raise RuntimeError(f"only {len(found)} requests ran with the training: too few to judge")
    waiting = [each["waiting"] for each in found]
    return {
        "requests": len(found),
        "inside": share(found, lambda each: each["inside"] > 0),
        "let_in": share(found, lambda each: each["let_in"] > 0),
        "over_bound": share(found, lambda each: each["waiting"] > DELAY_BOUND_NS),
        "waiting_mean_us": statistics.mean(waiting) / 1e3,
        "waiting_p50_us": statistics.median(waiting) / 1e3,
        "waiting_max_us": max(waiting) / 1e3,
        "alone_p50": statistics.median(alone),
        "alone_p99": p99(alone),
        "beside_p50": statistics.median(each["length"] for each in found),
        "beside_p99": p99([each["length"] for each in found]),
    }


def spans_by_log(log, service, times, training):
    """As `by_log`, but of requests in the same spans as `by_clock`: the trainings are on another
    device, whose time has another zero.
    """
    begin, end = min(one[0][0] for one in training), min(one[-1][0] for one in training)
    # The last request of both is the same one.
    both = list(zip(reversed(times), reversed(log.requests(service)), strict=False))[::-1]

    def lengths(of, until):
        return [done - sent for (before, after), (sent, done) in both if of <= before and after <= until]

    alone, together = lengths(0, begin)[WARM:], lengths(begin + LEARNING_NS, end)
    return {
        "requests": len(together),
        "alone_p50": statistics.median(alone),
        "alone_p99": p99(alone),
        "beside_p50": statistics.median(together),
        "beside_p99": p99(together),
    }


def share(found, fits):
    return sum(map(fits, found)) / len(found)


def latencies(times, begin=0, end=1 << 62):
    """The service's own clock, ns, of requests that lie within a span."""
    return [after - before for before, after in times if begin <= before and after <= end]


def steps_a_second(times, learning=LEARNING_NS):
    """Steps a second of a training, after weft had time to learn it."""
    begin = next((at for at, (when, _) in enumerate(times) if when >= times[0][0] + learning), None)
    if begin is None or begin == len(times) - 1:
        raise RuntimeError("the training ended too early to measure its speed")
    (first, done), (last, all_done) = times[begin], times[-1]
    return (all_done - done) / (last - first) * 1e9


def by_clock(times, training):
    """The service's own figures: alone before the trainings began, and together with them.

    The latter leave out the first second, but `lost` covers the whole time.
    """
    begin, end = min(one[0][0] for one in training), min(one[-1][0] for one in training)
    alone, all_beside = latencies(times[WARM:], end=begin), latencies(times, begin, end)
    beside = latencies(times, begin + LEARNING_NS, end)
    told = {
        f"{which}_{name}": of(values)
        for which, values in (("alone", alone), ("beside", beside))
        for name, of in (("p50", statistics.median), ("p99", p99), ("mean", statistics.mean))
    }
    mean = told["alone_mean"]
    told["lost"] = statistics.mean(all_beside) / mean - 1
    # The error of the two means, as a part of the first one.
    told["lost_error"] = (
        statistics.variance(alone) / len(alone) + statistics.variance(all_beside) / len(all_beside)
    ) ** 0.5 / mean
    return told


def p99(values):
    return show.quantile(values, 0.99)
