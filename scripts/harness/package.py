# SPDX-License-Identifier: MIT OR Apache-2.0
"""weft's packages: their glibc, their contents, and how each is made.

All three are made from one folder, the tarball's, so they have the same files.
"""

import gzip
import os
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from . import elf, licences, paths

# The oldest glibc that the packages run on: RHEL 8 has it.
GLIBC = (2, 28)
GLIBC_TEXT = ".".join(map(str, GLIBC))


@dataclass(frozen=True)
class Processor:
    """A kind of processor that packages are for: its name, Debian's, and the folder of a build."""

    name: str
    debian: str
    target: Path

    @property
    def triple(self):
        return f"{self.name}-unknown-linux-gnu"

    @property
    def built(self):
        return self.target / self.triple / "release"


X86_64 = Processor("x86_64", "amd64", paths.TARGET)
AARCH64 = Processor("aarch64", "arm64", paths.TARGET / "aarch64")
PROCESSORS = {kind.name: kind for kind in (X86_64, AARCH64)}
TRIPLE, BUILT = X86_64.triple, X86_64.built
FILES = ("weft", "libweft.so")

OUT = paths.TARGET / "package"
DEPLOY = paths.ROOT / "deploy"
# Names the release of Slurm that the plugin is built for.
SLURM_HEADER = Path(os.environ.get("SLURM_VERSION_H", "/usr/include/slurm/slurm_version.h"))
# The licences of the packages that the two files are linked with.
NOTICES = "LICENSE-THIRD-PARTY"
TEXTS = ("README.md", "SECURITY.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE")

# Scripts that dpkg runs.
SCRIPTS = ("postinst", "prerm", "postrm")

# Folders of deploy/ for administrators.
FOLDERS = ("systemd", "grafana", "prometheus")

# A link of Markdown: its words, and its target.
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")

# The driver's names, under which programs load weft's library.
LINKS = ("libcuda.so.1", "libcuda.so")

# The folders of each shell for a package's completions, below /usr/share.
COMPLETIONS = {
    "bash": "bash-completion/completions/weft",
    "zsh": "zsh/vendor-completions/_weft",
    "fish": "fish/vendor_completions.d/weft.fish",
}

# Seconds for one command that makes a package.
BOUND_S = 300

# Functions that glibc 2.28 also has, in other versions or as part of each program (stat and its
# kind). A program that needs their newer versions was only linked on a newer system. From glibc's
# list of symbols for x86_64 (sysdeps/unix/sysv/linux/x86_64/64/libc.abilist): they moved into
# libc.so in 2.34, or got a new version there.
MOVED = set(
    """
    dladdr dladdr1 dlclose dlerror dlinfo dlopen dlsym dlvsym __libc_start_main
    fstat fstat64 fstatat fstatat64 lstat lstat64 stat stat64 mknod mknodat
    pthread_attr_getguardsize pthread_attr_getstack pthread_attr_setguardsize
    pthread_attr_setstacksize pthread_getattr_np pthread_create pthread_detach pthread_join
    pthread_key_create pthread_key_delete pthread_setspecific pthread_getspecific
    pthread_mutex_trylock pthread_mutexattr_destroy pthread_mutexattr_init
    pthread_mutexattr_settype pthread_kill pthread_once pthread_rwlock_rdlock
    pthread_rwlock_unlock pthread_rwlock_wrlock pthread_setname_np pthread_sigmask
    exp2 exp log log2 pow sem_init sem_post sem_wait shm_open shm_unlink
    """.split()
)


class Failed(RuntimeError):
    """A package could not be made. The text has the command and its message."""


def version():
    """The version in Cargo.toml."""
    text = (paths.ROOT / "Cargo.toml").read_text()
    return re.findall(r'^version = "(.+)"$', text, re.MULTILINE)[0]


def folder(out=OUT, processor=X86_64):
    """The folder that the tarball unpacks to."""
    return out / f"weft-{version()}-{processor.name}"


def tarball(out=OUT, processor=X86_64):
    """The path of the tarball."""
    return Path(f"{folder(out, processor)}.tar.gz")


def deb(out=OUT, processor=X86_64):
    """The path of Debian's package."""
    return out / f"weft_{version()}_{processor.debian}.deb"


def wheel(out=OUT, processor=X86_64):
    """The path of the Python wheel, or None."""
    return next(iter(sorted(out.glob(f"weft_gpu-{version()}-*_{processor.name}.whl"))), None)


def faults(file, moved=()):
    """A line for each symbol that needs a newer glibc than GLIBC; names in `moved` may need one."""
    found = elf.too_new(file, GLIBC, weak=False)
    return [
        f"{file}: needs {symbol} of {needed}, newer than glibc {GLIBC_TEXT}"
        for symbol, needed in found
        if symbol not in moved
    ]


def make(built, out, as_built=False, processor=X86_64, runner=()):
    """Makes all three packages anew in `out`, from the files in `built`."""
    whole = lay_out(built, folder(out, processor), processor, runner)
    debian = make_deb(whole, out, as_built, processor)
    return [pack(whole), debian, make_wheel(whole, out, as_built, processor)]


def lay_out(built, whole, processor=X86_64, runner=()):
    """Makes the folder that a user of the tarball unpacks. It has the shape of target/weft.
    `runner`: words before a command of another processor; its files are stripped already.
    """
    shutil.rmtree(whole, ignore_errors=True)
    (whole / "lib").mkdir(parents=True)
    for name in FILES:
        shutil.copyfile(built / name, whole / name)
        if not runner:
            elf.strip(whole / name)
        (whole / name).chmod(0o755)
    for name in LINKS:
        (whole / "lib" / name).symlink_to("../libweft.so")
    for name in TEXTS:
        shutil.copyfile(paths.ROOT / name, whole / name)
    (whole / NOTICES).write_text(licences.text(processor.triple, "weft-cli", "weft-interposer"))
    shutil.copytree(paths.ROOT / "docs", whole / "docs")
    for name in FOLDERS:
        shutil.copytree(DEPLOY / name, whole / name)
    (whole / "examples").mkdir()
    shutil.copyfile(DEPLOY / "weft.toml", whole / "examples" / "weft.toml")
    mend_links(whole)
    run(*runner, whole / "weft", "man", whole / "share" / "man" / "man1")
    for shell, place in COMPLETIONS.items():
        file = whole / "share" / place
        file.parent.mkdir(parents=True)
        file.write_text(run(*runner, whole / "weft", "completions", shell))
    return whole


def mend_links(folder):
    """Makes links of a package's documents point into the package. A link to a file that only the
    source has is removed.
    """

    def mended(file, words, link):
        path, hash_, part = link.partition("#")
        if not path or "://" in path or (file.parent / path).exists():
            return f"[{words}]({link})"
        moved = path.replace("../deploy/", "../")
        return f"[{words}]({moved}{hash_}{part})" if (file.parent / moved).exists() else words

    for file in folder.rglob("*.md"):
        text = LINK.sub(lambda found, file=file: mended(file, *found.groups()), file.read_text())
        file.write_text(text)


def pack(whole):
    """Makes the tarball; root owns its files."""

    def owned(entry):
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        return entry

    file = Path(f"{whole}.tar.gz")
    with tarfile.open(file, "w:gz") as archive:
        archive.add(whole, whole.name, filter=owned)
    return file


def make_deb(whole, out, as_built=False, processor=X86_64):
    """Makes Debian's package: the same files in Debian's folders. With `as_built` it is only for
    this machine: made in a second, and larger.
    """
    root = out / "deb"
    shutil.rmtree(root, ignore_errors=True)
    documents = root / "usr/share/doc/weft"
    shutil.copytree(whole / "share", root / "usr/share")
    for page in (root / "usr/share/man/man1").iterdir():
        # Without a time and a name, so that the same page gives the same file.
        Path(f"{page}.gz").write_bytes(gzip.compress(page.read_bytes(), mtime=0))
        page.unlink()
    for source, place in (("weft", "usr/bin/weft"), ("libweft.so", "usr/lib/weft/libweft.so")):
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(whole / source, root / place)
    (root / "usr/lib/weft/lib").mkdir()
    for name in LINKS:
        (root / "usr/lib/weft/lib" / name).symlink_to("../libweft.so")
    for file in sorted((whole / "systemd").glob("**/*")):
        kind = "user" if "user" in file.relative_to(whole / "systemd").parts else "system"
        place = root / "usr/lib/systemd" / kind / file.name
        if file.suffix in (".service", ".socket"):
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, place)
    shutil.copytree(whole / "docs", documents / "docs")
    for name in ("grafana", "prometheus", "examples"):
        shutil.copytree(whole / name, documents / name)
    for name in ("README.md", "SECURITY.md", "CHANGELOG.md"):
        shutil.copyfile(whole / name, documents / name)
    mend_links(documents)
    names = [*(name for name in TEXTS if "LICENSE" in name), NOTICES]
    (documents / "copyright").write_text(copyright_of(whole, names))
    size = sum(file.stat().st_size for file in root.rglob("*") if file.is_file())
    (root / "DEBIAN").mkdir()
    for name in ("control", *SCRIPTS):
        text = (DEPLOY / "debian" / name).read_text()
        text = text.replace("@VERSION@", version()).replace("@SIZE_KIB@", str(size // 1024))
        text = text.replace("@ARCHITECTURE@", processor.debian)
        (root / "DEBIAN" / name).write_text(text)
        if name in SCRIPTS:
            (root / "DEBIAN" / name).chmod(0o755)
    for entry in [root, *root.rglob("*")]:
        if not entry.is_symlink():
            runs = entry.is_dir() or os.access(entry, os.X_OK) and entry.stat().st_mode & 0o100
            entry.chmod(0o755 if runs else 0o644)
    pressed = ["-Zgzip", "-z1"] if as_built else ["-Zxz"]
    run("dpkg-deb", "--root-owner-group", *pressed, "--build", root, deb(out, processor))
    shutil.rmtree(root)
    return deb(out, processor)


def copyright_of(folder, names):
    """The text of Debian's file `copyright`: these licences, which lie in the folder."""
    parts = [f"{name}:\n\n{(folder / name).read_text()}" for name in names]
    return "weft's licence is MIT or Apache-2.0, as you like.\n\n" + "\n".join(parts)


def slurm_release(header):
    """The release of Slurm that a header belongs to, and the release that follows its series."""
    found = re.search(r"define SLURM_VERSION_NUMBER 0x(\w+)", Path(header).read_text())
    if not found:
        raise Failed(f"{header}: no SLURM_VERSION_NUMBER in it")
    number = int(found[1], 16)
    major, minor = number >> 16 & 0xFF, number >> 8 & 0xFF
    return f"{major}.{minor:02}", f"{major}.{minor:02}.99"


def build_plugin(header=SLURM_HEADER):
    """Builds the plugin against this header of Slurm, in a folder for the release."""
    target = paths.TARGET / f"slurm-{slurm_release(header)[0]}"
    command = ["cargo", "build", "--release", "--quiet", "--target-dir", target]
    environment = {**os.environ, "SLURM_VERSION_H": str(header)}
    given = {"cwd": DEPLOY / "slurm" / "spank", "env": environment, "stdin": subprocess.DEVNULL}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **given)
    if done.returncode:
        raise Failed(f"the plugin was not built\n{done.stderr}")
    return target / "release" / "libweft_slurm.so"


def slurm_deb(release, out=OUT):
    """The path of Debian's package of the plugin for Slurm."""
    return out / f"weft-slurm_{version()}_amd64_slurm-{release}.deb"


def make_slurm_deb(plugin, header, out=OUT):
    """Makes Debian's package of the plugin, for the release of Slurm that it was built against."""
    release, after = slurm_release(header)
    root = out / "slurm-deb"
    shutil.rmtree(root, ignore_errors=True)
    library = root / "usr/lib/weft/weft_slurm.so"
    library.parent.mkdir(parents=True)
    shutil.copyfile(plugin, library)
    elf.strip(library)
    documents = root / "usr/share/doc/weft-slurm"
    examples = documents / "examples"
    examples.mkdir(parents=True)
    for file in sorted((DEPLOY / "slurm").glob("*.*")):
        shutil.copyfile(file, examples / file.name)
    shutil.copyfile(paths.ROOT / "docs" / "slurm.md", documents / "slurm.md")
    mend_links(documents)
    names = [name for name in TEXTS if "LICENSE" in name]
    (documents / "copyright").write_text(copyright_of(paths.ROOT, names))
    size = sum(file.stat().st_size for file in root.rglob("*") if file.is_file())
    # It was linked on this machine: its symbols state the glibc that it needs.
    newer = [elf.glibc_number(needed) for _, needed in elf.too_new(library, GLIBC, weak=False)]
    glibc = ".".join(map(str, max(newer, default=GLIBC)))
    words = {"VERSION": version(), "SIZE_KIB": str(size // 1024), "GLIBC": glibc}
    words |= {"SLURM": release, "SLURM_NEXT": after}
    text = (DEPLOY / "debian" / "control-slurm").read_text()
    for name, value in words.items():
        text = text.replace(f"@{name}@", value)
    (root / "DEBIAN").mkdir()
    (root / "DEBIAN" / "control").write_text(text)
    for entry in [root, *root.rglob("*")]:
        entry.chmod(0o755 if entry.is_dir() else 0o644)
    file = slurm_deb(release, out)
    run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", root, file)
    shutil.rmtree(root)
    return file


def make_wheel(whole, out, as_built, processor=X86_64):
    """Makes the wheel: the two files and the module that finds them."""
    source = out / "wheel"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(DEPLOY / "python", source, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (*TEXTS, NOTICES):
        if name.startswith("LICENSE"):
            shutil.copyfile(whole / name, source / name)
    module = source / "weft_gpu"
    (module / "_version.py").write_text(
        f'"""As the command has it."""\n\nVERSION = "{version()}"\n'
    )
    (module / "bin" / "lib").mkdir(parents=True)
    for name in FILES:
        shutil.copy(whole / name, module / "bin" / name)
    for name in LINKS:
        # A wheel has no links: the module makes them, and pip removes the files that are listed
        # here.
        (module / "bin" / "lib" / name).touch()
    system = "linux" if as_built else f"manylinux_{GLIBC[0]}_{GLIBC[1]}"
    platform = f"{system}_{processor.name}"
    for old in out.glob(f"weft_gpu-*_{processor.name}.whl"):
        old.unlink()
    settings = {"--build-option": [f"--plat-name={platform}", "--python-tag=py3"]}
    hook = "import setuptools.build_meta as b; b.build_wheel({!r}, {!r})"
    run(paths.python("wheel"), "-c", hook.format(str(out.resolve()), settings), within=source)
    shutil.rmtree(source)
    if (made := wheel(out, processor)) is None:
        raise Failed(f"no wheel is in {out}, though setuptools ended well")
    return made


def run(*command, within=None, bound_s=BOUND_S):
    """Runs a command. Returns its stdout."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            cwd=within,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=bound_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{words[0]} did not end within {bound_s} s") from None
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        said = (done.stderr.strip() or "it printed nothing").splitlines()[-1]
        raise Failed(f"{words[0]} ended with {done.returncode}: {said}")
    return done.stdout
