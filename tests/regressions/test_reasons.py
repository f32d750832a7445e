# SPDX-License-Identifier: MIT OR Apache-2.0
"""The end of a test run reports the assertion that failed, and the checks that were not tried."""

import pytest
from harness.ci import reasons, stages

LOG = [f"a line of the log, {number}" for number in range(60)]


@pytest.mark.finding("users2-T2")
def test_the_end_of_a_run_has_the_assertion_whatever_follows_it():
    """An assertion that shows a whole log, of cargo and of pytest, and one behind much output."""
    panic = ["thread 'caps' panicked at a.rs:244:5:", "assertion failed: the cap is told", *LOG]
    for text in (["---- caps stdout ----", *panic], ["---- caps stdout ----", *LOG, *panic]):
        told = reasons.of_cargo("\n".join([*text, "failures:", "test result: FAILED."]))
        assert "assertion failed: the cap is told" in told, told
        assert told[-1] == LOG[-1] and len(told) < 25, told
    told = reasons.bounded([["FAILED tests.x::y", "49 launches, not 50", *LOG]])
    assert "49 launches, not 50" in told and told[-1] == LOG[-1], told


CARGO = """     Running order tests/order.rs
running 2 tests
---- a_launch_waits stdout ----

thread 'a_launch_waits' (31) panicked at broker/gate/tests/order.rs:12:5:
assertion `left == right` failed: the order
  left: 1
 right: 2
stack backtrace:
   0: __rustc::rust_begin_unwind
             at /rustc/5/library/std/src/panicking.rs:689:5
note: Some details are omitted, run with `RUST_BACKTRACE=full` for a verbose backtrace.


failures:
    a_launch_waits

test result: FAILED. 1 passed; 1 failed; 0 ignored
     Running other src/lib.rs
---- tests::b stdout ----
Error: no file
test result: FAILED. 0 passed; 1 failed; 0 ignored
"""


def test_a_failed_test_of_cargo_is_its_program_assertion_and_place():
    assert reasons.of_cargo(CARGO) == [
        "FAILED order tests/order.rs: a_launch_waits",
        "thread 'a_launch_waits' (31) panicked at broker/gate/tests/order.rs:12:5:",
        "assertion `left == right` failed: the order",
        "  left: 1",
        " right: 2",
        "FAILED other src/lib.rs: tests::b",
        "Error: no file",
    ]


JUNIT = """<testsuites><testsuite>
<testcase classname="c" name="one"/>
<testcase classname="c" name="two"><skipped message="slurmd is not installed">x</skipped></testcase>
<testcase classname="c" name="three"><skipped message="slurmd is not installed">x</skipped></testcase>
</testsuite></testsuites>
"""


@pytest.mark.finding("users2-M11")
def test_the_last_lines_of_a_run_name_what_was_not_tried(folder, capsys):
    file = folder / "cluster.xml"
    file.write_text(JUNIT)
    results, why, untried = reasons.of_junit(file)
    assert (results, why) == ((1, 0, 2), [])
    tally = stages.Tally()
    tally.add("cluster", *results, "1 s", why, untried)
    capsys.readouterr()
    assert tally.finish() == 0
    told = capsys.readouterr()
    assert told.err.splitlines()[-2:] == ["NOT TRIED cluster: 2 cases: slurmd is not installed", ""]
    assert told.out == "1 passed, 0 failed, 2 skipped\n"
