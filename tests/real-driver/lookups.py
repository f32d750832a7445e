# SPDX-License-Identifier: MIT OR Apache-2.0
"""Every way to look a function up, with every name, version and flag: under weft the same answers
as without it, and weft's entry point in place of the driver's.

`lookups.c` asks and `calls.c` calls; both run plainly and under weft, with a broker running.
"""

import re

import stage
from harness import elf
from stage import case

# Names that no driver has: look-ups of them fail in the same way.
NOBODY = ["", "cu", "cuNothing", "cuLaunchKernel_v9", "cuLaunchKernel_ptds", "CULAUNCHKERNEL", "nothing", "malloc"]
# weft's own exports that are no driver function: dlsym in a handle of the driver must not give
# them.
OURS = ["weft_counter", "weft_text"]
# Not called: they end the process, or are the debugger's.
UNCALLED = ("cudbg",)


def symbols_of(driver):
    """{offset in the file: names of the exports there}."""
    found = {}
    for name, value in elf.Elf(driver.cuda).addresses().items():
        found.setdefault(value, set()).add(name)
    return found


def answers(job):
    """{(when, way, name): address} from the output of lookups.c, and the rest."""
    lines = [line.split("\t") for line in job.stdout().decode().splitlines()]
    return {tuple(line[:-1]): line[-1] for line in lines}


def judge(plain, weft, names_at, table):
    """The fault of one answer under weft, or None. `plain`, `weft`: the library and offset of the
    address."""
    if plain == weft == "-":
        return None
    if "-" in (plain, weft):
        return f"{plain} without weft, {weft} with it"
    if not plain.startswith("driver+"):
        return None if plain == weft else f"{plain} without weft, {weft} with it"
    at = names_at.get(int(plain.removeprefix("driver+"), 16), set())
    if weft == plain:
        past = sorted(at & set(table))
        return f"leads past weft to {', '.join(past)}" if past else None
    ours = weft.removeprefix("weft:")
    if ours == weft:
        return f"{plain} without weft, {weft} with it"
    if at and ours not in at:
        return f"is {' or '.join(sorted(at))}, and weft answers {ours}"
    return None


def compare(scene, plain, weft):
    names_at, table = symbols_of(scene.driver), stage.table()
    wrong = []
    if plain.keys() != weft.keys():
        only = [f"{' '.join(key)}: {'without' if key in plain else 'with'} weft only" for key in sorted(plain.keys() ^ weft.keys())]
        wrong += only
    for key in plain.keys() & weft.keys():
        why = judge(plain[key], weft[key], names_at, table)
        if why is None and weft[key].startswith("weft:") and key[-1] in table:
            # An address that the driver exports under no name: then the names must at least be of
            # one function.
            asked, got = table[key[-1]], table.get(weft[key].removeprefix("weft:"))
            related = asked == got or names_at.get(int(plain[key].removeprefix("driver+"), 16))
            why = None if related else f"asked for {asked}, weft answers {got}"
        if why:
            wrong.append(f"{' '.join(key)} {why}")
    return sorted(wrong)


def names(scene):
    table = stage.table()
    exported = elf.Elf(scene.driver.cuda).exports(variables=True)
    bases = {re.sub(r"_(ptsz|ptds)$", "", re.sub(r"_v\d+(?=$|_ptsz$|_ptds$)", "", name)) for name in exported}
    file = scene.folder / "names"
    every = sorted(exported | set(table) | set(table.values()) | bases | set(NOBODY) - {""})
    file.write_text("\n".join(["", *every]) + "\n")
    return file, len(every) + 1


@case
def every_look_up_is_answered_as_without_weft(scene):
    program = scene.compiled("lookups.c")
    file, count = names(scene)
    scene.broker.start()
    runs = {}
    for name, weft in (("plain", False), ("weft", True)):
        job = scene.run(name, [program, scene.driver.cuda, file], weft=weft)
        assert job.process.returncode == 0, job.explain()
        assert not job.stderr(), f"{name} says on stderr: {job.stderr()[:400]}"
        runs[name] = answers(job)
    wrong = compare(scene, runs["plain"], runs["weft"])
    assert not wrong, f"{len(wrong)} of {len(runs['plain'])} look-ups differ:\n" + "\n".join(wrong[:30])
    ours = sum(value.startswith("weft:") for value in runs["weft"].values())
    assert ours > 1000, f"only {ours} look-ups lead to weft: the preload did not happen"
    return f"{len(runs['plain'])} look-ups of {count} names, {ours} lead to weft"


def called(scene, when):
    exported = elf.Elf(scene.driver.cuda).exports()
    file = scene.folder / "called"
    file.write_text("\n".join(sorted(name for name in exported if not name.startswith(UNCALLED))) + "\n")
    program = scene.compiled("calls.c")
    scene.broker.start()
    said = {}
    for name, weft in (("plain", False), ("weft", True)):
        job = scene.run(name, [program, when, file], weft=weft)
        assert job.process.returncode == 0, job.explain()
        said[name] = dict(line.split("\t", 1) for line in job.stdout().decode().splitlines())
        said[name + " stderr"] = job.stderr()
    assert said["plain stderr"] == said["weft stderr"], f"on stderr: {said['plain stderr'][:400]!r} without weft, {said['weft stderr'][:400]!r} with it"
    plain, weft = said["plain"], said["weft"]
    wrong = [f"{name}: {plain.get(name)} without weft, {weft.get(name)} with it" for name in sorted(plain.keys() | weft.keys()) if plain.get(name) != weft.get(name)]
    assert not wrong, f"{len(wrong)} of {len(plain)} answers differ:\n" + "\n".join(wrong[:30])
    kinds = {}
    for value in plain.values():
        kinds[value] = kinds.get(value, 0) + 1
    most = sorted(kinds.items(), key=lambda pair: -pair[1])[:4]
    return f"{len(plain)} answers: " + ", ".join(f"{number} of {value}" for value, number in most)


@case
def every_function_answers_as_without_weft_before_cuInit(scene):
    return called(scene, "before")


@case
def every_function_answers_as_without_weft_after_cuInit_found_no_device(scene):
    return called(scene, "after")


@case
def a_linked_program_starts_as_without_weft(scene):
    program = scene.compiled("linked.c", "-L", scene.driver.libraries, "-lcuda", "-Wl,--allow-shlib-undefined")
    scene.broker.start()
    said = {name: scene.run(name, [program], weft=weft) for name, weft in (("plain", False), ("weft", True))}
    for job in said.values():
        assert job.process.returncode == 0, job.explain()
    assert said["plain"].stdout() == said["weft"].stdout(), f"{said['plain'].stdout()} without weft, {said['weft'].stdout()} with it"
    return said["plain"].stdout().decode().strip()


@case
def the_toolkits_stub_is_passed_over(scene):
    """A folder `stubs` first on the library path, with a libcuda.so in it: programs ask for
    libcuda.so.1 and never meet it."""
    stubs = scene.folder / "stubs"
    stubs.mkdir()
    scene.compiled("stub.c", "-shared", "-fPIC")
    (scene.folder / "stub").rename(stubs / "libcuda.so")
    file = scene.folder / "called"
    file.write_text("cuDeviceGetCount\n")
    program = scene.compiled("calls.c")
    more = {"LD_LIBRARY_PATH": f"{stubs}:{scene.driver.libraries}"}
    scene.broker.start()
    said = {name: scene.run(name, [program, "after", file], weft=weft, more=more) for name, weft in (("plain", False), ("weft", True))}
    for job in said.values():
        assert job.process.returncode == 0, job.explain()
    assert said["plain"].stdout() == said["weft"].stdout(), "the answers differ: " + said["weft"].stdout().decode()[-300:]
    assert b"cuInit\t100" in said["weft"].stdout()
