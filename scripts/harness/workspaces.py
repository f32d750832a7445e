# SPDX-License-Identifier: MIT OR Apache-2.0
"""The cargo workspaces that tests need, in the order in which they are built.

One folder takes what all of them build (`paths.TARGET`), so jobs and scripts find a file by one
path whichever workspace it is from.
"""

import dataclasses
import json
import subprocess
from pathlib import Path

from . import paths


@dataclasses.dataclass(frozen=True)
class Workspace:
    """A workspace: its name in logs, its folder, and the features that its build takes."""

    name: str
    folder: Path
    features: tuple = ()

    def cargo(self, word, *options):
        """A command of cargo in this workspace. It may run in any folder."""
        command = ["cargo", word, "--manifest-path", self.folder / "Cargo.toml", "--target-dir", paths.TARGET]
        return [str(part) for part in [*command, *options]]

    def build(self, *options):
        """The build of all packages. With fewer, cargo gives shared packages other features."""
        return self.cargo("build", "--workspace", *self.features, *options)

    def metadata(self, *options):
        """cargo's metadata of the workspace. Raises CalledProcessError."""
        command = ["cargo", "metadata", "--format-version", "1", *options]
        command += ["--manifest-path", self.folder / "Cargo.toml"]
        done = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)


# weft itself: what is installed on a machine with a GPU, with its tests.
NODE = Workspace("node", paths.ROOT)
# The simulated GPU and the programs that use one. PyTorch and cupy need the feature.
SIMGPU = Workspace("simgpu", paths.ROOT / "tests" / "simgpu", ("--features", "simgpu-driver/cuda-runtime"))
# The laboratories: weft's decisions in virtual time.
LAB = Workspace("lab", paths.ROOT / "tests" / "lab")
ALL = [NODE, SIMGPU, LAB]
