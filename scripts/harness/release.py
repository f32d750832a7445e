# SPDX-License-Identifier: MIT OR Apache-2.0
"""A release: the files that name its version, the archives that users get, and the page."""

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

from . import elf, licences, package, paths, workspaces

OUT = paths.TARGET / "release-page"
PAGE, SUMS = "RELEASE.md", "SHA256SUMS"
CHANGELOG = "CHANGELOG.md"
KUBERNETES = paths.ROOT / "deploy" / "kubernetes"
PLUGIN = KUBERNETES / "device-plugin" / "target" / "release" / "weft-device-plugin"
PLUGINS_WORKSPACE = workspaces.Workspace("device-plugin", KUBERNETES / "device-plugin")
# The C library of debian:12-slim, which the image begins with.
IMAGE_GLIBC = (2, 36)
# Seconds in which an engine makes the image: it may fetch 30 MB first.
IMAGE_BOUND_S = 900

# Folders with a workspace of cargo, or a package apart.
CRATES = (".", "tests/simgpu", "tests/lab", "tests/soak/fuzz", "deploy/slurm/spank", "deploy/kubernetes/device-plugin")
# (files, pattern of a place that names the version)
NAMED = [
    ([f"{folder}/Cargo.toml" for folder in CRATES], r'^version = "([^"]+)"$'),
    # Packages of others have a source.
    ([f"{folder}/Cargo.lock" for folder in CRATES], r'^\[\[package\]\]\nname = "[^"]+"\nversion = "([^"]+)"\n(?!source)'),
    (["deploy/kubernetes/chart/Chart.yaml"], r'^(?:version|appVersion): "?([\d.]+)"?$'),
    (["deploy/kubernetes/weft.yaml"], r'(?:version: "|image: "weft:)([\d.]+)"$'),
    (["deploy/kubernetes/Containerfile", "docs/kubernetes.md"], r"\bweft[:-](\d+\.\d+\.\d+)\b"),
]


def places(root=paths.ROOT):
    """(file, text, match) of each place that names weft's version. Raises Failed if a file has
    none.
    """
    for files, pattern in NAMED:
        for file in (root / name for name in files):
            text = file.read_text()
            found = list(re.finditer(pattern, text, re.MULTILINE))
            if not found:
                raise package.Failed(f"{file}: it does not name weft's version")
            for match in found:
                yield file, text, match


def disagreeing(version, root=paths.ROOT):
    """A line for each place with another version."""
    return [
        f"{file.relative_to(root)}:{text.count(chr(10), 0, match.start(1)) + 1}: {match[1]}, not {version}"
        for file, text, match in places(root)
        if match[1] != version
    ]


def set_version(version, date, root=paths.ROOT):
    """Writes the version into every place, and cuts the changelog: "Unreleased" becomes this
    version's section.
    """
    spans = {}
    for file, _, match in places(root):
        spans.setdefault(file, []).append(match.span(1))
    for file, found in spans.items():
        text = file.read_text()
        for begin, end in reversed(found):
            text = text[:begin] + version + text[end:]
        file.write_text(text)
    changelog = root / CHANGELOG
    text = changelog.read_text()
    if section(version, text) is None:
        head = "## Unreleased\n"
        changelog.write_text(text.replace(head, f"{head}\n## {version} - {date}\n", 1))


def section(name, text=None):
    """The date and the text below the changelog's heading of a version, or None. "Unreleased" has
    no date.
    """
    text = (paths.ROOT / CHANGELOG).read_text() if text is None else text
    found = re.search(rf"^## {re.escape(name)}(?: - (\S+))?\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found and (found[1], found[2].strip())


def git(*words):
    """What git prints. Raises Failed."""
    return package.run("git", "-C", paths.ROOT, *words).strip()


def ready(version):
    """A line for each reason why this tree is no release of the version."""
    reasons = disagreeing(version, paths.ROOT)
    if section(version) is None:
        reasons.append(f"CHANGELOG.md has no section of {version}: run scripts/release --set {version}")
    elif section("Unreleased") and section("Unreleased")[1]:
        reasons.append("CHANGELOG.md has lines under Unreleased")
    return reasons


def tag(version):
    """Sets the tag of a release. Returns its name. Raises Failed."""
    reasons = ready(version)
    if changed := git("status", "--porcelain"):
        reasons.append(f"changes are not committed: {', '.join(line[3:] for line in changed.splitlines()[:4])}")
    name = f"v{version}"
    if git("tag", "--list", name):
        reasons.append(f"the tag {name} is there: {git('rev-list', '-1', '--abbrev-commit', name)}")
    if reasons:
        raise package.Failed("no tag is set\n" + "\n".join(reasons))
    git("tag", "--annotate", name, "--message", f"weft {version}")
    return name


def chart(out):
    """Packs the chart as `helm package` does."""
    folder = out / "weft"
    shutil.copytree(KUBERNETES / "chart", folder)
    file = out / f"weft-{package.version()}.tgz"
    package.pack(folder).rename(file)
    shutil.rmtree(folder)
    return file


def context(whole, out):
    """Makes the folder that the image is built from: the files that the Containerfile copies, under
    the paths that it names.
    """
    if not PLUGIN.exists():
        raise package.Failed(f"{PLUGIN} is not built: leave out --no-build")
    newer = elf.too_new(PLUGIN, IMAGE_GLIBC, weak=False)
    if newer:
        raise package.Failed(f"{PLUGIN}: needs {newer[0][0]} of {newer[0][1]}, which the image does not have")
    folder = out / f"weft-image-context-{package.version()}"
    packed = folder / "target" / "package" / whole.name
    packed.mkdir(parents=True)
    for name in package.FILES:
        shutil.copy(whole / name, packed / name)
    shutil.copytree(whole / "lib", packed / "lib", symlinks=True)
    for file in whole.glob("LICENSE-*"):
        shutil.copy(file, packed)
    texts = licences.text(package.TRIPLE, "weft-device-plugin", workspace=PLUGINS_WORKSPACE)
    (packed / f"{package.NOTICES}-PLUGIN").write_text(texts)
    for file in (PLUGIN, KUBERNETES / "Containerfile"):
        place = folder / file.relative_to(paths.ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    return folder


def engine():
    """An engine that builds images on this machine, or None."""
    for name in ("podman", "docker", "buildah"):
        if shutil.which(name):
            done = subprocess.run([name, "info"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
            if done.returncode == 0:
                return name
    return None


def image(whole, out):
    """Makes the image's archive, and returns it with None. Without an engine, or if that fails, it
    packs the folder for the build, and returns that with the reason.
    """
    folder, name = context(whole, out), f"weft:{package.version()}"
    file, reason = out / f"weft-image-{package.version()}.tar", "neither podman, docker nor buildah runs here"
    if program := engine():
        build = [program, "build", "--tag", name, "--file", folder / "deploy/kubernetes/Containerfile", folder]
        save = ["push", name, f"docker-archive:{file}:{name}"] if program == "buildah" else ["save", "--output", file, name]
        try:
            package.run(*build, bound_s=IMAGE_BOUND_S)
            package.run(program, *save, bound_s=IMAGE_BOUND_S)
            reason = None
        except package.Failed as error:
            reason = str(error)
    if reason:
        file = package.pack(folder)
    shutil.rmtree(folder)
    return file, reason


def checksums(files, out):
    """Writes the file for `sha256sum --check`. Returns its text."""
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (out / SUMS).write_text("".join(sums))
    return "".join(sums)


def size(file):
    """The size of a file, for people."""
    size_bytes = file.stat().st_size
    return f"{size_bytes / 2**20:.1f} MiB" if size_bytes >= 2**20 else f"{size_bytes / 2**10:.0f} KiB"


def install(file):
    """The command with which a user installs a file."""
    name, version = file.name, package.version()
    if name.startswith("weft-image-context"):
        folder = name.removesuffix(".tar.gz")
        return f"tar xf {name} && podman build -t weft:{version} -f {folder}/deploy/kubernetes/Containerfile {folder}"
    if name.startswith("weft-image"):
        return f"podman load --input {name}"
    if name.endswith(".deb"):
        return f"apt-get install ./{name}"
    if name.endswith(".whl"):
        return f"pip install ./{name}"
    if name.endswith(".tgz"):
        return f"helm install weft ./{name} --namespace weft-system"
    return f"tar xf {name} && export PATH=$PWD/{name.removesuffix('.tar.gz')}:$PATH"


def readme(heading):
    """The text of a section of README."""
    return (paths.ROOT / "README.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0].strip()


def page(files, out, glibc):
    """Writes the release's page next to its files. Returns its path."""
    version = package.version()
    date, new = section(version)
    status = re.search(r"^\*\*Status:.*$", (paths.ROOT / "README.md").read_text(), re.MULTILINE)
    commit = git("rev-parse", "--short", "HEAD") + (" with changes" if git("status", "--porcelain") else "")
    rows = [f"| `{file.name}` | {size(file)} | `{install(file)}` |" for file in files]
    others = licences.linked(package.TRIPLE, "weft-cli", "weft-interposer")
    others += licences.linked(package.TRIPLE, "weft-device-plugin", workspace=PLUGINS_WORKSPACE)
    linked = sorted({f"| {each['name']} {each['version']} | {each['license']} |" for each in others})
    parts = [
        f"# weft {version}",
        f"{date}, commit {commit}. For Linux on x86-64 with {glibc}.",
        *([status[0]] if status else []),
        "## Install",
        "\n".join(["| file | size | command |", "|---|---|---|", *rows]),
        "The chart needs its namespace first: see docs/kubernetes.md in the packages.",
        f"```console\n$ sha256sum --check {SUMS}\n```",
        f"## New in {version}",
        new,
        "## Tested with",
        readme("Tested with"),
        "## Checksums",
        f"```text\n{checksums(files, out)}```",
        "## Licences",
        f"weft: {licences.OWN}. Each file has the texts, and those of the packages in it:",
        "\n".join(["| package | licence |", "|---|---|", *linked]),
    ]
    file = out / PAGE
    file.write_text("\n\n".join(parts) + "\n")
    # The page stands on its own: relative links of the changelog become words.
    package.mend_links(out)
    return file


def make(whole, out, glibc):
    """Makes the release in the folder `out`, of the packages that scripts/package has made. Returns
    its page, its files, and the reason why the image is no archive, or None.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    made = [package.tarball(), package.deb(), package.wheel()]
    files = [Path(shutil.copy(file, out)) for file in made]
    archive, reason = image(whole, out)
    files += [archive, chart(out)]
    return page(files, out, glibc), files, reason
