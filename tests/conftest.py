# SPDX-License-Identifier: MIT OR Apache-2.0
"""The base of the cases of tests/: the options of a run, the scene, a bound, and the report of each
case.

  scripts/setup pytest                                makes .venv-pytest
  .venv-pytest/bin/pytest tests/admission             the cases of a folder
  .venv-pytest/bin/pytest tests/clients -k killed     the cases with this word in their name

A case is a function `test_...(scene)`. Its scene has a folder, a device and a broker of its own.
A case fails by an exception: an assertion's message shows the seen values, and `Job.explain` the
end of a job's stderr. A case that cannot be tried here calls `pytest.skip`. A case that passed
reports details by `record_property("told", ...)`. Every wait has a bound.
"""

import os
import random
import signal
import threading
from pathlib import Path

import pytest
from fixtures.scene import Scene, missing
from harness import jobs, paths
from harness.ci import watch


def pytest_addoption(parser):
    """All options are here: pytest knows those of a folder's own conftest.py only if a run names
    that folder."""
    option = parser.getgroup("weft").addoption
    option("--keep", action="store_true", help="leave the folders of the cases")
    option("--policy", choices=jobs.POLICIES, help="of the brokers that the cases start; default: their own")
    option("--torch", type=int, default=10, metavar="N", help="admission: of ten jobs so many are PyTorch's: 0 to 3, or 10")
    option("--queued", type=int, default=50, metavar="N", help="admission: so many jobs in the queue at once")
    option("--set", choices=["ci", "all"], default="ci", help="clients: which clients")
    option("--model", help="clients: the simulated GPU's model (SIMGPU_MODEL), for all clients")
    option("--bare", action="store_true", help="clients: only run each client without weft")
    option("--kills", type=int, default=60, metavar="N", help="faults: so many SIGKILLs at random moments")
    option("--seed", type=int, default=random.randrange(1 << 32), help="faults: of these moments")
    option("--launches", type=int, default=1000, metavar="N", help="order: launches before each call")
    option("--json", type=Path, metavar="FILE", help="memory, prediction: the figures go there")
    option("--percent", type=int, default=150, metavar="N", help="memory: of the device's room, what both jobs want")
    option("--arms", nargs="+", metavar="ARM", help="memory: what `together` compares: demand, turns, weft, profile; default: all")
    option("--traces", type=Path, metavar="FOLDER", help="memory: `together` leaves a trace of each arm there")
    option("--requests", type=int, default=6, metavar="N", help="prediction: requests of each run")
    option("--residency", action="store_true", help="prediction: also learn from the host's page table, as on a real GPU")
    option("--other-batch", action="store_true", help="prediction: also judge sizes that were never seen (no aim)")
    option("--worst", type=int, default=0, metavar="N", help="prediction: name so many kernels that miss most, per model")


def pytest_configure(config):
    if threading.current_thread() is threading.main_thread():
        # A shell that starts a run in the background has it ignore signals of the terminal, and its
        # jobs would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
        # A signal that ends the run also ends the processes that the run started.
        signal.signal(signal.SIGTERM, lambda *_: pytest.exit("ended by SIGTERM", returncode=143))
    config.pluginmanager.register(Telling(config))


def pytest_generate_tests(metafunc):
    also = metafunc.definition.get_closest_marker("also_under")
    if also and not metafunc.config.option.policy:
        metafunc.parametrize("policy", [None, *also.args], indirect=True, ids=["default", *also.args])


def pytest_itemcollected(item):
    """A case is found by its findings (`-k correctness-3`), too."""
    for mark in item.iter_markers("finding"):
        item.extra_keyword_matches.update(mark.args)


@pytest.fixture
def folder(request):
    """A short-lived folder with a short path."""
    keep = request.config.option.keep
    with jobs.workspace(keep) as path:
        if keep:
            request.node.user_properties.append(("told", f"kept: {path}"))
        yield path


@pytest.fixture
def policy(request):
    """By which policy the broker shares the device; None: by weft broker's own default."""
    return getattr(request, "param", None) or request.config.option.policy


@pytest.fixture
def scene(request, folder, policy):
    """A device, a broker and jobs in a folder of their own, by the marks `scene`."""
    absent = missing()
    if absent:
        pytest.exit(absent, returncode=3)
    # A case's own mark goes before its file's.
    more = {"make": Scene}
    for mark in reversed(list(request.node.iter_markers("scene"))):
        more |= mark.kwargs
    made = more.pop("make")(folder, request.config.option, policy, **more)
    try:
        made.open()
        yield made
    finally:
        made.close()


def reason(call):
    """The reason of a failure: the exception's text, then the lines that led to it."""
    error = call.excinfo
    said = str(error.value)
    if not isinstance(error.value, (AssertionError, pytest.fail.Exception)):
        said = f"{error.typename}: {said}"
    lines = [said]
    for entry in error.traceback:
        if Path(entry.path).is_relative_to(paths.ROOT) and ".venv" not in str(entry.path):
            statement = str(entry.statement).strip().partition("\n")[0]
            lines.append(f"at {entry.path}:{entry.lineno + 1}: {statement}")
    return "\n".join(lines)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call):
    report = yield
    if report.failed:
        report.longrepr = reason(call)
        if "from pytest-timeout" in report.longrepr:
            # The case's jobs are there still.
            report.sections.append(("What it did", watch.diagnosis(os.getpid())))
    return report


def pytest_report_teststatus(report):
    """The line of a case: its outcome, its seconds, and its reported details."""
    if not isinstance(report, pytest.TestReport):
        return None
    seconds = f"({report.duration:.1f} s)"
    if report.failed:
        first = report.longreprtext.partition("\n")[0]
        return "failed" if report.when == "call" else "error", "F", f"FAILED {seconds}: {first}"
    if report.passed and report.when == "call":
        return "passed", ".", " ".join([f"ok {seconds}", *(text for name, text in report.user_properties if name == "told")])
    if report.skipped and isinstance(report.longrepr, tuple):
        return "skipped", "s", f"skipped: {report.longrepr[2].removeprefix('Skipped: ')}"
    return None


class Telling:
    """Prints all of a failure as it happens: a run that is ended prints no more."""

    def __init__(self, config):
        self.config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report):
        self.tell(report)

    @pytest.hookimpl(trylast=True)
    def pytest_collectreport(self, report):
        """A file that cannot be read."""
        self.tell(report)

    def tell(self, report):
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal:
            terminal.ensure_newline()
            for text in (report.longreprtext, *(f"{name}:\n{content}" for name, content in report.sections if content.strip())):
                for line in text.rstrip().splitlines():
                    terminal.write_line("    " + line)

    def pytest_terminal_summary(self, terminalreporter):
        for report in [*terminalreporter.stats.get("failed", ()), *terminalreporter.stats.get("error", ())]:
            terminalreporter.write_line(f"failed: {report.nodeid}")
