# SPDX-License-Identifier: MIT OR Apache-2.0
"""weft's table of functions against the exports of each real library: a function that weft does not
know fails with its name."""

import stage
from harness import elf, paths
from stage import case

# So far there are no names that begin like a function of the driver API and are none: all that
# begin so are looked at.
PREFIX = "cu"


def listed():
    """The names of beyond.tsv: {name: (all that begin so?, exported by weft?)}."""
    lines = [line.split("\t") for line in stage.BEYOND.read_text().splitlines() if line and not line.startswith("#")]
    return {line[0].removesuffix("*"): (line[0].endswith("*"), line[1] == "exported") for line in lines}


def known(name, beyond):
    return any(name.startswith(start) if all_of_them else name == start for start, (all_of_them, _) in beyond.items())


@case
def weft_knows_every_export(scene):
    exported = elf.Elf(scene.driver.cuda).exports(variables=True)
    others = sorted(name for name in exported if not name.startswith(PREFIX))
    table, beyond = stage.table(), listed()
    unknown = sorted(name for name in exported if name.startswith(PREFIX) and name not in table and not known(name, beyond))
    assert not unknown, f"driver {scene.driver.version} exports what neither driver-api.tsv nor beyond.tsv lists: {', '.join(unknown)}"
    assert not others, f"driver {scene.driver.version} exports names of another kind: {', '.join(others)}"
    ours = elf.Elf(paths.LIBWEFT).exports()
    wanted = set(table) | {name for name, (_, weft_too) in beyond.items() if weft_too}
    assert wanted <= ours, f"libweft.so lacks {', '.join(sorted(wanted - ours))}: is it built of this table?"
    return f"{len(exported)} names: {len(exported & set(table))} of the table, {len(exported - set(table))} of beyond.tsv"


@case
def every_name_beyond_the_table_is_there(scene):
    """A line of beyond.tsv that no library bears out any more is to go."""
    exported = elf.Elf(scene.driver.cuda).exports(variables=True)
    idle = [name for name, (all_of_them, _) in listed().items() if not any(each.startswith(name) if all_of_them else each == name for each in exported)]
    assert not idle, f"driver {scene.driver.version} does not export {', '.join(idle)}, which beyond.tsv lists"


@case
def an_export_that_nobody_knows_is_found(scene):
    """The check itself: without one line of the table, it names that function."""
    exported = elf.Elf(scene.driver.cuda).exports()
    table, beyond = stage.table(), listed()
    del table["cuLaunchKernel"]
    assert [name for name in sorted(exported) if name not in table and not known(name, beyond)] == ["cuLaunchKernel"]
