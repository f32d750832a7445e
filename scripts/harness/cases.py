"""The cases of a test runner: which of them run, in what order, and what is said of each. Every runner's end is here.

A case gets a folder of its own and fails by an exception: an AssertionError says by itself what was seen, any other one comes with its traceback. What it returns, if
anything, stands behind its `ok`. What cannot be tried here it says by a Skip. The last line of a runner is `N passed, N failed`, with `, N skipped` where some were.
"""

import argparse
import signal
import sys
import time
import traceback

from . import jobs, show


def parser(description, policy=True):
    """The options that runners have in common: words, --keep and (`policy`) --policy."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("words", nargs="*", help="only cases with one of these words in their name")
    options.add_argument("--keep", action="store_true", help="leave the folders of the cases")
    if policy:
        jobs.policy_option(options)
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


def play_named(runner, named, options, what="case"):
    """Plays those of `named`, pairs as for `play`, with one of `options.words` in their name, all if there are none. The exit code: 2 where no `what` is called so."""
    chosen = [(name, function) for name, function in named if not options.words or any(word in name for word in options.words)]
    if not chosen:
        print(f"{runner}: no {what} is called so: {', '.join(options.words)}", file=sys.stderr)
        return 2
    return play(runner, chosen, options.keep)


class Cases:
    """The cases of a runner that play in a scene, in the order in which they stand there."""

    def __init__(self, runner, scene, missing=lambda: None):
        """`scene`: what makes one of a folder, the run's options and a policy, and of what a case is marked with; it has an `open` and a `close`. `missing`: what is not built, or None."""
        self.runner, self.scene, self.missing = runner, scene, missing
        self.all = []

    def __call__(self, function):
        self.all.append((function, None, {}))
        return function

    def also(self, policy):
        """Marks a case that is played under the default policy and once more under this one, unless a run names one."""

        def mark(function):
            self.all += [(function, None, {}), (function, policy, {})]
            return function

        return mark

    def where(self, **more):
        """Marks a case whose scene is made of this, too."""

        def mark(function):
            self.all.append((function, None, more))
            return function

        return mark

    def run(self, options):
        """Runs those with one of `options.words` in their name, all if there are none. The exit code."""
        missing = self.missing()
        if missing:
            print(f"{self.runner}: {missing}", file=sys.stderr)
            return 1
        chosen = []
        for function, policy, more in self.all:
            if policy and options.policy or options.words and not any(word in function.__name__ for word in options.words):
                continue
            name = function.__name__.replace("_", " ") + (f", under {policy}" if policy else "")
            chosen.append((name, self.in_scene(function, options, policy or options.policy, more)))
        if not chosen:
            print(f"{self.runner}: no case is called so: {', '.join(options.words)}", file=sys.stderr)
        return play(self.runner, chosen, options.keep)

    def in_scene(self, function, options, policy, more):
        def one(folder):
            scene = self.scene(folder, options, policy, **more)
            try:
                scene.open()
                return function(scene)
            finally:
                scene.close()

        return one
