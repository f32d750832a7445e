# SPDX-License-Identifier: MIT OR Apache-2.0
"""The releases of CUDA's public headers, and a comparison of the interposer's source with them.

Invariants: a header is fetched by pip, read, and never copied into the repository. gcc judges every
size, offset and value: nothing here computes a layout.
"""

import re
import subprocess
import sys
import zipfile

from harness import paths

# Packages with cuda.h: CUDA 13 and later, 12, 11.
PACKAGES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu11")
INTERPOSER = paths.ROOT / "interposer" / "src"
PROBE = paths.ROOT / "broker" / "cli" / "src" / "probe.rs"
LAYOUTS = paths.ROOT / "interposer" / "symbols" / "layouts.tsv"
# Seconds for a question to the package index, and for one package of 3 MB.
BOUND = 300

# Structures that are not in driver/abi.rs: those of probe.rs (with room for fields of newer
# headers), deferred_launch.rs and stream_priority.rs.
OTHER_LAYOUTS = {
    "CUdevResource.sm.smCount": "offsetof(CUdevResource, sm.smCount) == 96 && sizeof(CUdevResource) <= 512",
    "CUlaunchAttribute": "sizeof(CUlaunchAttribute) == 72 && offsetof(CUlaunchAttribute, value) == 8",
    "CUlaunchAttributeValue.priority": "offsetof(CUlaunchAttributeValue, priority) == 0 && sizeof(CUlaunchAttributeValue) == 64",
}

# Bytes of Rust's types in declarations of the driver's functions.
BYTES = {"u8": 1, "c_char": 1, "i32": 4, "u32": 4, "c_int": 4, "c_uint": 4, "f32": 4, "u64": 8, "usize": 8}

COMMENTED_CONST = re.compile(
    r"((?:^[ \t]*//.*\n)+)[ \t]*(?:pub(?:\([\w ]+\))? )?const (\w+): [^=;]*(?:; *\d+\])? *= ([^;]+);", re.MULTILINE)
# CUDA's names; its environment variables are no constants.
CUDA_NAME = re.compile(r"\bCU(?:DA)?_(?!VISIBLE|MPS|INJECTION|LAUNCH_BLOCKING)[A-Z0-9_]{4,}\b")


def fetch():
    """The folders of all releases of the headers, the newest last. Ends the program with one line
    if one cannot be fetched.
    """
    found = []
    for package in PACKAGES:
        answer = pip("index", "versions", package)
        versions = re.search(r"Available versions: (.*)", answer)
        for version in versions[1].split(", ") if versions else []:
            found.append((tuple(int(part) for part in version.split(".")), package, version))
    if not found:
        sys.exit("symbols: the package index has no headers")
    return [headers_of(package, version) for _, package, version in sorted(found)]


def headers_of(package, version):
    folder = paths.TARGET / "cuda-headers" / version
    if not (folder / "cuda.h").exists():
        folder.mkdir(parents=True, exist_ok=True)
        pip("download", "--quiet", "--no-deps", "--dest", folder, f"{package}=={version}")
        for wheel in folder.glob("*.whl"):
            with zipfile.ZipFile(wheel) as files:
                for name in files.namelist():
                    # cuda.h last: with it the folder is complete.
                    base = name.rsplit("/", 1)[-1]
                    if re.fullmatch(r"cuda(EGL|GL|VDPAU|Profiler)?(Typedefs)?\.h", base) and base != "cuda.h":
                        (folder / base).write_bytes(files.read(name))
                (folder / "cuda.h").write_bytes(files.read(next(x for x in files.namelist() if x.endswith("/cuda.h"))))
            wheel.unlink()
    return folder


def pip(*words):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *map(str, words)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BOUND, check=False)
    except subprocess.TimeoutExpired:
        sys.exit(f"symbols: pip {words[0]} {words[-1]}: no answer in {BOUND} s")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        sys.exit(f"symbols: pip {words[0]} {words[-1]}: {last}")
    return done.stdout


def sources():
    """Text of each Rust file that declares something of the driver's, by its path."""
    files = [path for path in sorted(INTERPOSER.rglob("*.rs")) if "tests" not in path.parts]
    return {str(path.relative_to(paths.ROOT)): path.read_text() for path in [*files, PROBE]}


def constants():
    """[(place, CUDA's name, value)], and the comments whose names and values cannot be paired."""
    found, troubles = [], []
    for path, text in sources().items():
        for comment, name, expression in COMMENTED_CONST.findall(text):
            names = CUDA_NAME.findall(comment)
            values = [int(value.replace("_", ""), 0) for value in re.findall(r"-?\b(?:0x[0-9a-f_]+|\d[\d_]*)\b", expression)]
            if names and len(names) != len(values):
                troubles.append(f"{path}: {name} has {len(values)} values and its comment {len(names)} names of CUDA's")
            elif names:
                found += [(f"{path}: {name}", cuda, value) for cuda, value in zip(names, values)]
    return found, troubles


def declarations():
    """[(place, symbol, types of the arguments)] of the hooks and of the typed driver functions."""
    found = []
    for path, text in sources().items():
        for start in re.finditer(r"\bfn (cu[A-Z]\w*)\s*\(", text):
            depth, at = 1, start.end()
            while depth:
                depth += {"(": 1, ")": -1}.get(text[at], 0)
                at += 1
            arguments = [part.strip() for part in text[start.end():at - 1].split(",")]
            found.append((path, start[1], [part.split(":", 1)[1].strip() for part in arguments if part]))
    return found


def hooked():
    """Symbols with a hook in some mode."""
    return {symbol for path, symbol, _ in declarations() if "/hooks/" in path}


def aliases():
    abi = sources()["interposer/src/driver/abi.rs"]
    structures = re.findall(r"pub struct (\w+)", abi)
    return dict(re.findall(r"pub type (\w+) = (\w+|\[\w+; \d+\]);", abi)), structures


class Comparison:
    """Claims about a release's headers, judged by one run of gcc."""

    def __init__(self):
        self.claims = []

    def claim(self, subject, condition):
        self.claims.append((subject, condition))

    def judge(self, headers):
        """({claims that are wrong: condition}, {claims about a name that the header lacks})."""
        lines = ["#define __CUDA_API_VERSION_INTERNAL 1", "#include <stddef.h>", "#include <cuda.h>"]
        first = len(lines) + 1
        lines += [f"_Static_assert({condition}, \"\");" for _, condition in self.claims]
        options = ["-fsyntax-only", "-w", "-fmax-errors=0", "-x", "c", "-I", headers]
        done = subprocess.run(["gcc", *options, "-"], input="\n".join(lines) + "\n", capture_output=True, text=True, check=False)
        wrong, lacking = {}, set()
        for line, message in re.findall(r"^<stdin>:(\d+):\d+: error: (.*)", done.stderr, re.MULTILINE):
            subject, condition = self.claims[int(line) - first] if int(line) >= first else ("cuda.h", message)
            if "static assertion failed" in message and subject not in lacking:
                wrong[subject] = condition
            else:
                lacking.add(subject)
        if done.returncode and not wrong and not lacking:
            sys.exit(f"symbols: gcc with {headers}: {done.stderr.strip().splitlines()[:1]}")
        return wrong, lacking


def claims(declared):
    """(Comparison of weft's source with headers that declare these functions, troubles)."""
    comparison = Comparison()
    named, troubles = constants()
    for place, cuda, value in named:
        comparison.claim(f"{place}, {cuda}", f"(long long)({cuda}) == {value}")
    for line in LAYOUTS.read_text().splitlines():
        if not line.startswith("#"):
            structure, field, offset, size = line.split("\t")
            member = f"sizeof((({structure} *)0)->{field}) == {size} && offsetof({structure}, {field}) == {offset}"
            comparison.claim(f"{structure}.{field}", f"sizeof({structure}) == {size}" if field == "whole" else member)
    for subject, condition in OTHER_LAYOUTS.items():
        comparison.claim(subject, condition)
    handles, structures = aliases()
    for path, symbol, types in declarations():
        if symbol not in declared:
            continue
        kinds = [kind for kind, _ in declared[symbol]]
        if len(kinds) != len(types):
            troubles.append(f"{path}: {symbol} has {len(types)} arguments, the header's {len(kinds)}")
            continue
        for at, (rust, cuda) in enumerate(zip(types, kinds)):
            wide = width(rust, cuda, handles, structures)
            if wide is None:
                troubles.append(f"{path}: {symbol}: the type '{rust}' is unknown to scripts/symbols")
            elif wide:
                comparison.claim(f"{path}: {symbol}, argument {at}: {rust} for {cuda}", wide)
    return comparison, troubles


def width(rust, cuda, handles, structures):
    """The condition under which an argument of that Rust type fits that C type; '' if any does,
    None if the Rust type is unknown.
    """
    pointer = re.fullmatch(r"\*(?:const|mut) (.*)", rust)
    if not pointer:
        rust = handles.get(rust, rust)
        # Location is the only structure by value.
        size = 8 if rust == "Location" else BYTES.get(rust)
        return size and f"sizeof({cuda}) == {size}"
    inner = handles.get(pointer[1], pointer[1])
    if inner.startswith("*"):
        size = 8
    elif array := re.fullmatch(r"\[(\w+); (\d+)\]", inner):
        size = BYTES[array[1]] * int(array[2])
    else:
        size = BYTES.get(inner)
    if inner in ("c_void", "()", "Identity") or inner in structures or cuda == "void*":
        return f"sizeof({cuda}) == 8"
    # A pointer to a longer structure or union may be read as one to its first field.
    inside = f"*({cuda})0"
    return size and f"(sizeof({inside}) == {size} || __builtin_classify_type({inside}) >= 12 && sizeof({inside}) > {size})"


def led_to(headers):
    """The functions to which cuda.h leads a program by its macros, in both stream flavours."""
    found = set()
    for options in [], ["-DCUDA_API_PER_THREAD_DEFAULT_STREAM"]:

        def run(text, *more):
            command = ["gcc", "-E", *more, *options, "-x", "c", "-I", headers, "-"]
            return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout

        source = "#include <cuda.h>\n"
        names = re.findall(r"^#define (cu[A-Z]\w*) ", run(source, "-dM"), re.MULTILINE)
        expanded = run(source + "".join(f'@"{name}" {name}\n' for name in names), "-P")
        inline = re.findall(r"static inline CUresult (\w+)\(", expanded)
        found |= set(re.findall(r'^@"\w+" (\w+)$', expanded, re.MULTILINE)) - set(inline)
    return found

