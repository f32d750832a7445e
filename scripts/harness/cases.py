"""The cases of a command that plays some (scripts/soak, scripts/real-driver): in what order, and what is said of each. The cases of tests/ are pytest's.

A case gets a folder of its own and fails by an exception: an AssertionError says by itself what was seen, any other one comes with its traceback. What it returns, if
anything, stands behind its `ok`. What cannot be tried here it says by a Skip. The last line of a runner is `N passed, N failed`, with `, N skipped` where some were.
"""

import argparse
import signal
import sys
import time
import traceback

from . import jobs, show


def parser(description):
    """The options of a runner whose cases have names: words and --keep."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("words", nargs="*", help="only cases with one of these words in their name")
    options.add_argument("--keep", action="store_true", help="leave the folders of the cases")
    return options


class Skip(Exception):
    """A case cannot be tried on this machine; says why, in one line."""


def play(runner, chosen, keep=False, before_verdict=lambda: None, skipped=0):
    """Plays `chosen`, pairs of a name and a function of a folder; `before_verdict` says what else there is to say; `skipped`: how many more cannot be tried. The exit code."""
    absent = skipped
    # A shell that starts a runner in the background has it ignore what a terminal sends, and its jobs would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    # Who ends it with a signal ends what it started, too.
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
