# SPDX-License-Identifier: MIT OR Apache-2.0
"""Builds the pages of weft's packages with rustdoc only, from the files that the build has
compiled.

`cargo doc` would check every dependency once more. This reads cargo's messages of the builds that
scripts/test made. Faults are printed on stderr; it exits 1 then.
"""

import concurrent.futures
import fnmatch
import json
import os
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from harness import paths, workspaces  # noqa: E402
from harness.ci import cargo_tests  # noqa: E402

# Programs that share no name with a library, so that their pages overwrite none.
PROGRAMS = ["weft-test-*", "weft-bench-*", "weft-cluster-*", "weft-gpu-probe", "simgpu-client"]
LINTS = ["-D", "warnings", "-A", "rustdoc::private_intra_doc_links"]
LIBRARIES = {"lib", "rlib", "cdylib", "proc-macro"}


def metadata(workspace):
    """cargo's metadata with the features of the build: packages, what each depends on, members."""
    about = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True, cwd=paths.ROOT)
    host = about.stdout.partition("host: ")[2].splitlines()[0]
    # Packages for other platforms may never have been fetched.
    found = workspace.metadata("--offline", "--filter-platform", host, *workspace.features)
    packages = {package["id"]: package for package in found["packages"]}
    depends = {node["id"]: node["deps"] for node in found["resolve"]["nodes"]}
    return packages, depends, set(found["workspace_members"])


def is_library(target):
    return bool(LIBRARIES & set(target["kind"]))


def wanted(target):
    named = any(fnmatch.fnmatch(target["name"], pattern) for pattern in PROGRAMS)
    return is_library(target) or ("bin" in target["kind"] and named)


def commands(workspace):
    """(title, rustdoc's arguments, its further environment) of each library or program."""
    packages, depends, members = metadata(workspace)
    lines = cargo_tests.messages(workspace).read_text(errors="replace").splitlines()
    messages = [json.loads(line) for line in lines if line.startswith("{")]
    artifacts = [m for m in messages if m["reason"] == "compiler-artifact"]
    artifacts = [m for m in artifacts if not m["profile"]["test"]]
    scripts = {m["package_id"]: m for m in messages if m["reason"] == "build-script-executed"}
    libraries = {m["package_id"]: m for m in artifacts if is_library(m["target"])}

    def extern(name, message):
        files = [file for file in message["filenames"] if file.endswith((".rlib", ".so"))]
        return ["--extern", f"{name.replace('-', '_')}={files[0]}"] if files else []

    for artifact in artifacts:
        package, target = artifact["package_id"], artifact["target"]
        if package not in members or not wanted(target):
            continue
        words = ["--edition", target["edition"], "--crate-type", target["crate_types"][0]]
        words += ["--crate-name", target["name"].replace("-", "_"), target["src_path"]]
        words += ["--document-private-items", "-o", paths.TARGET / "doc", *LINTS]
        words += ["-L", f"dependency={paths.BUILT / 'deps'}"]
        for feature in artifact["features"]:
            words += ["--cfg", f'feature="{feature}"']
        for dependency in depends[package]:
            normal = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            # A dependency that this target does not have was not built.
            if normal and dependency["pkg"] in libraries:
                words += extern(dependency["name"], libraries[dependency["pkg"]])
        if not is_library(target) and package in libraries:
            library = libraries[package]
            words += extern(library["target"]["name"], library)
        about = packages[package]
        keys = ("name", "version", "description")
        more = {f"CARGO_PKG_{key.upper()}": about[key] or "" for key in keys}
        more |= {"CARGO_MANIFEST_DIR": str(Path(about["manifest_path"]).parent)}
        if not is_library(target):
            more["CARGO_BIN_NAME"] = target["name"]
        if script := scripts.get(package):
            more |= {"OUT_DIR": script["out_dir"], **dict(script["env"])}
            for cfg in script["cfgs"]:
                words += ["--cfg", cfg]
        yield target["name"], words, more


def make(entry):
    title, words, more = entry
    command = ["rustdoc", *map(str, words)]
    environment = {**os.environ, **more}
    done = subprocess.run(
        command, cwd=paths.ROOT, env=environment, capture_output=True, text=True, check=False
    )
    return title, done.returncode, done.stderr


def main():
    every = [entry for workspace in workspaces.ALL for entry in commands(workspace)]
    # Each writes into the index of all, which takes a lock.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        done = list(pool.map(make, every))
    wrong = [(title, code, said) for title, code, said in done if code]
    # Faults last: a failure's report shows the end of the output.
    for title, code, said in wrong:
        print(f"{title}: rustdoc ended with {code}\n{said}", end="", file=sys.stderr)
    print(f"{len(every)} documented, {len(wrong)} with faults")
    return 1 if wrong or not every else 0


if __name__ == "__main__":
    sys.exit(main())
