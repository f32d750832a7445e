# SPDX-License-Identifier: MIT OR Apache-2.0
"""scripts/layers finds the faults that it is for, and sees no circles that are not there."""

import importlib.machinery
import importlib.util
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
from harness.ci import modules  # noqa: E402


def program(name):
    """A script as a module."""
    loader = importlib.machinery.SourceFileLoader(name, str(SCRIPTS / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


layers = program("layers")


class Crates(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def crate(self, **files):
        """A crate of these files; two underscores are a slash."""
        for name, text in files.items():
            file = self.root / "src" / (name.replace("__", "/") + ".rs")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return modules.Crate(self.root / "src")

    def test_four_files_in_a_circle_are_found_and_three_are_not(self):
        four = dict(lib="mod a; mod b; mod c; mod d;", a="use crate::b::B;", b="use super::c::C;")
        four["c"] = "fn f() { crate::d::g() }"
        self.assertEqual(self.crate(**four, d="use crate::a::A;").file_circles(), [["a.rs", "b.rs", "c.rs", "d.rs"]])
        self.assertEqual(self.crate(**four, d="").file_circles(), [])
        self.assertEqual(self.crate(c="use crate::a::A;").file_circles(), [])

    def test_folders_in_a_circle_are_found(self):
        uses = dict(lib="mod a; mod b;", a__mod="mod x;", a__x="use crate::b::Y;", b="use crate::a::x::X;")
        self.assertEqual(self.crate(**uses).folder_circles(), [["a", "b"]])
        self.assertEqual(self.crate(b="").folder_circles(), [])

    def test_mod_lines_and_re_exports_are_no_uses(self):
        crate = self.crate(
            lib="mod a;",
            a__mod="mod x; mod y; mod z;\npub use x::X;\npub use self::y::Y;\npub use z::Z;",
            a__x="pub struct X; use super::Y;",
            a__y="pub struct Y; use super::{Z as Other};",
            a__z="pub struct Z;",
        )
        self.assertEqual(modules.components(crate.uses), [])
        self.assertEqual(crate.uses[("a", "x")], {("a", "y")}, "a re-export leads to the owner")

    def test_a_real_use_of_a_child_is_one(self):
        crate = self.crate(lib="mod a;", a__mod="mod x; pub struct P(x::X);", a__x="pub struct X; use super::P;")
        self.assertEqual(crate.uses[("a",)], {("a", "x")})
        self.assertEqual(len(modules.components(crate.uses)[0]), 2)

    def test_comments_strings_and_tests_use_nothing(self):
        crate = self.crate(
            lib="mod a; mod b;",
            a='// crate::b::B\nfn f() { let s = "crate::b::B"; let c = \'"\'; }\n'
            "#[cfg(test)]\nmod tests { fn g() { if true { crate::b::h() } } }\n#[cfg(test)]\nuse crate::b::B;",
            b="",
        )
        self.assertEqual(crate.uses[("a",)], set())

    def test_a_module_that_was_imported_counts_by_what_is_taken_from_it(self):
        crate = self.crate(lib="mod a; mod b;", a="use crate::b; fn f() { b::c::g() }", b__mod="pub mod c;", b__c="")
        self.assertEqual(crate.uses[("a",)], {("b", "c")})


    def test_rooms_are_read_in_every_form(self):
        crate = self.crate(
            lib="mod a; mod b; mod c; mod d; mod e;",
            a__mod="use crate::{b::{x, y}, c};\nfn f() { c::z() } // crate::nothing",
            a__in="macro_rules! m { () => { $crate::d::y } } use super::super::e::E;",
            b="pub use crate::d::D;",
            c="pub fn z() -> crate::b::D {}",
            d="pub struct D;",
            e="pub struct E;",
        )
        self.assertEqual(
            crate.room_uses(),
            [
                ("a/in.rs", "d"),
                ("a/in.rs", "e"),
                ("a/mod.rs", "b"),
                ("a/mod.rs", "c"),
                ("b.rs", "d"),
                ("c.rs", "b"),
                ("c.rs", "d"),
            ],
            "by name, and by what a re-export leads to",
        )


class Rules(unittest.TestCase):
    def test_a_room_uses_rooms_below_it(self):
        def said(floors, uses, rooms=("low", "high")):
            return list(layers.room_breaches("x", floors, set(rooms), uses))

        self.assertEqual(said([["low"], ["high"]], [("high/a.rs", "low"), ("high.rs", "low")]), [])
        self.assertEqual(said([["low", "high"]], [("high.rs", "low"), ("low.rs", "high")]), [])
        self.assertIn("low.rs uses high", said([["low"], ["high"]], [("low.rs", "high")])[0])
        self.assertIn(
            "low/a.rs uses high",
            said([["base"], ["low", "high"]], [("low/a.rs", "high")], ("base", "low", "high"))[0],
        )
        self.assertIn("high stands on no floor", said([["low"]], [])[0])
        self.assertIn("no such room", said([["low"], ["high"], ["gone"]], [])[0])

    def test_the_rooms_of_the_interposer_are_read(self):
        source = SCRIPTS.parent / "interposer" / "src"
        uses = modules.Crate(source).room_uses()
        self.assertGreater(len(uses), 200, f"{len(uses)} uses of other rooms were read")
        self.assertIn(("throttle/mod.rs", "trace"), uses)

    def test_a_dependency_against_the_order_is_a_breach(self):
        crates = {"low": (None, []), "high": (None, ["low"])}
        self.assertEqual(list(layers.crate_breaches([["low"], ["high"]], crates)), [])
        self.assertIn("high depends on low", list(layers.crate_breaches([["high"], ["low"]], crates))[0])
        self.assertIn("high depends on low", list(layers.crate_breaches([["high", "low"]], crates))[0])
        self.assertIn("high stands in no layer", list(layers.crate_breaches([["low"]], crates))[0])
        self.assertIn("no such crate", list(layers.crate_breaches([["low"], ["high"], ["gone"]], crates))[0])

    def test_a_circle_may_not_grow_and_an_allowance_may_not_outlive_it(self):
        four = {"x": {"files": [["a", "b", "c", "d"]], "folders": []}}
        self.assertEqual(list(layers.circle_breaches({"x": {"files": [4]}}, four)), [])
        self.assertIn("4 files in a circle, allowed 0: a b c d", list(layers.circle_breaches({}, four))[0])
        self.assertIn("allowed 5: run", list(layers.circle_breaches({"x": {"files": [5]}}, four))[0])
        self.assertIn("0 files in a circle, allowed 4", list(layers.circle_breaches({"x": {"files": [4, 4]}}, four))[0])

    def test_shrinking_never_allows_more(self):
        text = "layers = []\n[circles]\nx = { files = [5], folders = [2] }\ny = { files = [9] }\n"
        now = {"x": {"files": [["a"] * 4, ["b"] * 4], "folders": [["a"] * 3]}, "y": {"files": []}}
        self.assertEqual(layers.shrunk(text, now), "layers = []\n[circles]\nx = { files = [4], folders = [2] }\n")

    def test_the_crates_of_the_tree_are_found(self):
        crates = layers.workspace(SCRIPTS.parent)
        self.assertIn("weft-interposer", crates)
        self.assertIn("weft-profiles", crates["weft-lab"][1])


if __name__ == "__main__":
    unittest.main()
