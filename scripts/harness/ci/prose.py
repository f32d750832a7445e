# SPDX-License-Identifier: MIT OR Apache-2.0
"""The rules for the texts of the tree: each function finds the breaches of one rule."""

import ast
import bisect
import re
from collections import Counter, defaultdict
from pathlib import Path

WIDTH = 100
SUBJECT = 72

# Last words of a constant's name that give its unit.
UNITS = (
    "NS US MS S SECONDS MINUTES HOURS DAYS HZ PERCENT PERMILLE PPM RATIO"
    " BYTES KB MB GB KIB MIB GIB BITS PAGES GRANULES WORDS"
).split()
PUBLIC = r"^\s*(?:pub(?:\([^)]*\))?\s+)?"
CONSTANT = re.compile(PUBLIC + r"(?:const|static)\s+(\w+):\s*(Ns|[ui](?:32|64|size)|f(?:32|64))\s*=\s*([^;]+);")
UNIT_WORDS = re.compile(r"\b(?:ns|us|ms|nanoseconds?|seconds?|minutes?|hours?|bytes?|[KMG]i?B)\b")
SIZE_VALUE = re.compile(r"<<\s*(?:[1-4]0|1[2-9]|2[0-9])\b|\d_000_000\b|\b(?:KB|MB|GB|KIB|MIB|GIB|MS|US|SECOND)\b")
TYPE = re.compile(PUBLIC + r"(?:struct|enum|union|trait)\s+(\w+)", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")

# Constructions that make a text hard to read. Each is rare in the prose of well-kept projects.
FIRST = r"(?:(?<=[.:;!?] )|(?<=\n)|(?<=\* )|(?<=- ))"
CONSTRUCTIONS = {
    "what_or_who_first": FIRST + r"(?:What|Who|Whose)\b(?![^.?\n]{0,160}\?)",
    "say_or_tell": r"\b(?:told|tells|tell|says|said|say)\b",
    "preposition_and_what": r"\b(?:of|by|for|than|and|is|with|to|in|that|as|from) what\b",
    "beside": r"\bbeside\b",
    "alone_for_only": r"\b[a-z]+ alone\b",
    "where_for_if": r"\b[wW]here\b",
    "so_many": r"\bso (?:many|much|long|often)\b",
    "of_first": FIRST + r"Of [a-z]",
    "nobody": r"\b(?:nobody|anybody|somebody)\b",
}
CONSTRUCTIONS = {name: re.compile(pattern) for name, pattern in CONSTRUCTIONS.items()}
# The first line of a source file, behind a program's own first line. Also read by git.
SPDX = "SPDX-License-Identifier: MIT OR Apache-2.0"
COMMENT = {".rs": r"\s*//[/!]?\s?", ".py": r"\s*(?:#\s?)?", ".md": r"(?:> ?)*"}
DOC = re.compile(r"\s*//[/!] (\w+)")


def rust_comments(text):
    """Line numbers and lines of comments."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("//") and SPDX not in line and not re.match(r"\s*//[/!]?\s*\|", line):
            yield number, line


def python_comments(text):
    """Lines that are comments, and those of documentation strings."""
    lines = text.splitlines()
    comments = enumerate(lines, 1)
    wanted = {number for number, line in comments if line.lstrip().startswith("#") and SPDX not in line}
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            wanted |= set(range(first.lineno, first.end_lineno + 1))
    return [(number, lines[number - 1]) for number in sorted(wanted)]


def markdown_lines(text):
    """Lines outside code and tables. Four spaces after an empty line make code."""
    fenced, indented, before = False, False, ""
    for number, line in enumerate(text.splitlines(), 1):
        indented = line.startswith("    ") and (indented or not before.strip())
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not (fenced or indented or line.lstrip().startswith("|")):
            yield number, line
        before = line


READERS = {".rs": rust_comments, ".py": python_comments, ".md": markdown_lines}


def long_lines(suffix, text):
    """Numbers of the lines of prose that are too long. The target of a link does not count."""
    return [number for number, line in READERS[suffix](text) if len(LINK.sub("]", line)) > WIDTH]


def without_unit(text):
    """Names of constants that are a time or a size and have no unit in their name."""
    found, about = [], ""
    for line in text.splitlines():
        if line.lstrip().startswith("///"):
            about += line
            continue
        constant = CONSTANT.match(line)
        if constant:
            name, kind, value = constant.groups()
            sized = kind == "Ns" or UNIT_WORDS.search(about) or SIZE_VALUE.search(value)
            last = name.rsplit("_", 1)[-1]
            if sized and not (last in UNITS or f"{last}S" in UNITS or name.endswith(("_PER_S", "_PER_SECOND"))):
                found.append(name)
        about = about if line.lstrip().startswith("#[") else ""
    return found


class Prose:
    """The prose of a file as one text: lines of a paragraph are joined, paragraphs are separated.
    """

    def __init__(self, suffix, text):
        self.text, self.starts, self.numbers, before = "\n", [], [], 0
        for number, line in READERS[suffix](text):
            line = re.sub(COMMENT[suffix], "", line, count=1).strip()
            joined = self.numbers and number == before + 1 and line
            # An empty line, an item of a list and a heading begin a paragraph.
            self.text = self.text.rstrip(" ")
            self.text += " " if joined and not re.match(r"[*#+-] |\d+\. ", line) else "\n"
            self.starts.append(len(self.text))
            self.numbers.append(number)
            self.text += line
            before = number if line else 0
        self.words = len(self.text.split())

    def constructions(self):
        """(name, number of the line) of each construction of [`CONSTRUCTIONS`]."""
        for name, pattern in CONSTRUCTIONS.items():
            for match in pattern.finditer(self.text):
                yield name, self.numbers[bisect.bisect(self.starts, match.start()) - 1]


def begun_by_a_type(text, types):
    """Line numbers of documentation that begins with a type's name outside backticks."""
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        if SPDX in line:
            continue
        first = DOC.match(line)
        if first and first[1] in types and not before.lstrip().startswith("//"):
            yield number
        before = line


def repeated_types(texts):
    """name -> number of types with that name, if more than one. `texts`: sources without tests."""
    counts = Counter(name for text in texts for name in TYPE.findall(text))
    return {name: count for name, count in counts.items() if count > 1}


def without_code(text):
    """A Markdown text without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(file):
    """The parts of a Markdown file that a link can name: its headings, as forges spell them."""
    found = re.findall(r"^#+ (.+)$", without_code(file.read_text()), re.MULTILINE)
    shown = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in found)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in shown}


def broken_links(root, file):
    """Relative links of a Markdown file that lead nowhere, or out of the folder `root`."""
    for link in LINK.findall(re.sub(r"`[^`\n]*`", "", without_code(file.read_text()))):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, part = link.partition("#")
        target = file.parent / path if path else file
        if not target.exists():
            yield f"{file.relative_to(root)}: there is no {path}"
        elif not target.resolve().is_relative_to(root.resolve()):
            yield f"{file.relative_to(root)}: {path} is not in this folder"
        elif part and target.suffix == ".md" and part not in anchors(target):
            yield f"{file.relative_to(root)}: {path} has no part #{part}"


def with_spdx(suffix, text):
    """A source file's text with its licence's line, which it may have already."""
    line = f"{'//' if suffix == '.rs' else '#'} {SPDX}\n"
    head, rest = re.match(r"(#![^\[\n]*\n)?(.*)", text, re.DOTALL).groups(default="")
    return text if rest.startswith(line) else head + line + rest


def long_subjects(subjects):
    """Subjects of commits that are too long."""
    return [f"{len(text)} characters in a commit's subject: {text}" for text in subjects if len(text) > SUBJECT]


def folder_of(path):
    """The folder in which a file's lines are counted: one of the top, or of tests."""
    parts = Path(path).parts
    if len(parts) == 1:
        return "."
    return "/".join(parts[: 2 if parts[0] == "tests" and len(parts) > 2 else 1])


def by_folder(counts):
    """folder -> sum, of (path, count)."""
    sums = defaultdict(int)
    for path, count in counts:
        sums[folder_of(path)] += count
    return {folder: count for folder, count in sorted(sums.items()) if count}
