# SPDX-License-Identifier: MIT OR Apache-2.0
"""scripts/lint finds the breaches that it is for."""

import sys
import tempfile
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
from harness.ci import prose  # noqa: E402
from test_layers import program  # noqa: E402

lint = program("lint")
LONG = "word " * 21


class Lines(unittest.TestCase):
    def test_long_comments_count_and_long_code_does_not(self):
        text = f"//! short\n/// {LONG}\nlet text = \"{LONG}\";\n    // {LONG}\n//! | {LONG} |\n"
        self.assertEqual(prose.long_lines(".rs", text), [2, 4])

    def test_documentation_strings_count(self):
        text = f'"""{LONG}"""\ndef f():\n    """Short.\n\n    {LONG}\n    """\n    return "{LONG}"\n# {LONG}\n'
        self.assertEqual(prose.long_lines(".py", text), [1, 5, 8])

    def test_of_markdown_tables_code_and_addresses_do_not_count(self):
        text = f"{LONG}\n| {LONG} |\n```console\n{LONG}\n```\n[a](https://{'x' * 120})\n- {LONG}\n"
        self.assertEqual(prose.long_lines(".md", text), [1, 7])
        self.assertEqual(prose.long_lines(".md", f"\n    {LONG}\n    {LONG}\n* a\n    {LONG}\n"), [5])


class Names(unittest.TestCase):
    def test_a_time_or_a_size_names_its_unit(self):
        text = (
            "const PATIENCE: u64 = 2_000_000_000;\nconst ATTACH_NS: u64 = 2_000_000_000;\n"
            "pub const ROOM: usize = 1 << 20;\n"
            "/// How long, in seconds.\nconst WAIT: u32 = 3;\nconst COUNT: u32 = 3;\npub(crate) const SHORT: Ns = 5;\n"
            "const SECOND: u64 = 1_000_000_000;\nconst RATE_BYTES_PER_S: u64 = 22 << 30;\n"
        )
        self.assertEqual(prose.without_unit(text), ["PATIENCE", "ROOM", "WAIT", "SHORT"])

    def test_types_of_one_name_are_counted(self):
        texts = ["pub struct Place;\nenum Way {}", "    pub(super) enum Place {}\n// struct Way;"]
        self.assertEqual(prose.repeated_types(texts), {"Place": 2})


class Rules(unittest.TestCase):
    def test_links_lead_somewhere(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder) / "docs"
            root.mkdir()
            (Path(folder) / "out.md").touch()
            file = root / "a.md"
            file.write_text(
                "# The `part` of [a](a.md)\n[x](a.md) [y](gone.md#part) [z](https://x.y)\n"
                "[p](#the-part-of-a) `[c](code.md)` [q](a.md#other) [o](../out.md)\n"
                "```\n# other\n[d](code.md)\n```\n"
            )
            broken = ["there is no gone.md", "a.md has no part #other", "../out.md is not in this folder"]
            self.assertEqual(list(prose.broken_links(root, file)), [f"a.md: {each}" for each in broken])

    def test_long_subjects_are_named(self):
        self.assertEqual(len(prose.long_subjects(["x" * 72, "x" * 73])), 1)

    def test_a_count_may_not_grow_and_an_allowance_may_not_outlive_it(self):
        now = {"long_lines": {"a": 3}, "without_unit": {}}
        self.assertEqual(list(lint.grown({"long_lines": {"a": 3}}, now)), [])
        self.assertEqual(list(lint.grown({"long_lines": {"a": 4}}, now)), [])
        self.assertIn("3, allowed 2", list(lint.grown({"long_lines": {"a": 2}}, now))[0])
        self.assertIn("3, allowed 0", list(lint.grown({}, now))[0])
        self.assertIn("none there", list(lint.grown({"long_lines": {"a": 3, "b": 1}}, now))[0])

    def test_shrinking_never_allows_more(self):
        text = lint.shrunk("x", False, {"long_lines": {"a": 2, "b": 5, "c": 1}}, {"long_lines": {"a": 3, "b": 4}})
        self.assertTrue(text.endswith('[long_lines]\n"a" = 2\n"b" = 4\n'), text)
        self.assertIn('since = "x"\n# Whether each source file names its licence.\nspdx = false\n', text)

    def test_a_licence_goes_first_but_behind_a_programs_own_line(self):
        for suffix, text, new in (
            (".rs", "//! A module.\n", f"// {prose.SPDX}\n//! A module.\n"),
            (".rs", "#![no_std]\n", f"// {prose.SPDX}\n#![no_std]\n"),
            (".py", "", f"# {prose.SPDX}\n"),
            ("", "#!/bin/sh\n# It does.\n", f"#!/bin/sh\n# {prose.SPDX}\n# It does.\n"),
        ):
            self.assertEqual(prose.with_spdx(suffix, text), new)
            self.assertEqual(prose.with_spdx(suffix, new), new)
        self.assertIn("scripts/layout", lint.sources())

    def test_a_licence_is_no_prose(self):
        text = prose.with_spdx(".rs", "//! Place is one.\n")
        self.assertEqual(prose.Prose(".rs", text).words, 3)
        self.assertEqual(list(prose.begun_by_a_type(text, {"Place"})), [2])
        self.assertEqual(prose.Prose(".py", prose.with_spdx(".py", '"""One."""\n')).words, 1)

    def test_the_tree_is_read(self):
        tree = lint.files()
        self.assertIn("scripts/lint", tree)
        self.assertIn("README.md", tree)
        seen = []
        lint.counts({"a/b.rs": f"// {LONG}\nstruct A;\nconst LONG: Ns = 1;", "c/d.rs": "struct A;"}, seen.append)
        self.assertEqual(len(seen), 3, seen)


if __name__ == "__main__":
    unittest.main()
