"""Another release of Debian, as the root of a namespace, in which its packages run.

Invariants: the release lies in a folder below target; debootstrap makes it once. Only this run sees
its root, so nothing is mounted on the machine. The project and the home folder are at their usual
places. Every program that is built or run there finds the other release's own libraries.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from . import debian, paths, slurm

# Packages for cases and plugins: the interpreter, a linker, and the programs that the harness
# calls.
PACKAGES = ("python3", "gcc", "libc6-dev", "iproute2", "procps")
# Seconds; it takes 8 minutes on a busy machine.
MAKE_BOUND_S = 1800
# Folders of the machine, visible at the same place.
SEEN = ("/proc", "/sys", "/dev")

# Arguments: the new root as $1, then the visible folders of the machine, then `--` and the command.
ENTER = """
set -e
root=$1; shift
mount --bind "$root" "$root"
while [ "$1" != -- ]; do mkdir -p "$root$1"; mount --rbind "$1" "$root$1"; shift; done
shift
mkdir -p "$root/old"
here=$PWD
cd "$root"
pivot_root . old
umount -l /old
cd "$here"
exec "$@"
"""


def make(name, packages):
    """The folder of a release with these packages. It is made if it does not exist.

    Raises RuntimeError with the reason in one line if that is impossible.
    """
    folder = paths.TARGET / f"debian-{name}"
    done = folder / "made"
    if done.exists():
        return folder
    if os.geteuid() != 0:
        raise RuntimeError("another release of Debian needs root")
    tool = shutil.which("debootstrap", path=slurm.search_path())
    if tool is None:
        raise RuntimeError("debootstrap is not installed (Debian: apt-get install debootstrap)")
    print(f"making {folder}: some minutes", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    words = ",".join([*PACKAGES, *packages])
    command = [tool, "--variant=minbase", f"--include={words}", name, folder]
    command.append(debian.mirror_of_machine())
    log = folder.with_suffix(".log")
    with open(log, "w") as out:
        given = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
        code = subprocess.run(command, timeout=MAKE_BOUND_S, check=False, **given).returncode
    if code:
        raise RuntimeError(f"debootstrap {name}: exit {code}; {log} says why")
    # Daemons look up the machine's name.
    shutil.copy("/etc/hosts", folder / "etc" / "hosts")
    done.touch()
    return folder


def run(folder, command):
    """Runs a command of the project there. Returns its exit code."""
    seen = sorted({str(paths.ROOT), str(Path.home()), *SEEN})
    unshare = ["unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER, "sh"]
    variables = {key: value for key, value in os.environ.items() if key != "TMPDIR"}
    variables["PATH"] = slurm.search_path()
    whole = [*unshare, folder, *seen, "--", *map(str, command)]
    return subprocess.run(whole, cwd=paths.ROOT, env=variables, check=False).returncode
