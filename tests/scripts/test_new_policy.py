# SPDX-License-Identifier: MIT OR Apache-2.0
"""scripts/new-policy: a copy of the example under a new name, registered; and the page about it."""

import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path("broker/scheduler/src")
EXAMPLE = SOURCE / "policy" / "example.rs"


class NewPolicy(unittest.TestCase):
    def test_a_name_is_registered_once(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for path in ("scripts/new-policy", SOURCE / "config.rs", SOURCE / "policy" / "mod.rs", EXAMPLE):
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / path, root / path)
            run = lambda name: subprocess.run([root / "scripts" / "new-policy", name], capture_output=True, text=True)
            for name in ("night_shift", "quiet"):
                done = run(name)
                self.assertEqual(done.returncode, 0, done.stderr)
            names, policies = (root / SOURCE / "config.rs").read_text(), (root / SOURCE / "policy" / "mod.rs").read_text()
            self.assertIn("; 4] = [PolicyName::Fikit, PolicyName::Weft, PolicyName::NightShift, PolicyName::Quiet];", names)
            self.assertEqual(names.count('PolicyName::NightShift => "night_shift",'), 1)
            self.assertIn("PolicyName::NightShift => Box::new(night_shift::NightShift::default()),", policies)
            self.assertIn("pub(super) struct NightShift", (root / SOURCE / "policy" / "night_shift.rs").read_text())
            for name in ("quiet", "weft", "Quiet", "a-b"):
                self.assertEqual(run(name).returncode, 1, name)

    def test_the_page_shows_the_example(self):
        page = (ROOT / "docs" / "internals" / "new-policy.md").read_text()
        [shown] = re.findall(r"^```rust\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        self.assertIn(shown, (ROOT / EXAMPLE).read_text())
        self.assertLess(len((ROOT / EXAMPLE).read_text().splitlines()), 60)
