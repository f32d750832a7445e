# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reads from an ELF file the versioned symbols that it needs, which decide whether it runs
elsewhere, and the functions that it exports.

Only 64-bit little-endian files. A reader of our own, because the GPU machine need not have
binutils.
"""

import shutil
import struct
import subprocess
from pathlib import Path

SHT_DYNSYM = 11
SHT_GNU_VERNEED = 0x6FFFFFFE
SHT_GNU_VERSYM = 0x6FFFFFFF
# A symbol's binding: it may be absent.
WEAK = 2
# The bit of a symbol's version number for "hidden"; the rest is the number.
VERSION_MASK = 0x7FFF


class NotElf(ValueError):
    """A file that this reader does not read, with the reason."""


class Elf:
    """One file, read once."""

    def __init__(self, path):
        self.path = Path(path)
        self.data = self.path.read_bytes()
        if self.data[:6] != b"\x7fELF\x02\x01":
            raise NotElf(f"{path}: not a 64-bit little-endian ELF file")
        try:
            self._sections()
        except (struct.error, IndexError) as error:
            raise NotElf(f"{path}: its section table is damaged: {error}") from error

    def _sections(self):
        (offset,) = struct.unpack_from("<Q", self.data, 40)
        size, count, _ = struct.unpack_from("<HHH", self.data, 58)
        self.sections = []
        for number in range(count):
            fields = struct.unpack_from("<IIQQQQIIQQ", self.data, offset + number * size)
            self.sections.append(
                dict(zip(("name", "type", "flags", "addr", "offset", "size", "link", "info", "align", "entry"), fields))
            )

    def _section(self, kind):
        return next((section for section in self.sections if section["type"] == kind), None)

    def _text(self, table, at):
        begin = table["offset"] + at
        return self.data[begin : self.data.index(b"\0", begin)].decode(errors="replace")

    def _symbols(self):
        """(number, name, defined, kind) of the dynamic symbols."""
        table = self._section(SHT_DYNSYM)
        if table is None:
            return
        names = self.sections[table["link"]]
        for number in range(table["size"] // 24):
            name, info, _, section, _, _ = struct.unpack_from("<IBBHQQ", self.data, table["offset"] + number * 24)
            yield number, self._text(names, name), section != 0, info

    def exports(self, variables=False):
        """Names of the functions that other files find in it; with `variables` also of variables.
        """
        # Kind 1: variable, 2: function, 10: chosen when loaded; binding 1: global, 2: weak.
        kinds = (1, 2, 10) if variables else (2, 10)
        return {name for _, name, defined, info in self._symbols() if defined and info & 15 in kinds and info >> 4 in (1, 2)}

    def addresses(self):
        """{name: offset from the beginning of the mapped file} of the symbols that other files find
        in it.
        """
        table = self._section(SHT_DYNSYM)
        if table is None:
            return {}
        value = lambda number: struct.unpack_from("<Q", self.data, table["offset"] + number * 24 + 8)[0]  # noqa: E731
        return {name: value(number) for number, name, defined, info in self._symbols() if defined and info >> 4 in (1, 2)}

    def _versions(self):
        """{number: (library, version)} that it needs from other libraries."""
        needs = self._section(SHT_GNU_VERNEED)
        found = {}
        if needs is None:
            return found
        names = self.sections[needs["link"]]
        at = needs["offset"]
        for _ in range(needs["info"]):
            _, count, file, first, following = struct.unpack_from("<HHIII", self.data, at)
            entry = at + first
            for _ in range(count):
                _, _, number, name, after = struct.unpack_from("<IHHII", self.data, entry)
                found[number & VERSION_MASK] = (self._text(names, file), self._text(names, name))
                entry += after
            at += following
        return found

    def needs(self, weak=True):
        """[(symbol, library, version)] that must exist for it to load. A version without a symbol
        has symbol None. Without `weak`: only the symbols that another system's linker must find,
        not those that the code can do without.
        """
        versions = self._versions()
        numbers = self._section(SHT_GNU_VERSYM)
        found, named = [], set()
        for number, name, defined, info in self._symbols():
            if defined or numbers is None:
                continue
            (version,) = struct.unpack_from("<H", self.data, numbers["offset"] + number * 2)
            if version & VERSION_MASK in versions:
                named.add(version & VERSION_MASK)
                if weak or info >> 4 != WEAK:
                    found.append((name, *versions[version & VERSION_MASK]))
        return found + [(None, *versions[number]) for number in versions if number not in named]


def glibc_number(version):
    """(2, 34) from `GLIBC_2.34`; None for any other version (GLIBC_PRIVATE, GCC_3.0)."""
    prefix, _, rest = version.partition("_")
    if prefix != "GLIBC":
        return None
    try:
        return tuple(int(part) for part in rest.split("."))
    except ValueError:
        return None


def too_new(path, limit, weak=True):
    """[(symbol, version)] of glibc that the file needs and that are newer than `limit`, a tuple.
    Without `weak`, symbols that may be absent are left out.
    """
    found = []
    for symbol, _, version in Elf(path).needs(weak):
        number = glibc_number(version)
        if number is not None and number > limit:
            found.append((symbol or "(no symbol)", version))
    return sorted(found)


def strip(path):
    """Removes the data that only debuggers read. Raises OSError, with the reason, if that is
    impossible.
    """
    tool = shutil.which("strip")
    if tool is None:
        raise OSError("no strip on the path: install binutils (it comes with gcc)")
    done = subprocess.run([tool, "--strip-unneeded", str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"strip {path}: {done.stderr.strip()}")
