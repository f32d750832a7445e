# SPDX-License-Identifier: MIT OR Apache-2.0
"""Stages that run together: each is begun in its turn, all are waited for, and none is lost."""

import sys
import threading
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from harness.ci.stages import Beside  # noqa: E402

# Seconds that a case waits for an event that never comes.
BOUND_S = 60


class TestBeside(unittest.TestCase):
    def test_one_lane_keeps_the_order(self):
        begun = []
        Beside(*[lambda n=n: begun.append(n) for n in range(20)]).finish()
        self.assertEqual(begun, list(range(20)))

    def test_two_lanes_play_two_at_a_time(self):
        meet = threading.Barrier(2)
        Beside(lambda: meet.wait(BOUND_S), lambda: meet.wait(BOUND_S), lanes=2).finish()
        self.assertFalse(meet.broken)

    def test_lanes_come_when_the_run_waits(self):
        meet, begun = threading.Barrier(2), []

        def call():
            begun.append(meet.wait(BOUND_S))

        Beside(call, call).finish(more=1)
        self.assertEqual(len(begun), 2)

    def test_what_raises_is_told_and_the_others_go_on(self):
        begun = []
        others = Beside(lambda: 1 // 0, lambda: begun.append("next"))
        with self.assertRaises(ZeroDivisionError):
            others.finish()
        self.assertEqual(begun, ["next"])


if __name__ == "__main__":
    unittest.main()
