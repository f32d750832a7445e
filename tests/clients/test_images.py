# SPDX-License-Identifier: MIT OR Apache-2.0
"""weft's reader of images (kernel-id/image) against NVIDIA's cuobjdump, on every image of the CUDA
libraries that PyTorch's environment has.

  pytest tests/clients/test_images.py                         every library
  pytest tests/clients/test_images.py -k "cublas or cudnn"    those with one of these words in
                                                              their path

A case is a library. Both tools must find the same number of images of each architecture, and in
each image the same kernels with the same registers, static shared memory and stack (in an image
that is linked of several objects: the same names and registers). Both tools read the same file;
nothing is executed. cuobjdump is the one that Triton brings.
"""

import collections
import os
import re
import struct
import subprocess
from pathlib import Path

import pytest
from harness import paths, workspaces

# Seconds for one library: half a gigabyte of compressed images takes twenty on an idle core.
BOUND = 300
# And for the build of weft's reader.
BUILD = 1200
# Smaller files mostly hold only host code.
SMALLEST = 1 << 20
# The section in which the compiler puts linked images: cuobjdump looks only there.
SECTION = ".nv_fatbin"
FUNCTION = re.compile(r"^ Function (.+):$")
USAGE = re.compile(r"^\s+REG:(\d+) STACK:(\S+) SHARED:(\d+) ")


def cuobjdump():
    return paths.site_packages("torch") / "triton" / "backends" / "nvidia" / "bin" / "cuobjdump"


def section_names(path):
    """The names of a file's sections; none if it is no 64-bit ELF file."""
    with open(path, "rb") as file:
        head = file.read(64)
        if head[:6] != b"\x7fELF\x02\x01":
            return set()
        (offset,) = struct.unpack_from("<Q", head, 40)
        size, count, names = struct.unpack_from("<HHH", head, 58)
        file.seek(offset)
        table = file.read(size * count)
        if len(table) < size * count or not count:
            return set()
        begin, length = struct.unpack_from("<QQ", table, names * size + 24)
        file.seek(begin)
        text = file.read(length)
    at = [struct.unpack_from("<I", table, number * size)[0] for number in range(count)]
    return {text[start : text.index(b"\0", start)].decode(errors="replace") for start in at}


def libraries():
    """The libraries of the environment that hold images, the largest first."""
    # One file may go by several names, and an environment may be made of links.
    found = {path.resolve() for path in paths.site_packages("torch").rglob("*.so*") if path.is_file() and path.stat().st_size >= SMALLEST}
    return sorted((path for path in found if SECTION in section_names(path)), key=lambda path: (-path.stat().st_size, path))


def lines_of(command, log):
    """Its stdout, line by line; it must end well."""
    with open(log, "wb") as out:
        done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, timeout=BOUND, check=False)
    if b"Invalid ELF" in done.stderr:
        pytest.skip(f"{Path(command[0]).name} does not read this file")
    assert done.returncode == 0, f"{Path(command[0]).name} ended with {done.returncode}: {done.stderr.decode(errors='replace')[-300:]}"
    with open(log, errors="replace") as file:
        for line in file:
            yield line.rstrip("\n")


def told_by_cuobjdump(path, folder):
    """[(architecture, {kernel: (registers, shared, stack)})] of the cubins."""
    images, name, inside = [], None, False
    for line in lines_of([cuobjdump(), "-res-usage", path], folder / "cuobjdump"):
        if line.startswith("Fatbin "):
            inside = line.startswith("Fatbin elf code")
        elif inside and line.startswith("arch = sm_"):
            # The letter behind the number is no part of an entry's header.
            images.append((int(re.match(r"\d+", line.removeprefix("arch = sm_"))[0]), {}))
        elif inside and (function := FUNCTION.match(line)):
            name = function[1]
        elif inside and name and (usage := USAGE.match(line)):
            stack = int(usage[2]) if usage[2].isdigit() else None
            images[-1][1][name] = (int(usage[1]), int(usage[3]), stack)
            name = None
    return images


def told_by_weft(path, folder):
    """The same from weft's reader, and the number of images elsewhere: it must be able to read
    those, but cuobjdump does not look there."""
    images = []
    for line in lines_of([paths.BUILT / "examples" / "images", path], folder / "weft"):
        kind, *fields = line.split("\t")
        assert kind != "error", f"weft cannot read it: {fields[0]}"
        if kind == "image":
            images.append((fields[0], int(fields[1]), fields[2] == SECTION, {}))
        else:
            name, registers, shared, stack = fields
            images[-1][3][name] = (int(registers), int(shared), int(stack))
    cubins = [(arch, kernels, inside) for kind, arch, inside, kernels in images if kind == "cubin"]
    return [(arch, kernels) for arch, kernels, inside in cubins if inside], sum(not inside for _, _, inside in cubins)


def frozen(images):
    return collections.Counter((arch, frozenset(kernels.items())) for arch, kernels in images)


def differences(theirs, ours):
    """The differences, in words: by architecture and by kernel."""
    wrong = []
    for arch in sorted({arch for arch, _ in theirs} | {arch for arch, _ in ours}):
        mine, his = [kernels for of, kernels in ours if of == arch], [kernels for of, kernels in theirs if of == arch]
        if len(mine) != len(his):
            wrong.append(f"sm_{arch}: {len(his)} images by cuobjdump, {len(mine)} by weft")
        named_by_weft = collections.Counter(item for kernels in mine for item in kernels.items())
        named_by_cuobjdump = collections.Counter(item for kernels in his for item in kernels.items())
        for who, more in (("cuobjdump", named_by_cuobjdump - named_by_weft), ("weft", named_by_weft - named_by_cuobjdump)):
            for (name, usage), times in list(more.items())[:3]:
                wrong.append(f"sm_{arch}: by {who} alone, {times} times: {name[:120]} registers, shared, stack {usage}")
            if len(more) > 3:
                wrong.append(f"sm_{arch}: and {len(more) - 3} more by {who} alone")
    return wrong or ["the same kernels lie in other images"]


def linked_of_several(theirs, ours):
    """The number of images that are alike only in part, because one is linked of several objects;
    None if two differ.

    For such an image cuobjdump also lists device functions, and adds the stack and shared memory of
    the functions that a kernel calls to the kernel's. So only names of kernels and their registers
    can be compared.
    """
    if [arch for arch, _ in theirs] != [arch for arch, _ in ours]:
        return None
    in_part = 0
    for (_, his), (_, mine) in zip(theirs, ours):
        if his == mine:
            continue
        if not mine.keys() < his.keys() or any(his[name][0] != registers for name, (registers, *_) in mine.items()):
            return None
        in_part += 1
    return in_part


def pytest_generate_tests(metafunc):
    root = paths.site_packages("torch").resolve()
    found = libraries() if cuobjdump().exists() else []
    metafunc.parametrize("library", found, ids=[os.path.relpath(path, root) for path in found])


@pytest.fixture(scope="module")
def reader():
    """Builds weft's reader."""
    # As scripts/layout builds, so that only the example is compiled.
    command = workspaces.NODE.build("--profile", paths.PROFILE, "--example", "images")
    done = subprocess.run(command, cwd=paths.ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BUILD, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-1000:]}"


@pytest.mark.timeout(BUILD + 3 * BOUND)
def test_weft_reads_what_cuobjdump_reads(library, reader, folder, record_property):
    theirs = told_by_cuobjdump(library, folder)
    ours, elsewhere = told_by_weft(library, folder)
    kernels = sum(len(kernels) for _, kernels in ours)
    in_part = 0 if frozen(theirs) == frozen(ours) else linked_of_several(theirs, ours)
    assert in_part is not None, f"{len(theirs)} images by cuobjdump, {len(ours)} by weft:\n" + "\n".join(differences(theirs, ours)[:20])
    parted = f", {in_part} images by names and registers alone" if in_part else ""
    more = f"; {elsewhere} more images among plain data, read by weft alone" if elsewhere else ""
    record_property("told", f"{len(ours)} images, {kernels} kernels{parted}{more}")
