"""`scripts/cluster kubernetes`: the device plugin against a stand-in for the kubelet, and the
chart's output against the published schemas. No kubelet, no API server.
"""

import argparse
import json
import os
import subprocess
import sys

from . import paths

# Seconds for the plugin's tests: a first build compiles a hundred crates on two busy cores.
BOUND_S = 1800

CRATE = paths.ROOT / "deploy" / "kubernetes" / "device-plugin"
BUILT = paths.TARGET / "device-plugin"
PLUGIN = BUILT / "debug" / "weft-device-plugin"
# Program of the tests' containers: a CUDA job that prints its result and its data in weft.
JOB = paths.ROOT / "tests" / "cluster" / "pod.py"
# The plugin's container has no capability, though it runs as root.
RIGHTS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]


def cargo(word, *options, last=(), **variables):
    """Runs cargo on the plugin, which is a separate workspace. True if it succeeded."""
    command = ["cargo", word, *options, "--manifest-path", CRATE / "Cargo.toml", "--locked"]
    command += ["--target-dir", BUILT, *(["--", *last] if last else [])]
    done = subprocess.run(
        command, env={**os.environ, **variables}, cwd=CRATE, check=False, timeout=BOUND_S
    )
    return done.returncode == 0


def formatted():
    """Whether `cargo fmt` would change nothing."""
    words = ["cargo", "fmt", "--check"]
    return subprocess.run(words, cwd=CRATE, check=False, timeout=BOUND_S).returncode == 0


def contract():
    """Runs the plugin's tests, with the real broker, and jobs on the simulated GPU."""
    needed = [paths.WEFT, paths.LIBWEFT, paths.SIMGPU_CUDA, paths.SIMGPU_DEVICE]
    absent = [file for file in needed if not file.exists()]
    if absent:
        print(f"cluster: {absent[0]} is not built: run scripts/layout", file=sys.stderr)
        return False
    # Further data of a test's container: the path of the simulated GPU.
    device = {
        "SIMGPU_DEVICE_BIN": str(paths.SIMGPU_DEVICE),
        "LD_LIBRARY_PATH": str(paths.SIMGPU_LIB),
        "WEFT_CUDA_LIBRARY": str(paths.SIMGPU_CUDA),
        "PYTHONPATH": str(paths.CLIENTS / "guest"),
    }
    return cargo(
        "test",
        last=["--include-ignored", "--test-threads=2"],
        WEFT_TEST_PROGRAM=str(paths.WEFT.resolve()),
        WEFT_TEST_JOB=json.dumps([sys.executable, str(JOB)]),
        WEFT_TEST_DEVICE=json.dumps(device),
        WEFT_TEST_RIGHTS=json.dumps(RIGHTS),
    )


def manifests():
    """Checks the chart's output, and the examples."""
    setup = [paths.ROOT / "scripts" / "setup", "pytest", "kubernetes"]
    if subprocess.run(setup, check=False, timeout=BOUND_S).returncode:
        return False
    words = [paths.venv("pytest") / "bin" / "pytest", "tests/cluster/test_kubernetes.py"]
    return subprocess.run(words, cwd=paths.ROOT, check=False, timeout=BOUND_S).returncode == 0


def write():
    """Writes the manifest for users without Helm."""
    helper = paths.ROOT / "tests" / "cluster" / "manifests.py"
    words = [paths.python("kubernetes"), helper, "--plain"]
    done = subprocess.run(words, capture_output=True, check=False, timeout=BOUND_S)
    if done.returncode:
        print(done.stderr.decode(errors="replace"), file=sys.stderr)
        return 1
    (CRATE.parent / "weft.yaml").write_bytes(done.stdout)
    return 0


def main(arguments):
    """Returns the exit code: 1 if a check fails."""
    parser = argparse.ArgumentParser("scripts/cluster kubernetes", description=__doc__)
    parser.add_argument("--check", action="store_true", help="all of it (the default)")
    parser.add_argument("--quick", action="store_true", help="without formatting and lints")
    parser.add_argument("--write", action="store_true", help="write deploy/kubernetes/weft.yaml")
    given = parser.parse_args(arguments)
    if given.write:
        return write()
    steps = {"contract": contract, "manifests": manifests}
    if not given.quick:
        steps["format"] = formatted
        steps["clippy"] = lambda: cargo("clippy", "--all-targets", last=["-D", "warnings"])
    failed = [name for name, step in steps.items() if not step()]
    print(f"kubernetes: failed: {', '.join(failed)}" if failed else "kubernetes: all as promised")
    return int(bool(failed))
