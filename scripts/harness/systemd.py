"""A real systemd as the first process of its own namespaces, on this machine's own Debian.

Its root is an overlay of this machine's root: files that are installed or written there stay in
memory and disappear with it. Its network, processes, users' sessions and control groups are its
own. It boots in seconds, without a container engine and without a download. It needs root.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

from . import jobs

INIT = Path("/lib/systemd/systemd")
# Seconds to boot, and for one command inside, on two busy cores.
BOOT_BOUND_S, BOUND_S = 90, 90

# Puts the first process into its own control group, so that two such machines, and this machine's
# systemd, do not see each other's units. Removes that group at the end.
OUTSIDE = r"""
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$SCRATCH"
mkdir "$SCRATCH/cgroup" "$SCRATCH/upper" "$SCRATCH/work" "$SCRATCH/root"
if [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]; then
    export GROUPS_TYPE="cgroup2" GROUPS_OPTIONS="rw" GROUPS_PLACE="sys/fs/cgroup"
else
    export GROUPS_TYPE="cgroup" GROUPS_OPTIONS="none,name=systemd" GROUPS_PLACE="sys/fs/cgroup/systemd"
fi
mount -t $GROUPS_TYPE -o $GROUPS_OPTIONS groups "$SCRATCH/cgroup"
own="$SCRATCH/cgroup/weft-$$"
mkdir "$own"
(
    echo 0 > "$own/cgroup.procs"
    exec unshare --mount --pid --fork --kill-child --uts --ipc --net --cgroup sh -c "$INSIDE"
) || true
find "$own" -depth -type d -exec rmdir {} + 2>/dev/null || true
"""

INSIDE = r"""
set -e
R="$SCRATCH/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$SCRATCH/upper,workdir=$SCRATCH/work" "$R"
cp -a "$STAGE/." "$R/"
# Nothing of this machine's own services.
rm -rf "$R"/etc/systemd/system/*.wants
# A container's policy keeps packages from their services, which is no machine's.
rm -f "$R/usr/sbin/policy-rc.d"
mount -t proc proc "$R/proc"
mount -t sysfs sysfs "$R/sys"
mount -t tmpfs tmpfs "$R/run"
mount -t tmpfs tmpfs "$R/tmp"
mount -t tmpfs -o mode=755 tmpfs "$R/dev"
for name in null zero full random urandom tty; do
    touch "$R/dev/$name"
    mount --bind "/dev/$name" "$R/dev/$name"
done
mkdir "$R/dev/pts" "$R/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$R/dev/pts"
mount -t tmpfs tmpfs "$R/dev/shm"
ln -s pts/ptmx "$R/dev/ptmx"
ln -s /proc/self/fd "$R/dev/fd"
touch "$R/dev/console"
[ "$GROUPS_TYPE" = cgroup2 ] || mount -t tmpfs tmpfs "$R/sys/fs/cgroup"
mkdir -p "$R/$GROUPS_PLACE"
mount -t $GROUPS_TYPE -o $GROUPS_OPTIONS groups "$R/$GROUPS_PLACE"
ip link set lo up
hostname gpu01
cd "$R"
mkdir old
pivot_root . old
umount -l old
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=linux \
    /lib/systemd/systemd --system --log-target=console --show-status=no systemd.unit=multi-user.target
"""


def why_not():
    """The reason why it cannot boot here, or None."""
    if os.geteuid():
        return "only root may boot it"
    if not INIT.exists():
        return "this machine has no systemd (Debian: apt-get install systemd)"
    if not Path("/usr/bin/dpkg").exists() or not Path("/usr/bin/python3").exists():
        return "this machine has no dpkg, or no Python in /usr/bin"
    for tool in ("unshare", "nsenter", "ip"):
        if shutil.which(tool) is None:
            return f"{tool} is not on this machine"
    probe = 'mount -t tmpfs tmpfs "$1" && mkdir "$1/u" "$1/w" "$1/r" && '
    probe += 'mount -t overlay overlay -o "lowerdir=/,upperdir=$1/u,workdir=$1/w" "$1/r"'
    with jobs.workspace() as folder:
        words = ["unshare", "--mount", "--pid", "--fork", "--net", "--cgroup", "sh", "-c", probe]
        done = run([*words, "sh", str(folder)])
    return f"no overlay of this machine: {done.stderr.strip()}" if done.returncode else None


def run(words):
    """Runs a command. Returns its CompletedProcess."""
    bounded = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    return subprocess.run(words, **bounded, timeout=BOUND_S, check=False)


class Booted:
    """The machine. `stage`: a folder whose files are put into its root before it boots."""

    def __init__(self, folder, stage):
        self.folder, self.stage = Path(folder), Path(stage)
        self.log = self.folder / "boot.log"
        self.init = None

    def __enter__(self):
        scratch = self.folder / "scratch"
        scratch.mkdir()
        given = {"SCRATCH": str(scratch), "STAGE": str(self.stage), "INSIDE": INSIDE}
        given["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"
        words = ["unshare", "--mount", "sh", "-c", OUTSIDE]
        with self.log.open("w") as log:
            out = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self.outside = subprocess.Popen(words, env=given, **out, start_new_session=True)
        with contextlib.ExitStack() as stack:
            stack.push(lambda *_: self.end())
            if not jobs.wait_until(self.is_up, BOOT_BOUND_S, step=0.2):
                lines = self.log.read_text(errors="replace").splitlines()[-20:]
                raise AssertionError("systemd did not boot:\n" + "\n".join(lines))
            stack.pop_all()
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        """Ends its first process, and thereby all of them."""
        if self.init:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.init, signal.SIGKILL)
        try:
            self.outside.wait(BOUND_S if self.init else 1)
        except subprocess.TimeoutExpired:
            os.killpg(self.outside.pid, signal.SIGKILL)
            self.outside.wait(BOUND_S)

    def is_up(self):
        """Whether its systemd has started everything."""
        self.init = self.init or self.first_process()
        if self.init is None or self.outside.poll() is not None:
            return False
        return self.run("systemctl", "is-system-running").stdout.strip() in ("running", "degraded")

    def first_process(self):
        """The outer id of its first process: the child of `unshare`, once it has become systemd."""
        below, found = [self.outside.pid], None
        while below:
            found = below.pop()
            try:
                below = [int(pid) for pid in Path(f"/proc/{found}/task/{found}/children").read_text().split()][:1]
                name = Path(f"/proc/{found}/comm").read_text().strip()
            except OSError:
                return None
            if name == "systemd":
                return found
        return None

    def words(self, *command, user="root", environment=None):
        """The outer command line of a command inside."""
        home = "/root" if user == "root" else f"/home/{user}"
        given = {"HOME": home, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "USER": user}
        pairs = [f"{name}={value}" for name, value in {**given, **(environment or {})}.items()]
        enter = ["nsenter", "-t", str(self.init), "-m", "-p", "-u", "-i", "-n", "-C", "-r", "-w"]
        become = [] if user == "root" else ["runuser", "-u", user, "--"]
        return [*enter, "env", "-i", *pairs, *become, *map(str, command)]

    def run(self, *command, **more):
        """Runs a command inside. Returns its CompletedProcess."""
        return run(self.words(*command, **more))

    def must(self, *command, **more):
        """Runs a command inside. Returns its stdout; fails if the command does not end well."""
        done = self.run(*command, **more)
        said = f"{command}: exit {done.returncode}: {done.stdout}{done.stderr}"
        assert done.returncode == 0, f"{said}\n{self.journal()}" if self.init else said
        return done.stdout

    def journal(self):
        """The end of the broker's journal inside."""
        return self.run("journalctl", "-u", "weft-broker", "-n", "30", "--no-pager").stdout
