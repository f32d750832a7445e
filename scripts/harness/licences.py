# SPDX-License-Identifier: MIT OR Apache-2.0
"""The licences of the packages that weft's files contain, as one text for their users."""

from pathlib import Path

from . import workspaces

# The licence of weft itself.
OWN = "MIT OR Apache-2.0"
# First words of the names of files with a licence or a notice.
NAMES = ("license", "licence", "copying", "copyright", "notice", "unlicense")
# Packages without a text, and a package of the same project and licence that has it.
SAME_PROJECT = {"tonic-prost": "tonic"}


class Unlicensed(RuntimeError):
    """A package that comes without a licence's text, in one line."""


def linked(triple, *roots, workspace=workspaces.NODE):
    """The packages of others that these packages of the workspace are linked with, sorted by name.

    Packages that only build them, and those of other platforms, are not in their files.
    """
    found = workspace.metadata("--locked", "--filter-platform", triple)
    packages = {package["id"]: package for package in found["packages"]}
    depends = {node["id"]: node["deps"] for node in found["resolve"]["nodes"]}
    todo = [identity for identity, package in packages.items() if package["name"] in roots]
    seen = set(todo)
    while todo:
        for dependency in depends[todo.pop()]:
            normal = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            if normal and dependency["pkg"] not in seen:
                seen.add(dependency["pkg"])
                todo.append(dependency["pkg"])
    others = [packages[identity] for identity in seen if packages[identity]["source"]]
    return sorted(others, key=lambda package: (package["name"], package["version"]))


def texts(package):
    """The texts of licences and notices in a package. Raises Unlicensed if it has none."""
    folder = Path(package["manifest_path"]).parent
    files = [file for file in sorted(folder.iterdir()) if file.is_file() and file.name.lower().startswith(NAMES)]
    found = [file.read_text(errors="replace").strip() for file in files]
    if not found:
        raise Unlicensed(f"{package['name']} {package['version']} ({package['license']}) has no licence's text")
    return found


def text(triple, *roots, workspace=workspaces.NODE):
    """All notices: each text once, under the packages that have it."""
    by_text = {}
    packages = linked(triple, *roots, workspace=workspace)
    by_name = {package["name"]: package for package in packages}
    for package in packages:
        title = f"{package['name']} {package['version']} ({package['license']})"
        for each in texts(by_name.get(SAME_PROJECT.get(package["name"]), package)):
            by_text.setdefault(each, []).append(title)
    head = "These packages are in it. Each text stands under the packages that it is of.\n"
    parts = ["\n".join(titles) + "\n\n" + each for each, titles in sorted(by_text.items(), key=lambda row: row[1])]
    line = "\n\n" + "-" * 80 + "\n\n"
    return head + line + line.join(parts) + "\n"
