# SPDX-License-Identifier: MIT OR Apache-2.0
"""Builds the files that the GPU machine needs, checks that they can run there, and puts them into
one folder.

The folder has the shape of cargo's target folder after scripts/layout, so harness/paths.py finds
everything in it if CARGO_TARGET_DIR names it. It contains files, no links: only the folder travels.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import elf, paths, workspaces

from . import clients

DEFAULT = paths.ROOT / ".gpu-bundle"

# The workspaces that build its files.
BUILT = [workspaces.NODE, workspaces.SIMGPU]

# The bundle is a plain build, and that GPU's machine is not older. For older ones there is
# scripts/package.
GLIBC = (2, 34)

# A call to a borrowed GPU machine carries 64 MiB. That includes tracked files of the repository and
# the overhead of packing.
MOST_BYTES = 62 << 20

# (file in target/release, place in the bundle)
FILES = [
    ("weft", "weft/weft"),
    ("libweft.so", "weft/libweft.so"),
    ("weft-gpu-probe", "release/weft-gpu-probe"),
    ("weft-bench-launch", "release/weft-bench-launch"),
    ("weft-test-client", "release/weft-test-client"),
    ("weft-test-companion", "release/weft-test-companion"),
    ("weft-test-patterns", "release/weft-test-patterns"),
    ("weft-test-order", "release/weft-test-order"),
    ("libnullcuda.so", "counting/libcuda.so.1"),
    ("libsimcuda.so", "simgpu/lib/libcuda.so.1"),
    ("libsimcuda.so", "simgpu/lib/libcuda.so"),
    ("libsimnvml.so", "simgpu/lib/libnvidia-ml.so.1"),
    ("simgpu-device", "simgpu/bin/simgpu-device"),
]


class Trouble(RuntimeError):
    """The reason why there is no bundle, in one line or a few."""


def packages(files):
    """The cargo packages that build these files, by their names in the workspace."""
    makers = {}
    try:
        found = [package for workspace in BUILT for package in workspace.metadata("--no-deps")["packages"]]
    except subprocess.CalledProcessError as error:
        raise Trouble(f"cargo metadata failed: {error.stderr.strip()[-400:]}") from error
    for package in found:
        for target in package["targets"]:
            # A program and a library may share a name (`weft`), so their files are distinguished.
            if "bin" in target["kind"]:
                makers[target["name"]] = package["name"]
            if "cdylib" in target["crate_types"]:
                makers[f"lib{target['name'].replace('-', '_')}.so"] = package["name"]
    missing = sorted({file for file, _ in files if file not in makers})
    if missing:
        raise Trouble(f"no package of this workspace builds {', '.join(missing)}")
    return sorted({makers[file] for file, _ in files})


def build(files):
    """Runs the release build of scripts/layout. A build of fewer packages would have other features
    and compile everything again.
    """
    packages(files)
    for workspace in BUILT:
        command = workspace.build("--profile", paths.PROFILE)
        print(" ".join(command), file=sys.stderr, flush=True)
        if subprocess.run(command, cwd=paths.ROOT, stdin=subprocess.DEVNULL, check=False).returncode:
            raise Trouble("the build failed; cargo's message above has the reason")


def glibc_faults(files):
    """A line for each symbol that needs a newer glibc than GLIBC, with its file."""
    limit = ".".join(map(str, GLIBC))
    return [
        f"{path}: needs {symbol} of {version}, newer than glibc {limit}"
        for path in files
        for symbol, version in elf.too_new(path, GLIBC)
    ]


def git(*arguments):
    try:
        done = subprocess.run(["git", *arguments], cwd=paths.ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def tool_version(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else None


def make(folder, *, from_target=None, files=None):
    """Puts the built files into `folder`; an old bundle is replaced as a whole. Returns the
    manifest.
    """
    folder = Path(folder)
    refuse_others(folder)
    release = Path(from_target or paths.TARGET) / paths.BUILT.name
    files = files or FILES
    missing = sorted({name for name, _ in files if not (release / name).exists()})
    if missing:
        raise Trouble(f"not built: {', '.join(missing)} (in {release}); leave out --no-build")
    faults = glibc_faults(sorted({release / name for name, _ in files}))
    if faults:
        raise Trouble("\n".join([*faults, "build where glibc is older, or avoid the symbol"]))
    # Replaces the folder as a whole: a suite that starts at this moment finds the old one or the
    # new one.
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".gpu-bundle-", dir=folder.parent) as aside:
        new = Path(aside) / "new"
        manifest = fill(new, release, files)
        if folder.exists():
            os.rename(folder, Path(aside) / "old")
        os.rename(new, folder)
    return manifest


def refuse_others(folder):
    """Raises Trouble if the folder is not a bundle."""
    is_mine = folder.is_dir() and (not any(folder.iterdir()) or (folder / "manifest.json").is_file())
    if not is_mine and (folder.exists() or folder.is_symlink()):
        raise Trouble(f"{folder}: exists and is no bundle: name another folder, or remove it")


def fill(new, release, files):
    """Copies the files, and writes their manifest. Returns it."""
    entries = {}
    for name, place in files:
        target = new / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(release / name, target)
        elf.strip(target)
        target.chmod(0o755)
        entries[place] = {"bytes": target.stat().st_size, "sha256": hashlib.sha256(target.read_bytes()).hexdigest()}
    # For a Python that reads no TOML.
    (new / clients.PLACE).write_text(clients.as_json())
    data = (new / clients.PLACE).read_bytes()
    entries[clients.PLACE] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    total = sum(entry["bytes"] for entry in entries.values())
    tracked = tracked_bytes()
    # Other builds than a release only serve to try the suite on the machine that built them.
    if paths.PROFILE == "release" and total + tracked > MOST_BYTES:
        of = f"{total >> 20} MiB and {tracked >> 20} MiB of tracked files"
        raise Trouble(f"{of}, more than the {MOST_BYTES >> 20} MiB that may travel; largest files: {largest(entries)}")
    manifest = {
        "commit": git("rev-parse", "HEAD") or "unknown",
        "changed": bool(git("status", "--porcelain", "--untracked-files=no")),
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "rustc": tool_version("rustc", "--version"),
        "weft": tool_version(str(new / "weft" / "weft"), "--version"),
        "glibc": ".".join(map(str, GLIBC)),
        "bytes": total,
        "files": entries,
    }
    (new / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    return manifest


def tracked_bytes():
    """Size of the repository's tracked files."""
    files = git("ls-files", "-z").split("\0")
    return sum(path.stat().st_size for name in files if name and (path := paths.ROOT / name).is_file())


def travelling(folder):
    """Bytes that go to the GPU machine with this bundle; None if there is no bundle."""
    manifest = manifest_of(folder)
    return manifest["bytes"] + tracked_bytes() if manifest else None


def largest(entries):
    order = sorted(entries.items(), key=lambda item: -item[1]["bytes"])
    return ", ".join(f"{name} {entry['bytes'] >> 20} MiB" for name, entry in order[:3])


def manifest_of(folder):
    """The manifest of a bundle, or None."""
    try:
        return json.loads((Path(folder) / "manifest.json").read_text())
    except (OSError, ValueError):
        return None


def damaged(folder, manifest):
    """Files of the bundle that did not arrive whole. Restores an executable bit that a copy lost.
    """
    wrong = []
    for place, entry in manifest["files"].items():
        path = Path(folder) / place
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != entry["sha256"]:
            wrong.append(place)
        elif not os.access(path, os.X_OK):
            path.chmod(0o755)
    return wrong
