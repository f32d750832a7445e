# SPDX-License-Identifier: MIT OR Apache-2.0
"""Starts jobs. Each job has its own process group, a time bound, output files and its own device.

Every wait here is bounded. A job that exceeds its bound is killed by the id of its process group.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from . import paths

# Variables of the caller that would change a job's behaviour. A test sets them itself.
OURS = ("WEFT_", "SIMGPU_", "LD_PRELOAD", "LD_LIBRARY_PATH", "TRITON_LIBCUDA_PATH", "CUDA_", "PYTORCH_")


def clean_environment():
    """The caller's environment without anything that configures weft, the simulated GPU or CUDA.

    Jobs print nothing at their end. Brokers keep their records of ended jobs away from the
    caller's. Pages have lines of any length, whatever the caller's terminal.
    """
    own = {k: v for k, v in os.environ.items() if not k.startswith(OURS) and k != "COLUMNS"}
    # Keeps out the weft.toml of this machine and of this user too.
    return {**own, "WEFT_OUTCOME": "off", "WEFT_CONFIG": "/dev/null", "WEFT_STATE_DIR": str(paths.ROOT / "target" / "test-state")}


@contextlib.contextmanager
def workspace(keep=False):
    """A temporary folder. Its path is short: a unix socket's path holds 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="weft-", dir="/tmp"))
    try:
        yield folder
    finally:
        if keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


class Device:
    """A simulated GPU that only the jobs given this object see. Its first job starts it; it ends
    with its last job.

    A call with a destroyed handle ends the job, as on a real driver, unless `dead_handles` is
    "refuse". With "reuse" the handle soon belongs to another object.
    """

    def __init__(self, folder, *, config=None, dilation=1, mode=None, memory=None, log=None, dead_handles="abort"):
        self.folder = Path(folder)
        self.log = Path(log) if log else None
        self.settings = {
            "SIMGPU_SOCKET": str(self.folder / "device.sock"),
            "SIMGPU_DEVICE_BIN": str(paths.SIMGPU_DEVICE),
            "SIMGPU_DILATION": str(dilation),
            "SIMGPU_DEAD_HANDLES": dead_handles,
        }
        if config:
            self.settings["SIMGPU_CONFIG"] = str(config)
        if mode:
            self.settings["SIMGPU_MODE"] = mode
        if memory:
            self.settings["SIMGPU_MEMORY"] = str(memory)
        if log:
            self.settings["SIMGPU_LOG"] = str(log)

    simulated = True

    @property
    def dilation(self):
        """Wall seconds a device second."""
        return float(self.settings["SIMGPU_DILATION"])

    def environment(self, libraries=()):
        """The variables with which a job finds this device. `libraries`: more folders for the
        library path.
        """
        path = os.pathsep.join([str(paths.SIMGPU_LIB), *libraries])
        return {**self.settings, "LD_LIBRARY_PATH": path, "TRITON_LIBCUDA_PATH": str(paths.SIMGPU_LIB)}

    def weft_environment(self):
        """The variables with which weft finds this device's driver: the system's own folders have
        none.
        """
        return {"WEFT_CUDA_LIBRARY": str(paths.SIMGPU_CUDA)}

    def wait_gone(self, bound=10.0):
        """Waits until the device process has ended, so that its log is complete. True if it did."""
        # The device removes its socket when it ends. A status request would keep it alive.
        return wait_until(lambda: not os.path.exists(self.settings["SIMGPU_SOCKET"]), bound)

    def status(self):
        """The device's status, with our clock's time of the request, or None."""
        asked = time.monotonic_ns()
        command = [str(paths.SIMGPU_DEVICE), "status"]
        environment = {**clean_environment(), **self.settings}
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False)
        try:
            return {**json.loads(done.stdout), "monotonic": (asked + time.monotonic_ns()) // 2}
        except ValueError:
            return None


# Variables of the caller that locate this machine's driver, toolkit and device.
OF_MACHINE = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TRITON_LIBCUDA_PATH")


class RealDevice:
    """The GPU of this machine, found as the caller would find it."""

    simulated = False
    log = None
    dilation = 1

    def environment(self, libraries=()):
        found = {name: os.environ[name] for name in OF_MACHINE if name in os.environ}
        path = os.pathsep.join([*libraries, *filter(None, [found.get("LD_LIBRARY_PATH")])])
        return {**found, "LD_LIBRARY_PATH": path} if path else found

    def weft_environment(self):
        return {}

    def wait_gone(self, bound=10.0):
        return True


def socket_answers(path):
    """Whether a process listens at a unix socket."""
    import socket

    if not os.path.exists(path):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
            return True
        except OSError as error:
            # EPROTOTYPE: a socket of another type than ours, but a process listens.
            return error.errno == 91
    return False


def wait_until(condition, bound, step=0.02):
    """Waits until `condition()` holds, at most `bound` seconds. Returns whether it did."""
    end = time.monotonic() + bound
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(step)
    return True


def wait_while(condition, happened, bound, longest, step=0.02):
    """Waits until `condition()` holds. Gives up if the value of `happened()` stays the same for
    `bound` seconds, and after `longest` seconds. Returns whether the condition held.
    """
    begun = time.monotonic()
    seen, since = happened(), begun
    while not condition():
        now, new = time.monotonic(), happened()
        if new != seen:
            seen, since = new, now
        if now - since > bound or now - begun > longest:
            return False
        time.sleep(step)
    return True


class Job:
    """A process group that runs a command."""

    def __init__(self, command, *, environment, folder, name, cwd=None, limits=None):
        self.name = name
        self.command = [str(part) for part in command]
        self.stdout_path = Path(folder) / f"{name}.stdout"
        self.stderr_path = Path(folder) / f"{name}.stderr"
        self.started = time.monotonic()
        self.timed_out = False
        with open(self.stdout_path, "wb") as out, open(self.stderr_path, "wb") as err:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                cwd=cwd,
                start_new_session=True,
                preexec_fn=limits,
            )

    @property
    def pid(self):
        return self.process.pid

    def running(self):
        return self.process.poll() is None

    def wait(self, bound):
        """Waits for the job's end, at most `bound` seconds; then kills it. Returns the exit code.
        """
        try:
            self.process.wait(bound)
        except subprocess.TimeoutExpired:
            self.timed_out = True
            self.kill()
        # Kills the rest of its group too, such as workers that outlive a killed parent.
        self._kill_group()
        return self.process.returncode

    def _kill_group(self):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def kill(self):
        self._kill_group()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        # On starved cores this takes long: the kernel first frees all of the job's memory.
        self.process.wait(60)

    def terminate(self, bound=10.0):
        """Asks the job to end, then kills it."""
        if self.running():
            self.process.terminate()
        return self.wait(bound)

    def stdout(self):
        return self.stdout_path.read_bytes()

    def stderr(self):
        return self.stderr_path.read_bytes().decode(errors="replace")

    def explain(self, lines=25):
        """The end of the job's stderr, for a failure's report."""
        tail = self.stderr().splitlines()[-lines:]
        how = "killed at its bound" if self.timed_out else f"exit {self.process.returncode}"
        return "\n".join([f"{self.name}: {how}", *("    " + line for line in tail)])


def size_of(path):
    """Bytes of a file; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def lines_of(path):
    """The complete JSON lines of a file."""
    lines = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


POLICIES = ("weft", "fikit")


def policy_option(parser):
    """Adds the option for the policy by which the brokers share the device. A broker that a job
    starts by itself uses the default.
    """
    parser.add_argument("--policy", choices=POLICIES, help="the policy of the brokers that the cases start; default: weft broker's own")


def constants_for(folder, dilation, program=paths.WEFT):
    """The options of a broker for a device that is slower than real time by this factor: its times
    grow by the factor, and its rates shrink.
    """

    def slower(name, value):
        if isinstance(value, dict):
            return {key: slower(key, part) for key, part in value.items()}
        if name.endswith("_mb_per_s"):
            return max(1, round(value / dilation))
        # An awaited kernel runs for longest_cost at most, however slow the device is.
        is_time = type(value) is int and name != "longest_cost"
        return round(value * dilation) if is_time else value

    if dilation == 1:
        return []
    usual = subprocess.run([program, "config", "constants"], capture_output=True, text=True, check=True)
    file = Path(folder) / "constants.json"
    file.write_text(json.dumps(slower("", json.loads(usual.stdout)), indent=1))
    return ["--constants", str(file)]


class Broker:
    """A broker with its own socket and its own profiles."""

    def __init__(self, folder, device, *, policy=None, extra=(), trace=True, program=paths.WEFT):
        """`program`: the weft to run, if another build is compared."""
        self.folder = Path(folder)
        self.program = program
        self.socket = self.folder / "broker.sock"
        self.profiles = self.folder / "profiles"
        self.profiles.mkdir(exist_ok=True)
        self.device = device
        self.trace = self.folder / "decisions.json"
        self.arguments = [*(["--policy", policy] if policy else []), *(["--trace", str(self.trace)] if trace else []), *extra]
        self.job = None
        self.starts = 0

    def variables(self):
        """The variables with which weft finds this broker."""
        return {
            "WEFT_SOCKET": str(self.socket),
            "WEFT_PROFILE_DIR": str(self.profiles),
            "WEFT_STATE_DIR": str(self.folder / "state"),
            "WEFT_AUTOSTART": "0",
            **self.device.weft_environment(),
        }

    def environment(self):
        return {**clean_environment(), **self.variables()}

    def start(self, bound=20.0):
        self.starts += 1
        self.job = Job(
            [self.program, "broker", *constants_for(self.folder, self.device.dilation, self.program), *self.arguments],
            environment={**self.environment(), "WEFT_LOG": "info"},
            folder=self.folder,
            name=f"broker{self.starts}",
        )
        ready = wait_until(lambda: socket_answers(str(self.socket)) or not self.job.running(), bound)
        if not ready or not self.job.running():
            raise RuntimeError("the broker did not start\n" + self.job.explain())
        return self

    def kill(self):
        """Sends SIGKILL, as the kernel's out-of-memory killer does."""
        if self.job:
            self.job.kill()

    def stop(self):
        if self.job:
            self.job.terminate()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()

    def modes(self, pid):
        """The modes of a client so far, from the broker's trace, which is written within half a
        second.
        """
        mine = [line for line in lines_of(self.trace) if line.get("pid") == pid]
        # A new client has mode `alone` until the broker sets another one.
        told = ["alone"] if any(line.get("event") == "attached" for line in mine) else []
        return told + [line.get("what") for line in mine if line.get("event") == "mode"]

    def status(self, bound=10.0):
        """The output of `weft status --json`, or None if it failed."""
        try:
            done = subprocess.run(
                [str(self.program), "status", "--json"],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=bound,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
        try:
            return json.loads(done.stdout)
        except ValueError:
            return None


def preload(broker_variables, *, priority=5, profile=None, mode=None, library=paths.LIBWEFT):
    """The variables that put weft under a job, as a user would set them. `library`: another
    build's.
    """
    variables = {**broker_variables, "LD_PRELOAD": str(library), "WEFT_PRIORITY": str(priority)}
    if profile:
        variables["WEFT_PROFILE"] = profile
    if mode:
        variables["WEFT_MODE"] = mode
    return variables
