# SPDX-License-Identifier: MIT OR Apache-2.0
"""scripts/release: one version in all files, a cut changelog, a tag only on a clean tree."""

import shutil
import subprocess
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from harness import package, paths, release, workspaces  # noqa: E402

LOG = "# Changelog\n\n## Unreleased\n\n### Added\n\n* A thing.\n\n## 0.1.0 - 2026-11-23\n\n* The first.\n"


class Tree(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for files, _ in release.NAMED:
            for name in files:
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, self.root / name)
        (self.root / "CHANGELOG.md").write_text(LOG)

    def git(self, *words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(["git", *identity, *words], cwd=self.root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def committed(self):
        self.git("init", "--quiet")
        self.git("config", "user.name", "a")
        self.git("config", "user.email", "a@b")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "a")
        self.enterContext(mock.patch.object(paths, "ROOT", self.root))


class Versions(Tree):
    def test_the_files_of_the_tree_agree(self):
        self.assertEqual(release.disagreeing(package.version()), [])
        self.assertIsNotNone(release.section(package.version()), "the changelog has no such section")

    def test_a_file_that_disagrees_is_named_with_its_line(self):
        file = self.root / "deploy/kubernetes/chart/Chart.yaml"
        file.write_text(file.read_text().replace(f"\nversion: {package.version()}", "\nversion: 9.9.9"))
        self.assertEqual(release.disagreeing(package.version(), self.root), [f"deploy/kubernetes/chart/Chart.yaml:5: 9.9.9, not {package.version()}"])
        file.write_text("name: weft\n")
        with self.assertRaises(package.Failed):
            release.disagreeing(package.version(), self.root)

    def test_a_new_version_is_written_everywhere_and_nothing_else_changes(self):
        release.set_version("7.8.9", "2030-01-02", self.root)
        self.assertEqual(release.disagreeing("7.8.9", self.root), [])
        for files, _ in release.NAMED:
            for name in files:
                old, new = (ROOT / name).read_text().splitlines(), (self.root / name).read_text().splitlines()
                self.assertEqual(len(old), len(new), name)
                for before, after in zip(old, new):
                    self.assertEqual(after if before == after else after.replace("7.8.9", package.version()), before, name)
        # Packages of others keep theirs.
        lock = tomllib.loads((self.root / "Cargo.lock").read_text())
        self.assertNotIn("7.8.9", [each["version"] for each in lock["package"] if "source" in each])

    def test_every_package_of_the_workspaces_has_its_metadata(self):
        for workspace in workspaces.ALL:
            found = workspace.metadata("--no-deps", "--offline")["packages"]
            for each in found:
                self.assertEqual(each["version"], package.version(), each["name"])
                self.assertEqual(each["license"], "MIT OR Apache-2.0", each["name"])
                self.assertTrue(each["description"], each["name"])
                self.assertFalse(each["repository"], "no address is known yet")
        product = [each for each in workspaces.NODE.metadata("--no-deps", "--offline")["packages"] if "/tests/" not in each["manifest_path"]]
        for each in product:
            self.assertTrue(each["keywords"] and each["categories"] and each["readme"], each["name"])


class Changelog(Tree):
    def test_unreleased_becomes_the_section_of_a_version(self):
        release.set_version("7.8.9", "2030-01-02", self.root)
        text = (self.root / "CHANGELOG.md").read_text()
        self.assertEqual(release.section("7.8.9", text), ("2030-01-02", "### Added\n\n* A thing."))
        self.assertEqual(release.section("Unreleased", text), (None, ""))
        self.assertEqual(release.section("0.1.0", text), ("2026-11-23", "* The first."))
        self.assertIsNone(release.section("0.1", text))
        # Again: it is cut once.
        release.set_version("7.8.9", "2030-01-03", self.root)
        self.assertEqual((self.root / "CHANGELOG.md").read_text(), text)


class Tag(Tree):
    def test_a_tag_is_set_once_on_a_clean_tree_of_a_released_version(self):
        self.committed()
        with self.assertRaisesRegex(package.Failed, "CHANGELOG.md has no section of 7.8.9"):
            release.tag("7.8.9")
        release.set_version("7.8.9", "2030-01-02", self.root)
        with self.assertRaisesRegex(package.Failed, "changes are not committed: .*Cargo"):
            release.tag("7.8.9")
        self.git("commit", "--quiet", "--all", "--message", "release")
        self.assertEqual(self.git("tag"), "")
        self.assertEqual(release.tag("7.8.9"), "v7.8.9")
        self.assertEqual(self.git("cat-file", "-t", "v7.8.9"), "tag")
        with self.assertRaisesRegex(package.Failed, "the tag v7.8.9 is there"):
            release.tag("7.8.9")

    def test_lines_under_unreleased_keep_a_tag_away(self):
        release.set_version("7.8.9", "2030-01-02", self.root)
        file = self.root / "CHANGELOG.md"
        file.write_text(file.read_text().replace("## Unreleased\n", "## Unreleased\n\n* A late thing.\n"))
        self.committed()
        with self.assertRaisesRegex(package.Failed, "lines under Unreleased"):
            release.tag("7.8.9")


class Files(Tree):
    def test_the_chart_is_packed_as_helm_packs_it(self):
        file = release.chart(self.root)
        self.assertEqual(file.name, f"weft-{package.version()}.tgz")
        shutil.unpack_archive(file, self.root / "unpacked", filter="data")
        for source in (release.KUBERNETES / "chart").rglob("*"):
            if source.is_file():
                copy = self.root / "unpacked" / "weft" / source.relative_to(release.KUBERNETES / "chart")
                self.assertEqual(copy.read_bytes(), source.read_bytes())

    def test_checksums_are_those_that_sha256sum_reads(self):
        file = self.root / "a file"
        file.write_text("x")
        release.checksums([file], self.root)
        check = ["sha256sum", "--check", "--strict", release.SUMS]
        self.assertEqual(subprocess.run(check, cwd=self.root, capture_output=True, check=False).returncode, 0)
        file.write_text("y")
        self.assertEqual(subprocess.run(check, cwd=self.root, capture_output=True, check=False).returncode, 1)

    def test_each_file_of_a_release_has_its_command(self):
        commands = {}
        for name in ("weft-1-x86_64.tar.gz", "weft_1_amd64.deb", "weft_gpu-1-py3-none-any.whl", "weft-1.tgz", "weft-image-1.tar", "weft-image-context-1.tar.gz"):
            commands[name] = release.install(Path(name))
            self.assertIn(name, commands[name])
        self.assertEqual(len({command.split()[0] + command.split()[1] for command in commands.values()}), 5)


if __name__ == "__main__":
    unittest.main()
