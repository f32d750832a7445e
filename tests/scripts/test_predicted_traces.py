# SPDX-License-Identifier: MIT OR Apache-2.0
"""The demo's files for the lab: device times of a recording, and a scenario."""

import sys
import tomllib
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from harness.bench import prediction  # noqa: E402


def launch(kernel, duration=0):
    return {"call": {"Launch": {"kernel": kernel, "duration": duration}}}


def copy(size):
    return {"call": {"Copy": {"bytes": size, "duration": 0}}}


def recorded():
    operations = [copy(100), launch(0), launch(1), {"call": {"Wait": {}}}, copy(8)]
    return {
        "kernels": [{"id": {"symbol": "gemm"}}, {"id": {"symbol": "relu"}}],
        "steps": [{"operations": operations}],
    }


def log(*done):
    """Lines of a device's log: (operation, its name or size, time), each 10 ns behind the one
    before."""
    lines, at = [], 1_000
    for seq, (op, what, time) in enumerate(done):
        line = {"seq": seq, "op": op, "t": at, "end": at + time}
        line |= {"name": what} if op == "kernel" else {"bytes": what}
        lines.append(line)
        at += time + 10
    # The log's lines need not be in the order of submission.
    return sorted(lines, key=lambda line: -line["seq"])


STEP = (("copy", 100, 7), ("kernel", "gemm", 50), ("kernel", "relu", 20), ("copy", 8, 3))


class Prediction(unittest.TestCase):
    def test_the_last_operations_of_the_log_give_the_steps_their_times(self):
        warm_up = (("memset", 64, 1), ("kernel", "gemm", 999), ("kernel", "fill", 5))
        content = recorded()
        self.assertEqual(prediction.exact(content, log(*warm_up, *STEP)), 4)
        calls = [one["call"] for one in content["steps"][0]["operations"]]
        times = [next(iter(call.values())).get("duration") for call in calls]
        self.assertEqual(times, [7, 50, 20, None, 3])

    def test_a_log_of_other_operations_is_refused(self):
        other = (("copy", 100, 7), ("kernel", "relu", 50), ("kernel", "gemm", 20), ("copy", 8, 3))
        for wrong in (other, STEP[1:], ()):
            with self.assertRaises(RuntimeError):
                prediction.exact(recorded(), log(*wrong))

    def test_the_scenario_is_toml_with_the_runs_own_settings(self):
        job = {"name": '"service"', "arrivals": '{ process = "listed", us = [1.5] }'}
        text = prediction.scenario("random", "timeslice", 20, ["weft"], 200, 5, [job, job])
        found = tomllib.loads(text)
        self.assertEqual(found["policies"], ["default", "weft"])
        self.assertEqual(found["device"], {"mode": "time-sliced", "dilation": 20})
        self.assertEqual(len(found["job"]), 2)
        self.assertEqual(found["job"][0]["arrivals"]["us"], [1.5])
        self.assertEqual((found["requests"], found["warmup"]), (200, 5))


if __name__ == "__main__":
    unittest.main()
