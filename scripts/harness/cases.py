"""The cases of scripts/soak and scripts/real-driver: runs them and reports each result. Cases in
tests/ run under pytest.

A case gets its own folder. It fails by an exception: the message of an AssertionError states the
observation, any other exception is printed with its traceback. A returned text is printed after
`ok`. A case raises Skip if it cannot be tried here. The last line of a runner is `N passed, N
failed`, with `, N skipped` if some were skipped.
"""

import argparse
import signal
import sys
import time
import traceback

from . import jobs, show


def parser(description):
    """The options of a runner with named cases: words and --keep."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("words", nargs="*", help="only cases with one of these words in their name")
    options.add_argument("--keep", action="store_true", help="keep the folders of the cases")
    return options


class Skip(Exception):
    """A case that cannot be tried on this machine, with the reason in one line."""


def play(runner, chosen, keep=False, before_verdict=lambda: None, skipped=0):
    """Runs `chosen`, pairs of a name and a function of a folder. Returns the exit code.
    `before_verdict` prints further lines before the verdict. `skipped`: number of further cases
    that cannot be tried.
    """
    absent = skipped
    # A shell ignores the terminal's signals for a runner in the background, and its jobs would
    # inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    # A signal that ends the runner also ends the processes it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    progress = show.Progress(len(chosen), runner)
    failed = []
    for name, function in chosen:
        progress.step(name)
        begin = time.monotonic()
        with jobs.workspace(keep) as folder:
            try:
                more = function(folder)
                progress.finish_one(f"ok      {name} ({time.monotonic() - begin:.1f} s)" + (f" {more}" if more else ""))
            except Skip as why:
                skipped += 1
                progress.finish_one(f"skipped {name}: {why}")
            except Exception as error:
                failed.append(name)
                where = "" if isinstance(error, AssertionError) else traceback.format_exc()
                progress.finish_one(f"FAILED  {name} ({time.monotonic() - begin:.1f} s): {error}\n{where}")
    progress.close()
    before_verdict()
    return show.verdict(runner, absent + len(chosen), failed, skipped)
