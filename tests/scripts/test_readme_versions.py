# SPDX-License-Identifier: MIT OR Apache-2.0
"""README names the versions that the tests really install."""

import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Versions(unittest.TestCase):
    def test_each_version_of_readme_is_the_one_that_is_installed(self):
        words = [sys.executable, str(ROOT / "scripts" / "tested"), "--check"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
