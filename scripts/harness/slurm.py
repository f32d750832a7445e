"""A Slurm cluster of simulated GPU nodes on this machine, in its own namespaces.

Invariants: the daemons are Slurm's own and run in the foreground. A network, a process and a mount
namespace separate them from the machine: no process listens on it, and no user or file is created
on it. The first process of the namespace ends with this one, however that ends; the kernel then
ends all others. Every node has its own /run, so its broker has the same path as on a real node.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from . import jobs, paths
from .scene import BOUND

# Programs of Debian's packages, and the packages.
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "squeue", "munged")
PACKAGES = "slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libslurm-dev"
HEADER = Path(os.environ.get("SLURM_VERSION_H", "/usr/include/slurm/slurm_version.h"))
TOOLS = ("unshare", "nsenter", "setpriv", "mount", "ip", "mknod")

DEPLOY = paths.ROOT / "deploy" / "slurm"
CRATE = DEPLOY / "spank"
HOLDS = paths.ROOT / "tests" / "admission" / "holds.py"
COMPANION = paths.BUILT / "weft-test-companion"
CLIENT = paths.BUILT / "weft-test-client"

# Users that exist only in the cluster: the machine's list of users stays as it is.
USERS = {"ann": 61001, "bea": 61002, "service": 61000}
SHARDS = 80
# Twice the 5 s within which Slurm's controller writes a change (SAVE_MAX_WAIT in its source).
SAVED_S = 10
# The administrator restricts priorities in Slurm; each broker here lets these users have all of
# them.
BROKER_OPTIONS = [word for user in USERS for word in ("--priority-of", f"{user}=0")]
CONTROLLER_PORT, FIRST_PORT = 6817, 6900
# Each node has its own address, with its broker's metrics at weft's usual port.
NODE_ADDRESS, METRICS_PORT = "127.0.1.", 9431
# A requeued job's wait before Slurm starts it again (cred_expire), s: Slurm's own default.
REQUEUE_S = 120

# The first process: it adopts orphans, and lives until its stdin closes.
INIT = "import signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); print('up', flush=True); sys.stdin.read()"
# Keeps a node's simulated GPUs, as a driver does: jobs find them there.
KEEPER = "import ctypes, sys, time; assert ctypes.CDLL(sys.argv[1]).cuInit(0) == 0; time.sleep(1e6)"


def missing():
    """The reason why no cluster can be started here, in one line, or None."""
    if os.geteuid() != 0:
        return "a cluster of several users needs root"
    absent = [program for program in PROGRAMS if shutil.which(program, path=search_path()) is None]
    if absent:
        return f"{absent[0]} is not installed (Debian: apt-get install {PACKAGES})"
    absent = [tool for tool in TOOLS if shutil.which(tool, path=search_path()) is None]
    if absent:
        return f"{absent[0]} is not on this machine"
    if not HEADER.exists():
        return f"{HEADER} is not there (Debian: apt-get install libslurm-dev)"
    probe = ["unshare", "--net", "--mount", "--pid", "--fork", "true"]
    if subprocess.run(probe, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode:
        return "this machine does not allow namespaces"
    needed = (COMPANION, paths.LIBWEFT, paths.WEFT, paths.SIMGPU_CUDA, paths.SIMGPU_DEVICE)
    absent = [file for file in needed if not file.exists()]
    return f"{absent[0]} is not built: run scripts/layout" if absent else None


def search_path():
    """The path including the folders of Slurm's daemons, which not every user has."""
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def release(header=HEADER):
    """The release of the header, `0xMMmmpp`."""
    return int(re.search(r"define SLURM_VERSION_NUMBER (\S+)", Path(header).read_text())[1], 16)


def build_plugin(header=HEADER):
    """Builds the plugin against this header of Slurm, in a folder for the release."""
    target = paths.TARGET / f"slurm-{release(header):06x}"
    command = ["cargo", "build", "--release", "--quiet", "--target-dir", target]
    environment = {**os.environ, "SLURM_VERSION_H": str(header)}
    given = {"cwd": CRATE, "env": environment, "stdin": subprocess.DEVNULL}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **given)
    if done.returncode:
        raise RuntimeError(f"the plugin was not built\n{done.stderr}")
    return target / "release" / "libweft_slurm.so"


def another_release(folder):
    """The header of a release that this machine does not have: Slurm has no such month."""
    text = HEADER.read_text()
    another = release() & 0xFF0000 | 0x0D00
    changed = re.sub(r"(define SLURM_VERSION_NUMBER) \S+", rf"\1 {another:#08x}", text)
    file = Path(folder) / "slurm_version.h"
    file.write_text(changed)
    return file


class Node:
    """A node: its folder, its daemons, its GPUs."""

    def __init__(self, cluster, number):
        self.cluster, self.number = cluster, number
        self.name = f"n{number}"
        self.folder = cluster.folder / self.name
        self.run = self.folder / "run"
        self.socket = self.run / "weft" / "broker.sock"
        self.devices = [
            cluster.folder / "dev" / f"{self.name}-{gpu}" for gpu in range(cluster.gpus)
        ]
        self.slurmd = self.broker = self.keeper = None
        self.starts = 0

    def prepare(self):
        for name in ("run/weft", "run/simgpu", "spool", "state"):
            (self.folder / name).mkdir(parents=True)
        (self.run / "simgpu").chmod(0o777)
        for device in self.devices:
            # A null device under another name: Slurm requires an existing device.
            subprocess.run(["mknod", device, "c", "1", "3"], check=True)

    def start(self):
        self.start_devices()
        self.start_broker()
        self.start_slurmd()

    def start_devices(self):
        command = [python(), "-c", self.cluster.KEEPER, self.cluster.driver]
        self.keeper = self.daemon("keeper", command, self.cluster.device_variables(self.name))
        device = self.run / "simgpu" / f"{self.name}.sock"
        there = jobs.wait_until(lambda: device.exists() or not self.keeper.running(), BOUND)
        assert there and self.keeper.running(), self.keeper.explain()

    def start_broker(self):
        metrics = f"{NODE_ADDRESS}{self.number}:{METRICS_PORT}"
        command = [self.cluster.bin / "weft", "broker", "--shared", "--metrics", metrics]
        command += self.cluster.broker_options
        variables = {
            **self.cluster.device_variables(self.name),
            "LD_LIBRARY_PATH": str(self.cluster.bin / "lib"),
            "WEFT_LOG": "info",
            "WEFT_STATE_DIR": str(self.folder / "state"),
        }
        self.broker = self.daemon("broker", command, variables)
        there = jobs.wait_until(lambda: self.status() or not self.broker.running(), BOUND)
        assert there and self.broker.running(), self.broker.explain()

    def start_slurmd(self):
        self.slurmd = self.daemon("slurmd", ["slurmd", "-D", "-N", self.name], {})

    def daemon(self, name, command, variables):
        """Starts a process of this node, in the foreground of its own session."""
        self.starts += 1
        inner = f'mount --bind "{self.run}" /run && exec "$@"'
        whole = ["unshare", "--mount", "sh", "-c", inner, name, *map(str, command)]
        return self.cluster.daemon(f"{self.name}-{name}{self.starts}", whole, variables)

    def status(self):
        """The node's broker's status of its jobs, or None."""
        command = [self.cluster.bin / "weft", "status", "--json"]
        done = self.cluster.run(command, variables={"WEFT_SOCKET": str(self.socket)})
        try:
            return json.loads(done.stdout)
        except ValueError:
            return None

    def clients(self):
        return (self.status() or {"clients": []})["clients"]


def python():
    """An interpreter that every user may start: the one of this run may lie in root's home."""
    for program in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        identity = ["setpriv", "--reuid=61001", "--regid=61001", "--clear-groups"]
        # Through a shell: setpriv itself keeps root's rights until its command has begun.
        command = [*identity, "sh", "-c", 'exec "$0" -c "import ctypes"', program]
        given = {"stdin": subprocess.DEVNULL, "capture_output": True, "cwd": "/"}
        if subprocess.run(command, check=False, **given).returncode == 0:
            return program
    raise RuntimeError("there is no Python that every user may start")


class Cluster:
    """A controller and its nodes. `plugstack`: the plugin's line; else as in the example.

    `conf`: lines for slurm.conf; they replace the cluster's own lines of the same name. `spread`:
    each GPU has cores near it. Slurm takes the least loaded cores, so it spreads shards over a
    node's GPUs; otherwise it fills one GPU after the other. `requeue_s`: the wait of a requeued
    job. `config`: the simulated devices' configuration. `more`: names in `bin` of files and folders
    that all users can see.
    """

    KEEPER = KEEPER

    def __init__(
        self,
        folder,
        *,
        nodes=2,
        gpus=2,
        plugin=None,
        plugstack=None,
        broker_options=(),
        conf=(),
        dilation=1,
        cpus=16,
        spread=False,
        requeue_s=REQUEUE_S,
        config=None,
        more=(),
    ):
        self.folder = Path(folder)
        self.gpus, self.dilation = gpus, dilation
        self.cpus, self.spread = cpus, spread
        self.requeue_s, self.config = requeue_s, config
        self.more = dict(more)
        self.plugin = plugin or build_plugin()
        self.plugstack = plugstack
        self.broker_options, self.conf = list(broker_options), list(conf)
        self.etc, self.bin = self.folder / "etc", self.folder / "bin"
        self.driver = self.bin / "lib" / "libcuda.so.1"
        self.nodes = [Node(self, number) for number in range(1, nodes + 1)]
        self.init = self.munged = self.controller = None
        self.starts = 0

    # The namespaces.

    def __enter__(self):
        try:
            self.prepare()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def prepare(self):
        self.folder.chmod(0o755)
        for name in ("etc", "bin/lib", "dev", "munge", "controller", "home", "logs"):
            (self.folder / name).mkdir(parents=True)
        for name, uid in USERS.items():
            home = self.folder / "home" / name
            home.mkdir(mode=0o755)
            os.chown(home, uid, uid)
        self.write_files()
        for node in self.nodes:
            node.prepare()

    def write_files(self):
        users = [
            f"{name}:x:{uid}:{uid}::{self.folder}/home/{name}:/bin/sh"
            for name, uid in USERS.items()
        ]
        groups = [f"{name}:x:{uid}:" for name, uid in USERS.items()]
        own_users, own_groups = Path("/etc/passwd").read_text(), Path("/etc/group").read_text()
        (self.etc / "passwd").write_text(own_users + "\n".join(users) + "\n")
        (self.etc / "group").write_text(own_groups + "\n".join(groups) + "\n")
        key = self.etc / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        if self.config:
            (self.bin / "device.toml").write_text(self.config)
        for name in ("cli_filter.lua", "job_submit.lua"):
            shutil.copy(DEPLOY / name, self.etc / name)
        line = self.plugstack or f"optional {self.bin}/weft_slurm.so lib={self.bin}/libweft.so"
        (self.etc / "plugstack.conf").write_text(line + "\n")
        exports = {
            **self.device_variables(),
            "LD_LIBRARY_PATH": self.bin / "lib",
            "WEFT_CUDA_LIBRARY": self.driver,
            "WEFT_CONFIG": "/dev/null",
        }
        prolog = "".join(f'echo "export {name}={value}"\n' for name, value in exports.items())
        (self.etc / "task_prolog").write_text("#!/bin/sh\n" + prolog)
        (self.etc / "task_prolog").chmod(0o755)
        (self.etc / "slurm.conf").write_text("\n".join(self.settings()) + "\n")
        gres = ["AutoDetect=off"]
        for node in self.nodes:
            for kind in ("gpu Type=sim", f"shard Count={SHARDS}"):
                gres += [
                    f"NodeName={node.name} Name={kind} File={device}{cores}"
                    for device, cores in zip(node.devices, self.near(), strict=True)
                ]
        (self.etc / "gres.conf").write_text("\n".join(gres) + "\n")

    def near(self):
        """The entries of gres.conf for the cores near each GPU."""
        each = self.cpus // self.gpus
        if not self.spread:
            return [""] * self.gpus
        return [f" Cores={at * each}-{(at + 1) * each - 1}" for at in range(self.gpus)]

    def settings(self):
        count = len(self.nodes)
        each = f"gpu:sim:{self.gpus},shard:{self.gpus * SHARDS}"
        addresses = f"[1-{count}]" if count > 1 else "1"
        hosts = f"NodeHostname=localhost NodeAddr={NODE_ADDRESS}{addresses}"
        ports = f"{FIRST_PORT}-{FIRST_PORT + count - 1}" if count > 1 else f"{FIRST_PORT}"
        names = f"n[1-{count}]" if count > 1 else "n1"
        sockets = f" Sockets={self.gpus} CoresPerSocket={self.cpus // self.gpus}"
        sockets = f"{sockets} ThreadsPerCore=1" if self.spread else ""
        own = {line.partition("=")[0]: line for line in self.conf}
        lines = [own.pop(line.partition("=")[0], line) for line in self.daemons_settings()]
        return [
            *lines,
            *(line for line in self.conf if line.partition("=")[0] in own),
            f"NodeName={names} {hosts} Port={ports} CPUs={self.cpus}{sockets} Gres={each}"
            " State=UNKNOWN",
            f"PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP",
        ]

    def daemons_settings(self):
        """The lines of slurm.conf except nodes and partitions."""
        return [
            "ClusterName=weft",
            "SlurmctldHost=localhost(127.0.0.1)",
            f"SlurmctldPort={CONTROLLER_PORT}",
            "CommunicationParameters=NoCtldInAddrAny",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={self.folder}/munge/socket,cred_expire={self.requeue_s}",
            "CredType=cred/munge",
            f"StateSaveLocation={self.folder}/controller",
            f"SlurmdSpoolDir={self.folder}/%n/spool",
            f"SlurmctldPidFile={self.folder}/controller.pid",
            f"SlurmdPidFile={self.folder}/%n/slurmd.pid",
            f"SlurmctldLogFile={self.folder}/logs/slurmctld.log",
            f"SlurmdLogFile={self.folder}/logs/%n.log",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "SwitchType=switch/none",
            "MpiDefault=none",
            "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none",
            "JobCompType=jobcomp/filetxt",
            f"JobCompLoc={self.folder}/ended",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "GresTypes=gpu,shard",
            "SlurmdParameters=config_overrides",
            "CliFilterPlugins=lua",
            "JobSubmitPlugins=lua",
            f"TaskProlog={self.etc}/task_prolog",
            "SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=5",
            "ReturnToService=2",
            "KillWait=3",
            "SlurmdTimeout=15",
            "MessageTimeout=30",
            "MinJobAge=600",
            "SlurmctldDebug=verbose",
            "SlurmdDebug=verbose",
        ]

    def start(self):
        command = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.unshare = subprocess.Popen(
            [*command, sys.executable, "-c", INIT], start_new_session=True, **pipes
        )
        if self.unshare.stdout.readline() != b"up\n":
            raise RuntimeError("the namespaces were not made")
        children = Path(f"/proc/{self.unshare.pid}/task/{self.unshare.pid}/children").read_text()
        self.init = int(children.split()[0])
        binds = [(self.etc / "passwd", "/etc/passwd"), (self.etc / "group", "/etc/group")]
        sources = {
            "weft": paths.WEFT,
            "libweft.so": paths.LIBWEFT,
            "simgpu-device": paths.SIMGPU_DEVICE,
            "lib/libcuda.so.1": paths.SIMGPU_CUDA,
            "lib/libnvidia-ml.so.1": paths.SIMGPU_LIB / "libnvidia-ml.so.1",
            "companion": COMPANION,
            "holds.py": HOLDS,
            "weft_slurm.so": self.plugin,
            **self.more,
        }
        for name, source in sources.items():
            # Visible to all users of the cluster, wherever it really lies.
            if Path(source).is_dir():
                (self.bin / name).mkdir()
            else:
                (self.bin / name).touch()
            binds.append((Path(source).resolve(), self.bin / name))
        script = [
            "set -e",
            "ip link set lo up",
            "ip addr add 10.99.0.1/32 dev lo",
            "mount -t tmpfs none /run",
        ]
        script += [f"mount --bind '{source}' '{place}'" for source, place in binds]
        self.must(["sh", "-c", "\n".join(script)])
        self.start_munge()
        for node in self.nodes:
            node.start()
        self.start_controller()
        self.wait_nodes()

    def start_munge(self):
        place = self.folder / "munge"
        command = [
            "munged",
            "-F",
            "--force",
            f"--socket={place}/socket",
            f"--key-file={self.etc}/munge.key",
        ]
        command += [f"--{name}-file={place}/{name}" for name in ("pid", "log", "seed")]
        self.munged = self.daemon("munged", command, {})
        there = jobs.wait_until(
            lambda: (place / "socket").exists() or not self.munged.running(), BOUND
        )
        assert there and self.munged.running(), self.munged.explain()

    def start_controller(self):
        self.starts += 1
        self.controller = self.daemon(f"slurmctld{self.starts}", ["slurmctld", "-D"], {})

    def wait_saved(self):
        """Waits until the controller has written its record of jobs.

        It writes some seconds after a change. If it is killed before, it forgets jobs, with weft or
        without.
        """
        file, begin = self.folder / "controller" / "job_state", time.time()
        # If nothing has changed, it writes nothing.
        jobs.wait_until(lambda: file.exists() and file.stat().st_mtime > begin, SAVED_S, step=0.2)

    def wait_nodes(self):
        """Waits until every node takes jobs."""

        def idle():
            done = self.run(["sinfo", "-h", "-N", "-o", "%N %t"])
            # The output has a line for each partition of a node.
            states = dict(line.split() for line in done.stdout.splitlines())
            return len(states) == len(self.nodes) and all(
                state in ("idle", "mix", "alloc") for state in states.values()
            )

        assert jobs.wait_until(idle, BOUND, step=0.2), self.explain()

    def close(self):
        """Ends the first process, and thereby all others."""
        for job in (
            self.munged,
            self.controller,
            *(job for node in self.nodes for job in (node.slurmd, node.broker, node.keeper)),
        ):
            if job:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.kill()
        if self.init:
            self.unshare.kill()
            self.unshare.wait(BOUND)
            self.init = None

    # Commands in the namespaces.

    def enter(self, user=None):
        """The words before a command that runs in the cluster."""
        words = ["nsenter", "-t", str(self.init), "--net", "--mount", "--pid", "--"]
        if user:
            uid = str(USERS[user])
            words += ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "--"]
        return words

    def environment(self, user=None, variables=None):
        clean = {
            key: value
            for key, value in jobs.clean_environment().items()
            if not key.startswith(("WEFT_", "SLURM"))
        }
        home = str(self.folder / "home" / user) if user else "/root"
        own = {
            "PATH": search_path(),
            "HOME": home,
            "SLURM_CONF": str(self.etc / "slurm.conf"),
            "WEFT_CONFIG": "/dev/null",
        }
        if user:
            own |= {"USER": user, "LOGNAME": user}
        return {**clean, **own, **{key: str(value) for key, value in (variables or {}).items()}}

    def device_variables(self, node="$SLURMD_NODENAME"):
        config = {"SIMGPU_CONFIG": str(self.bin / "device.toml")} if self.config else {}
        return {
            **config,
            # A device's identity comes from this path: each node has its own.
            "SIMGPU_SOCKET": f"/run/simgpu/{node}.sock",
            "SIMGPU_DEVICE_BIN": str(self.bin / "simgpu-device"),
            "SIMGPU_DEVICES": ",".join([f"{SHARDS}GiB"] * self.gpus),
            "SIMGPU_DILATION": str(self.dilation),
            "SIMGPU_USERS": "all",
        }

    def daemon(self, name, command, variables):
        given = {
            "environment": self.environment(variables=variables),
            "folder": self.folder / "logs",
            "name": name,
        }
        return jobs.Job([*self.enter(), *command], **given)

    def run(self, command, user=None, variables=None, bound=BOUND, given=None):
        """Runs a command in the cluster, as root or as a user of it."""
        cwd = self.folder / "home" / user if user else "/"
        whole = [*self.enter(user), "sh", "-c", 'cd "$0" && exec "$@"', cwd, *map(str, command)]
        return subprocess.run(
            whole,
            env=self.environment(user, variables),
            input=given if given is not None else "",
            capture_output=True,
            text=True,
            timeout=bound,
            check=False,
        )

    def must(self, command, **more):
        done = self.run(command, **more)
        if done.returncode:
            raise AssertionError(
                f"{command[0]}: exit {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    def sbatch(self, user, script, *options, variables=None):
        """Submits a script. Returns the job's number."""
        text = script if script.startswith("#!") else f"#!/bin/sh\n{script}\n"
        out = self.must(
            ["sbatch", "--parsable", *options], user=user, given=text, variables=variables
        )
        return int(out.strip().split(";")[0])

    def job(self, number):
        """The controller's record of a job, as a table of its words."""
        done = self.run(["scontrol", "-o", "show", "job", number])
        return dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)

    def state(self, number):
        return self.job(number).get("JobState", "?")

    def wait_state(self, number, *states, bound=BOUND):
        seen = []

        def there():
            seen[:] = [self.state(number)]
            return seen[0] in states

        assert jobs.wait_until(
            there, bound, step=0.2
        ), f"job {number} is {seen[0]}, not {states}\n{self.explain()}"
        return seen[0]

    def output(self, user, number):
        file = self.folder / "home" / user / f"slurm-{number}.out"
        return file.read_text(errors="replace") if file.exists() else ""

    def processes(self):
        """pid -> command line of all processes in the namespace except the first."""
        done = self.must(["ps", "-eo", "pid=,args="])
        rows = (line.strip().split(None, 1) for line in done.splitlines())
        return {
            int(pid): words for pid, words in rows if int(pid) != 1 and not words.startswith("ps ")
        }

    def explain(self, lines=6):
        """The ends of the daemons' logs, for a failure's report."""
        found = []
        for log in sorted((self.folder / "logs").iterdir()):
            # Slurm's daemons print the same on stderr.
            if log.name.endswith(".stdout") or re.match(r"(n\d+-)?slurm", log.name):
                if log.name != "slurmctld.log":
                    continue
            told = log.read_text(errors="replace").splitlines()
            tail = [line for line in told if "mpi" not in line.lower()][-lines:]
            if tail:
                found += [f"{log.name}:", *("    " + line for line in tail)]
        return "\n".join(found)
