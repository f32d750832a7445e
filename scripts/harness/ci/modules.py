# SPDX-License-Identifier: MIT OR Apache-2.0
"""The uses between modules of a Rust crate, read from the paths in its source; and the circles.

Only real uses count: neither `mod x;` nor `pub use x::Y` makes a parent use its child. A path
through a re-export counts as a use of the file that owns the name. Tests inside a crate do not
count.
"""

import re
from collections import defaultdict

# The most files of a circle; a parent with its children may form one.
LARGEST_FILE_CIRCLE = 3

COMMENT = r"//[^\n]*|/\*.*?\*/"
LITERAL = r"""b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?'(?:\\.[^']*|[^'\\])'"""
NOISE = re.compile(f"{COMMENT}|{LITERAL}", re.DOTALL)
TEST = re.compile(r"#\[cfg\((?:all\()?test\b[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*")
USE = re.compile(r"(?<![\w:])((?:pub(?:\([^)]*\))?\s+)?)use\s+([^;]+);")
ITEM = re.compile(r"\b(?:struct|enum|union|trait|type|fn|const|static|macro_rules!)\s+(?:mut\s+)?(\w+)")


def without_tests(text):
    """The source without comments, strings and items that are only built for tests."""
    text = NOISE.sub('""', text)
    while found := TEST.search(text):
        end, depth = found.end(), 0
        while end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
            if depth == 0 and text[end - 1] in ";}":
                break
        text = text[: found.start()] + text[end:]
    return text


def leaves(tree):
    """The paths of a use tree, each with its local name: `a::{b, c as d}` is a::b and a::c."""
    tree = tree.strip()
    brace = tree.find("{")
    if brace < 0:
        path, _, name = tree.partition(" as ")
        path = re.sub(r"\s|::self$", "", path)
        return [(path, name.strip() or path.rsplit("::", 1)[-1])]
    found, depth, part = [], 0, ""
    for letter in tree[brace + 1 : tree.rindex("}")] + ",":
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            found += leaves(tree[:brace] + part.strip()) if part.strip() else []
            part = ""
        else:
            part += letter
    return found


class Crate:
    """The modules of one crate and their uses: tuples of names, () for the root."""

    def __init__(self, source):
        self.files, self.text = {}, {}
        for file in sorted(source.rglob("*.rs")):
            parts = file.relative_to(source).with_suffix("").parts
            program = parts == ("main",) and (source / "lib.rs").exists()
            if program or "tests" in parts or parts[0] == "bin":
                continue
            if parts[-1] == "mod" or parts in (("lib",), ("main",)):
                parts = parts[:-1]
            self.files[parts] = str(file.relative_to(source))
            self.text[parts] = without_tests(file.read_text())
        self.imports = {module: self.imported(module) for module in self.files}
        self.items = {module: set(ITEM.findall(text)) for module, text in self.text.items()}
        self.paths = {module: self.paths_used(module) for module in self.files}
        self.uses = {module: self.used(module) for module in self.files}

    def absolute(self, module, path):
        """A path from the crate's root, or None for a path into another crate."""
        base, parts = module, tuple(path.split("::"))
        if parts[0] == "crate":
            return parts[1:]
        if parts[0] not in ("self", "super") and module + parts[:1] not in self.files:
            return None
        while parts and parts[0] in ("self", "super"):
            base, parts = base[:-1] if parts[0] == "super" else base, parts[1:]
        return base + parts

    def imported(self, module):
        """The names that `use` brings into a module: name, path, whether it is public."""
        rows = []
        for public, tree in USE.findall(self.text[module]):
            for path, name in leaves(" ".join(tree.split())):
                rows.append((name, self.absolute(module, path), bool(public)))
        return [row for row in rows if row[1] is not None]

    def owner(self, path, depth=8):
        """The module that owns the name of a path; re-exports are followed."""
        known = max(length for length in range(len(path) + 1) if path[:length] in self.files)
        module, rest = path[:known], path[known:]
        if rest and depth:
            for name, target, _ in self.imports[module]:
                if name == rest[0] and target != path:
                    return self.owner(target + rest[1:], depth - 1)
            for name, target, public in self.imports[module]:
                if name == "*" and public and rest[0] in self.items.get(target[:-1], ()):
                    return target[:-1]
        return module

    def used(self, module):
        """The modules that this one really uses."""
        return {self.owner(path) for path in self.paths[module]} - {module}

    def paths_used(self, module):
        """The paths into this crate that a module uses, from the root."""
        modules = {child[-1]: child for child in self.files if child and child[:-1] == module}
        paths_used = []
        for name, target, public in self.imports[module]:
            if target in self.files:
                modules[name] = target
            elif not (public and target[: len(module)] == module):
                paths_used.append(target)
        body = USE.sub("", self.text[module])
        for path in re.findall(r"(?<![\w:])((?:crate|super|self)(?:\s*::\s*\w+)+)", body):
            paths_used.append(self.absolute(module, re.sub(r"\s", "", path)))
        for first, rest in re.findall(r"(?<![\w:])(\w+)((?:\s*::\s*\w+)+)", body):
            if first in modules:
                paths_used.append(modules[first] + tuple(re.sub(r"\s", "", rest).split("::")[1:]))
        return {path for path in paths_used if path is not None}

    def room_uses(self):
        """(file, room) for each use of another room: a module below the root, with its children.

        A room counts by its name in a path, and by the target of a re-export in that path.
        """
        found = set()
        for module in filter(None, self.files):
            for path in self.paths[module]:
                rooms = {path[:1], self.owner(path)[:1]}
                found |= {(module, room[0]) for room in rooms if room and room in self.rooms}
        return sorted((self.files[module], room) for module, room in found if room != module[0])

    @property
    def rooms(self):
        """The modules below the root."""
        return {module[:1] for module in self.files if module}

    def file_circles(self):
        """Circles of more files than are allowed, each a sorted list of paths."""
        found = [sorted(self.files[module] for module in circle) for circle in components(self.uses)]
        large = [circle for circle in found if len(circle) > LARGEST_FILE_CIRCLE]
        return sorted(large, key=lambda circle: (-len(circle), circle))

    def folder_circles(self):
        """Circles among the modules of one parent, at least one of which is a folder."""
        levels = defaultdict(lambda: defaultdict(set))
        for module, used in self.uses.items():
            for other in used:
                shared = 0
                while shared < min(len(module), len(other)) and module[shared] == other[shared]:
                    shared += 1
                # A parent and its content: the rule for files judges them.
                if shared < min(len(module), len(other)):
                    levels[module[:shared]][module[: shared + 1]].add(other[: shared + 1])
        folders = {module[:length] for module in self.files for length in range(1, len(module))}
        found = []
        for uses in levels.values():
            circles = [circle for circle in components(uses) if folders & set(circle)]
            found += [sorted("/".join(module) for module in circle) for circle in circles]
        return sorted(found, key=lambda circle: (-len(circle), circle))


def components(uses):
    """The strongly connected components of more than one node (Tarjan's, without recursion)."""
    index, low, stack, found = {}, {}, [], []
    for root in list(uses):
        work = [] if root in index else [(root, None)]
        while work:
            node, rest = work.pop()
            if rest is None:
                index[node] = low[node] = len(index)
                stack.append(node)
                rest = iter(sorted(uses.get(node, ())))
            for other in rest:
                if other not in index:
                    work += [(node, rest), (other, None)]
                    break
                if other in stack:
                    low[node] = min(low[node], index[other])
            else:
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    circle, stack = stack[at:], stack[:at]
                    found += [circle] if len(circle) > 1 else []
    return found
