# SPDX-License-Identifier: MIT OR Apache-2.0
"""scripts/lab colocation: the rows that are compared, their files, and those that are inside."""

import contextlib
import csv
import gzip
import io
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from harness import colocation  # noqa: E402

FIELDS = ["gpu", "job", "other", "alone_steps_per_s", "together_steps_per_s", "share_of_alone"]
SMALL, LARGE, WORDS = list(colocation.GAVEL)
ROWS = [
    ("v100", SMALL, SMALL, "10", "6", "0.6"),
    ("v100", SMALL, WORDS, "10", "3", "0.3"),
    ("v100", WORDS, SMALL, "60", "30", "0.504"),
    ("v100", SMALL, LARGE, "10", "5", "0.5"),
    ("v100", LARGE, LARGE, "8", "3", "0.366"),
    ("v100", "A3C", SMALL, "9", "3", "0.4"),
]


class Comparison(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        patched = mock.patch.dict(os.environ, {"WEFT_TRACES": folder.name})
        patched.start()
        self.addCleanup(patched.stop)

    def tables(self):
        (self.folder / "colocation").mkdir()
        with gzip.open(self.folder / "colocation" / "gavel-pairs.csv.gz", "wt") as table:
            csv.writer(table).writerows([FIELDS, *ROWS])

    def test_rows_of_one_gpu_are_predicted_once_a_pair_and_counted(self):
        self.tables()
        asked = []

        def predict(*jobs):
            if len(jobs) == 2:
                asked.append(tuple(job.stem for job in jobs))
            mps, slices = {"low": 0.5951, "high": 0.7}, {"low": 0.45, "high": 0.5049}
            ways = [{"way": "MPS", "batch": [mps]}, {"way": "time slices", "batch": [slices]}]
            return {"ways": ways, "solo_ns": {"mean": {"point": 25e6}}}

        # A file cannot be stretched by its host if its kernels take longer.
        fit = lambda file, how, _ns, _folder: file if how == "kernels" else None  # noqa: E731
        lines = colocation.text(*colocation.compared(colocation.folder(), predict, fit))
        names = {job: name for job, (name, _) in colocation.GAVEL.items()}
        pairs = [(SMALL, SMALL), (WORDS, SMALL), (SMALL, WORDS), (LARGE, LARGE)]
        # The job whose speed the row has is the batch job, the other one the service.
        self.assertEqual(asked, [(names[other], names[job]) for other, job in pairs])
        rows = [line for line in lines if line.startswith("v100")]
        self.assertEqual([line.count("*") for line in rows], [1, 0, 1, 0])
        self.assertIn("inside, all: MPS 1, time slices 1, either 2 of 4; aim 90%", lines)
        self.assertIn("4 of 6 rows. No file of 1 of 4 jobs:", lines)
        self.assertTrue(any("v100 10.0; resnet50-train 40.0" in line for line in lines), lines)

    def test_a_row_has_the_interval_of_both_stretches(self):
        part = lambda low, high: {"ways": [{"way": "MPS", "batch": [{"low": low, "high": high}]}]}  # noqa: E731
        both = colocation.interval(None, "MPS", [part(0.4, 0.5), part(0.6, 0.9)])
        self.assertEqual(both, {"low": 0.4, "high": 0.9})
        launch, wait = {"call": {"Launch": {"duration": 10}}}, {"call": {"Sync": "All"}}
        trace = lambda: json.loads(json.dumps({"steps": [{"think": 5, "operations": [launch, wait]}]}))  # noqa: E731
        longer = colocation.stretched(trace(), "kernels", 3.0)["steps"][0]
        self.assertEqual((longer["think"], longer["operations"][0]["call"]["Launch"]["duration"]), (5, 30))
        longer = colocation.stretched(trace(), "host", 7)["steps"][0]
        self.assertEqual((longer["think"], longer["operations"][0]["call"]["Launch"]["duration"]), (12, 10))

    def test_without_the_tables_there_is_one_line(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(colocation.main(), 2)
        self.assertEqual(out.getvalue().count("\n"), 1)
        self.assertIn(f"{self.folder}/colocation: no gavel-pairs.csv.gz; set WEFT_TRACES", out.getvalue())


if __name__ == "__main__":
    unittest.main()
