#!/usr/bin/env python3
"""Does weft ever break a job? Odd programs and odd surroundings, each plainly and under weft: the same exit code, the same stdout, no hang.

  tests/clients/guest.py              all cases (under a minute)
  tests/clients/guest.py graphs fork  the cases with one of these words in their name

Each case runs on a simulated GPU and a broker of its own; the programs are in tests/clients/guest. A case fails with a line that says what was seen; every
wait is bounded.
"""

import contextlib
import fcntl
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "scripts"))
from harness import cases, jobs, paths  # noqa: E402
from harness.scene import BOUND, CLIENT, Scene, missing, says, weft  # noqa: E402

PROGRAMS = HERE / "guest"
KERNELS = paths.ROOT / "tests" / "simgpu" / "driver" / "src" / "kernels" / "simgpu.ptx"
# A job that is the holder, a filler (which leaves launches behind at the gate), or a filler that waits there: its priority, that of the job beside it, and that one's pause.
ROLES = {"holder": (0, 7, 300), "filler": (6, 0, 3000), "unqueued": (6, 0, 3000)}

case = cases.Cases("guest", Scene, missing)


def compiled(scene, name, *flags):
    """A C program of the folder, built here."""
    target = scene.folder / Path(name).stem
    command = ["cc", "-O1", "-o", target, PROGRAMS / name, f'-DKERNELS="{KERNELS}"', *flags, "-ldl", "-lpthread"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=BOUND, check=False)
    assert done.returncode == 0, done.stderr
    return target


def script(name, *arguments):
    return [sys.executable, PROGRAMS / name, *arguments]


# For the programs in Python: their helper, and no files in the source tree.
PYTHON = {"PYTHONPATH": str(PROGRAMS), "PYTHONDONTWRITEBYTECODE": "1"}


def plainly(scene, command, name="plainly", more=None, limits=None):
    """The job without weft."""
    environment = {**jobs.clean_environment(), **scene.device.environment(), **PYTHON, **(more or {})}
    job = jobs.Job(command, environment=environment, folder=scene.folder, name=name, limits=limits)
    scene.jobs.append(job)
    job.wait(BOUND)
    assert not job.timed_out, f"it hangs without weft\n{job.explain()}"
    return job


def same(bare, job):
    assert not job.timed_out, f"{job.name} hangs under weft\n{job.explain()}"
    seen, wanted = (job.process.returncode, job.stdout()), (bare.process.returncode, bare.stdout())
    assert seen == wanted, f"{job.name}: {wanted} without weft, {seen} with it\n{job.explain()}"


def counters(scene, job):
    """weft's last word on a job that has ended."""
    def ended():
        return [entry["last"] for entry in scene.status()["ended"] if entry["last"]["pid"] == job.pid]

    assert jobs.wait_until(ended, BOUND, step=0.1), f"the broker never saw {job.name} end"
    return ended()[0]


def queue(role):
    return {"WEFT_QUEUE": "off" if role == "unqueued" else "on"}


def in_roles(scene, command, *roles, code=0, attached=True):
    """Runs it plainly, then in each role beside a job that goes on all the while."""
    bare = plainly(scene, command)
    assert bare.process.returncode == code, f"without weft\n{bare.explain()}"
    scene.broker.start()
    for role in roles or ROLES:
        own, other, pause = ROLES[role]
        scene.running.touch()
        beside = scene.companion(f"beside-{role}", priority=other, pause=pause)
        job = scene.job(command, role, more={**PYTHON, **queue(role)}, priority=own)
        job.wait(BOUND)
        same(bare, job)
        if attached:
            last = counters(scene, job)
            assert last["troubles"] == last["dropped_messages"] == 0, last
        assert scene.broker.job.running(), scene.broker.job.explain()
        scene.finish_companions(beside)


# --- programs --------------------------------------------------------------------------------------------------------------------


@case
def many_threads_with_small_stacks(scene):
    in_roles(scene, script("threads.py"))


@case
def many_contexts_and_a_driver_opened_again(scene):
    in_roles(scene, script("contexts.py"))


@case
def events_with_times_across_streams_of_priorities(scene):
    in_roles(scene, script("events.py"))


@case
def graphs_that_change(scene):
    in_roles(scene, script("graphs.py"))


@case
def graphs_that_choose_on_the_device(scene):
    in_roles(scene, script("conditionals.py"))


@case
def all_kinds_of_memory(scene):
    in_roles(scene, script("memory.py"))


@case
def memory_that_two_processes_share(scene):
    in_roles(scene, script("shares.py"))
    # The driver refuses to share managed memory: the job hears so, weft says why, and both go on.
    job = scene.job(script("shares.py"), "managed", more={**PYTHON, "WEFT_BACKING": "managed"}, priority=5)
    scene.finish(job)
    assert job.stdout() == b"handle 1\n49\n", job.explain()
    says(job, "weft", "managed", "cannot be shared")


def driver_without(scene, name):
    """A copy of the driver in which nothing finds this name, as in one that is too old for it."""
    folder = scene.folder / "older"
    folder.mkdir()
    driver, name = paths.SIMGPU_CUDA.read_bytes(), name.encode()
    assert name in driver, name
    copy = folder / "libcuda.so.1"
    # As long as the name was, so that all else stays where it is.
    copy.write_bytes(driver.replace(name, b"x" * len(name)))
    # The device's program is looked for beside the driver.
    return {"LD_LIBRARY_PATH": str(folder), "WEFT_CUDA_LIBRARY": str(copy), "SIMGPU_DEVICE_BIN": str(paths.SIMGPU_DEVICE)}


@case
def managed_memory_under_a_driver_without_the_newer_prefetch(scene):
    """Drivers of CUDA 12.0 and 12.1 prefetch to a device by its number alone; later ones have that beside the newer call."""
    older = driver_without(scene, "cuMemPrefetchAsync_v2")
    # Two contexts of 400 MiB leave room for one of the jobs, not for both: weft moves memory at their turns.
    scene.device.settings["SIMGPU_MEMORY"] = str(1500 << 20)
    scene.running.touch()
    scene.broker.start()
    more = {**PYTHON, **older, "WEFT_BACKING": "managed", "SIMGPU_DEBUG": "2"}
    both = [scene.job(script("moves.py", scene.running), f"managed{n}", more=more, priority=5) for n in range(2)]

    def moved(job):
        row = scene.row(job) or {"prefetched": 0, "evicted": 0}
        return row["prefetched"] > 0 and row["evicted"] > 0

    assert jobs.wait_until(lambda: any(map(moved, both)), BOUND, step=0.1), [scene.row(job) for job in both]
    scene.running.unlink()
    for job in both:
        scene.finish(job)
        assert job.stdout() == b"7 19\n", job.explain()
        last = counters(scene, job)
        assert last["errands_refused"] == last["troubles"] == 0, last
        assert not any("cuMemPrefetchAsync_" in line for line in job.stderr().splitlines()), job.explain()
    says(both[0], "cuMemPrefetchAsync")


@case
def a_job_that_shuts_itself_in(scene):
    """Few system calls are left to all its threads, and weft's own fail."""
    in_roles(scene, [compiled(scene, "sandboxed.c"), "errno"], attached=False)


@case
def a_job_that_dies_of_other_calls(scene):
    """Few system calls are left to all its threads; weft's are those that README names."""
    in_roles(scene, [compiled(scene, "sandboxed.c"), "kill"])


@case
def signals_while_launches_wait(scene):
    in_roles(scene, script("signals.py"))


@case
def forks_while_threads_launch(scene):
    in_roles(scene, script("forks.py"), "filler", "unqueued")


@case
def a_daemon_that_closes_everything(scene):
    in_roles(scene, script("daemon.py"), "filler", attached=False)


@case
def a_child_is_given_no_descriptor(scene):
    in_roles(scene, script("children.py"), "filler")


@case
def a_launch_leaves_the_thread_as_it_was(scene):
    in_roles(scene, [compiled(scene, "steady_state.c", "-lm")])


@case
def host_functions_that_block(scene):
    in_roles(scene, [compiled(scene, "host_functions.c")])


@case
def a_host_that_only_looks(scene):
    in_roles(scene, [compiled(scene, "looks.c")])


@case
def launches_that_must_fail_now(scene):
    in_roles(scene, [compiled(scene, "changes.c")])


@case
def ends_of_all_kinds_while_threads_launch(scene):
    scene.broker.start()
    beside = scene.companion("beside", priority=0, pause=3000)
    for how, code in {"exit": 0, "_exit": 3, "abort": -6, "exec": 4, "signal": 5, "interrupt": 6}.items():
        bare = plainly(scene, script("ends.py", how), f"plainly-{how}")
        assert bare.process.returncode == code, bare.explain()
        for role in ("filler", "unqueued"):
            job = scene.job(script("ends.py", how), f"{how}-{role}", more={**PYTHON, **queue(role)}, priority=6)
            job.wait(BOUND)
            same(bare, job)
    scene.finish_companions(beside)


# --- surroundings ----------------------------------------------------------------------------------------------------------------


@case
def stopped_and_continued(scene):
    scene.broker.start()
    beside = scene.companion("beside", priority=0, pause=3000)
    job = scene.companion("job", priority=6)
    scene.attached(beside, job)
    for victim in (beside, job, scene.broker.job):
        os.kill(victim.pid, signal.SIGSTOP)
        time.sleep(0.5)
        # Whoever is stopped, the others end what they begin.
        if victim is not job:
            scene.finish(scene.client(priority=7))
        os.kill(victim.pid, signal.SIGCONT)
        scene.progresses(job)
    scene.finish_companions(beside, job)


@case
def few_descriptors_are_left(scene):
    scene.broker.start()
    # A simulated driver needs some ten; weft some more to attach. Where it cannot, the job runs, weft says so in a line, and nothing of weft's stays open.
    for files in (11, 12, 13, 14, 16, 20):
        def limits(files=files):
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

        bare = plainly(scene, [CLIENT, scene.folder / "few.json"], f"plainly{files}", limits=limits)
        job = scene.job([CLIENT, scene.folder / "few.json"], f"few{files}", limits=limits, priority=5)
        job.wait(BOUND)
        same(bare, job)
        assert "failed at" not in job.stderr(), job.explain()
        if "as without weft" in job.stderr():
            says(job, "weft", "too few files")


@case
def closed_standard_descriptors_stay_the_jobs_own(scene):
    """A broker that comes back must not get a number below 3 where a job has closed those: what it prints would go there."""
    program = scene.folder / "closes.py"
    program.write_text(
        "import os, sys, time, plain\n"
        "gpu, keep = plain.Gpu(), os.dup(1)\n"
        "gpu.work(20)\n"
        "os.closerange(0, 3)\n"
        "while not os.path.exists(sys.argv[1]): gpu.work(20); time.sleep(0.02)\n"
        "taken = [n for n in range(3) if os.path.lexists(f'/proc/self/fd/{n}')]\n"
        "os.write(keep, f'{taken} {gpu.work(20)}\\n'.encode())\n"
        "os._exit(0)\n"
    )
    scene.broker.start()
    job = scene.job([sys.executable, program, scene.folder / "look"], "closes", more=PYTHON, priority=5)
    scene.attached(job)
    scene.broker.kill()
    scene.broker.start()
    scene.attached(job)
    (scene.folder / "look").touch()
    scene.finish(job)
    assert job.stdout() == b"[] 19\n", job.stdout()


@case
def odd_surroundings(scene):
    scene.broker.start()
    command = script("children.py")
    bare = plainly(scene, command)
    nothing = {name: "" for name in ("WEFT_PRIORITY", "WEFT_PROFILE", "WEFT_MODE", "WEFT_MEMORY", "WEFT_DURATION", "WEFT_WAIT", "WEFT_USER", "WEFT_BACKING")}
    nonsense = {"WEFT_MODE": "banana", "WEFT_MEMORY": "much", "WEFT_DURATION": "eternal", "WEFT_WAIT": "-5", "WEFT_LOG": "loud", "WEFT_BACKING": "paper"}
    surroundings = {
        "nowhere": {"HOME": "/proc", "XDG_RUNTIME_DIR": "/proc/nothing", "XDG_DATA_HOME": "/proc/nothing", "TMPDIR": "/proc"},
        "nothing": nothing,
        "nonsense": nonsense,
        "folder": {"WEFT_SOCKET": str(scene.folder)},
        "file": {"WEFT_SOCKET": "/etc/passwd"},
        "long": {"WEFT_SOCKET": "/tmp/" + "x" * 200},
        "relative": {"WEFT_SOCKET": "broker.sock"},
    }
    for name, more in surroundings.items():
        job = scene.job(command, name, more={**PYTHON, **more}, priority=5)
        job.wait(BOUND)
        same(bare, job)


@case
def a_job_that_leaves_its_surroundings(scene):
    """Other namespaces, another root, a folder that is gone: the job goes on, and goes on when the broker dies and another one comes, which it may never find."""
    go = scene.folder / "go"
    for how in ("undumpable", "unshared", "children elsewhere", "chroot", "nowhere"):
        done = []
        for role in ("plainly", "weft"):
            own = scene.folder / f"{how.split()[0]}-{role}"
            own.mkdir()
            command = script("surroundings.py", how, own, go)
            if role == "plainly":
                go.touch()
                done.append(plainly(scene, command, f"{how}-{role}"))
                go.unlink()
                assert done[0].process.returncode == 0, done[0].explain()
                if b"not permitted" in done[0].stdout():
                    break
                continue
            scene.broker.start()
            job = scene.job(command, f"{how}-{role}", more=PYTHON, priority=5)
            scene.attached(job)
            assert jobs.wait_until(lambda job=job: len(job.stdout().splitlines()) >= 2 or not job.running(), BOUND), job.explain()
            scene.broker.kill()
            scene.broker.start()
            time.sleep(1.2)
            go.touch()
            job.wait(BOUND)
            same(done[0], job)
            go.unlink()
            scene.broker.stop()


@case
def a_job_that_is_process_one(scene):
    """In a process namespace of its own (as in a container that shares the socket): whom the broker takes for it, and that its end is seen."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    allowed = plainly(scene, [*unshare, "true"], "allowed").process.returncode == 0
    if not allowed:
        return
    in_roles(scene, [*unshare, *script("children.py")], "filler", attached=False)
    assert jobs.wait_until(lambda: not scene.status()["clients"], BOUND), f"the broker never saw it end: {scene.status()['clients']}"


@case
def limits_of_a_careful_shell(scene):
    """No memory may be locked, no core is written, few signals may wait, stacks are small: as a batch system sets it."""
    scene.broker.start()
    command = ["bash", "-c", 'ulimit -c 0 -l 0 -q 0 -i 8 -s 512; "$0" "$@" | cat; echo ${PIPESTATUS[0]}', *map(str, script("threads.py"))]
    bare = plainly(scene, command)
    job = scene.job(command, "careful", more=PYTHON, priority=5)
    job.wait(BOUND)
    same(bare, job)


@case
def an_environment_that_is_wiped(scene):
    """`env -i` under weft run: the job runs as without weft, since nothing says otherwise to it; and with the preload alone it runs under weft by its defaults."""
    scene.broker.start()
    command = script("children.py")
    bare = plainly(scene, command)
    needs = [f"{name}={value}" for name, value in {**scene.device.environment(), **PYTHON, "PATH": os.environ["PATH"]}.items()]
    for name, more in (("wiped", []), ("preloaded", [f"LD_PRELOAD={paths.LIBWEFT}", f"WEFT_SOCKET={scene.broker.socket}", f"WEFT_CUDA_LIBRARY={paths.SIMGPU_CUDA}"])):
        job = weft_command(scene, "run", "--", "env", "-i", *needs, *more, *command)
        assert (job.process.returncode, job.stdout()) == (0, bare.stdout()), f"{name}: {job.explain()}"


# --- the command -----------------------------------------------------------------------------------------------------------------


def weft_command(scene, *arguments, limits=None, more=None):
    """`weft ...` in surroundings of its own."""
    environment = {**jobs.clean_environment(), **scene.device.environment(), **scene.broker.variables(), **(more or {})}
    job = jobs.Job([paths.WEFT, *arguments], environment=environment, folder=scene.folder, name=f"weft{scene.number}", limits=limits)
    scene.number += 1
    scene.jobs.append(job)
    job.wait(BOUND)
    return job


@case
def a_job_begins_with_its_parent_s_signals(scene):
    """Which signals are ignored and blocked, under `weft run` and `weft profile`: a shell's background job, nohup, a server that ignores SIGPIPE."""
    scene.broker.start()
    shown = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]

    def limits_of(ignored, blocked):
        def limits():
            for number in (signal.SIGPIPE, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

        return limits

    def mask(job):
        # The C library ignores its two own signals (32, 33) in what it spawns, with and without weft.
        return [int(line.split()[1], 16) & ~(3 << 31) for line in job.stdout().decode().splitlines()]

    for ignored, blocked in ((set(), set()), ({signal.SIGPIPE}, {signal.SIGUSR1}), ({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT}, set())):
        limits = limits_of(ignored, blocked)
        bare = plainly(scene, shown, f"shown{scene.number}", limits=limits)
        for how in (["run"], ["profile", "--name", "shown"]):
            job = weft_command(scene, *how, "--", *shown, limits=limits)
            assert job.process.returncode == 0 and mask(job) == mask(bare), f"{how}, {ignored} ignored: {bare.stdout()} became {job.stdout()}"


@case
def nohup_holds_under_weft_profile(scene):
    scene.broker.start()
    environment = {**jobs.clean_environment(), **scene.device.environment(), **scene.broker.variables()}
    ready = scene.folder / "ready"
    command = ["nohup", paths.WEFT, "profile", "--name", "kept", "--", "sh", "-c", f"touch {ready}; sleep 1; echo whole"]
    job = jobs.Job(command, environment=environment, folder=scene.folder, name="nohup")
    scene.jobs.append(job)
    assert jobs.wait_until(ready.exists, BOUND), job.explain()
    os.killpg(job.pid, signal.SIGHUP)
    scene.finish(job)
    assert job.stdout() == b"whole\n", job.explain()


class Terminal:
    """An interactive shell at a pseudo terminal."""

    def __init__(self, scene, name):
        self.master, slave = os.openpty()
        environment = {**jobs.clean_environment(), **scene.device.environment(), **scene.broker.variables(), **PYTHON, "TERM": "dumb", "PS1": "$ ", "HISTFILE": ""}

        def at_terminal():
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        command = ["bash", "--norc", "--noprofile", "-i"]
        self.shell = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment, cwd=scene.folder, start_new_session=True, preexec_fn=at_terminal)
        os.close(slave)
        os.set_blocking(self.master, False)
        self.said, self.name, self.notes = "", name, scene.folder / f"{name}.notes"

    def close(self):
        with contextlib.suppress(ProcessLookupError, IndexError, ValueError, FileNotFoundError):
            os.kill(int(self.noted("ready")[0].split()[1]), signal.SIGKILL)
        self.shell.kill()
        self.shell.wait(10)
        os.close(self.master)

    def type(self, text):
        os.write(self.master, text.encode())

    def read(self):
        with contextlib.suppress(BlockingIOError, OSError):
            while data := os.read(self.master, 65536):
                self.said += data.decode(errors="replace")
        return self.said

    def noted(self, word):
        return [line for line in self.notes.read_text().splitlines() if line.startswith(word)] if self.notes.exists() else []

    def until(self, what, condition):
        assert jobs.wait_until(lambda: self.read() is not None and condition(), BOUND), f"{self.name}: {what} never; it noted {self.noted('')}, the terminal shows\n{self.said}"

    def answer(self, question):
        """What the shell says to `echo QUESTION`."""
        self.said = ""
        self.type(f"echo answer={question}\n")
        self.until("an answer", lambda: re.search(r"answer=(-?\w+)\r", self.said))
        return re.search(r"answer=(-?\w+)\r", self.said)[1]


PREFIXES = {"plainly": [], "run": [paths.WEFT, "run", "--"], "profile": [paths.WEFT, "profile", "--name", "terminal", "--"]}


@case
def job_control_at_a_terminal(scene):
    """^Z, fg, a changed window and ^C reach a job as they reach it without weft, once each, and the shell sees the same end."""
    scene.broker.start()
    for end, code in (("dies", "130"), ("handles", "7")):
        for how, prefix in PREFIXES.items():
            terminal = Terminal(scene, f"{how}-{end}")
            try:
                command = " ".join(map(str, [*prefix, *script("terminal.py"), terminal.notes, end]))
                terminal.type(f"{command}\n")
                terminal.until("it begins", lambda: terminal.noted("ready"))
                pid = int(terminal.noted("ready")[0].split()[1])

                def of(what, pid=pid):
                    """Its state (0) or its parent (1); of one that is gone, Z."""
                    try:
                        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[what]
                    except (FileNotFoundError, ProcessLookupError):
                        return "Z"

                # What the shell started: the job, or weft profile.
                started = int(of(1)) if how == "profile" else pid
                for turn in range(1, 3):
                    if turn == 1:
                        terminal.type("\x1a")
                    else:
                        os.kill(started, signal.SIGTSTP)
                    terminal.until("it stops", lambda: of(0) == "T")
                    terminal.until("the shell is back", lambda: "Stopped" in terminal.said)
                    assert terminal.answer("$(jobs -ps | wc -l)") == "1", terminal.said
                    terminal.type("fg\n")
                    terminal.until("it goes on", lambda: len(terminal.noted("continued")) >= turn and of(0) != "T")
                fcntl.ioctl(terminal.master, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 111, 0, 0))
                terminal.until("it is told the size", lambda: terminal.noted("size 111 50"))
                terminal.type("\x03")
                terminal.until("it ends", lambda: of(0) == "Z")
                assert terminal.answer("$?") == code, f"{how} {end}: {terminal.said}"
                assert terminal.noted("ends") == (["ends 1"] if end == "handles" else []), terminal.noted("")
            finally:
                terminal.close()


@case
def signals_for_weft_are_signals_for_the_job(scene):
    """A supervisor knows the process that it started: what it sends there reaches the job, once, and the end it sees is the job's."""
    scene.broker.start()
    environment = {**jobs.clean_environment(), **scene.device.environment(), **scene.broker.variables(), **PYTHON}

    def nothing_ignored():
        """Whoever runs these tests under nohup has hang-ups ignored, and what is ignored stays so under weft. And no cores of the QUIT."""
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        for end, code in (("dies", -number), ("handles", 7)):
            for how in ("run", "profile"):
                name = f"{how}-{end}-{number.name}"
                notes = scene.folder / f"{name}.notes"
                job = jobs.Job([*PREFIXES[how], *script("terminal.py", notes, end)], environment=environment, folder=scene.folder, name=name, limits=nothing_ignored)
                scene.jobs.append(job)
                assert jobs.wait_until(lambda: notes.exists() and "ready" in notes.read_text(), BOUND), job.explain()
                os.kill(job.pid, number)
                scene.finish(job, code)
                if end == "handles":
                    assert notes.read_text().splitlines()[1:] == [number.name, "ends 1"], f"{name}: {notes.read_text()}"


@case
def a_user_s_own_preload_is_heard(scene):
    """Another preload with driver functions of its own is called, and finds weft behind it, whichever way weft came in."""
    scene.broker.start()
    library = compiled(scene, "before.c", "-shared", "-fPIC")
    program = compiled(scene, "linked.c", f"-L{paths.SIMGPU_LIB}", "-l:libcuda.so.1")
    preload = {"LD_PRELOAD": str(library)}
    bare = plainly(scene, [program], more=preload)
    assert bare.stdout().endswith(b"counted 1\n"), bare.explain()
    same(bare, weft_command(scene, "run", "--", program, more=preload))
    behind = {"LD_PRELOAD": f"{library}:{paths.LIBWEFT}"}
    job = scene.job([program], "behind", more=behind, priority=5)
    job.wait(BOUND)
    same(bare, job)
    assert counters(scene, job)["troubles"] == 0


@case
def a_program_with_a_sanitizer(scene):
    """ASan wants to come first: a user who preloads it, as weft's own preload asks of him, gets it first under `weft run`."""
    program = scene.folder / "sanitized"
    command = ["cc", "-fsanitize=address", "-o", program, PROGRAMS / "linked.c", f"-L{paths.SIMGPU_LIB}", "-l:libcuda.so.1"]
    built = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=BOUND, check=False)
    library = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, timeout=BOUND, check=False).stdout.strip()
    if built.returncode or not os.path.isabs(library):
        return
    scene.broker.start()
    options = {"ASAN_OPTIONS": "detect_leaks=0", "LD_PRELOAD": os.path.realpath(library)}
    bare = plainly(scene, [program], more=options)
    assert bare.process.returncode == 0, bare.explain()
    same(bare, weft_command(scene, "run", "--", program, more=options))


@case
def pipes_and_exit_codes_of_scripts(scene):
    scene.broker.start()
    weft_run = f"{paths.WEFT} run --"
    lines = [
        f"printf 'a\\nb\\n' | {weft_run} sh -c 'tr a-z A-Z; exit 3'; echo ${{PIPESTATUS[@]}}",
        f"{weft_run} yes | head -1; echo ${{PIPESTATUS[@]}}",
        f"{weft_run} printf '%s|' -x -- --priority 3",
        f"{weft_run} sh -c 'kill -TERM $$'; echo $?",
        f"out=$({weft_run} sh -c 'echo out; echo err >&2; sleep 0.1 &' 2>/dev/null); echo $out",
        f"{weft_run} sh -c 'exec 0<&-; exec 5>&1 1>&-; echo five >&5'",
        f"echo in | {weft_run} cat - <(echo file)",
    ]
    done = {}
    for how, prefix in (("plainly", ""), ("weft", None)):
        text = "\n".join(lines) if prefix is None else "\n".join(line.replace(f"{weft_run} ", prefix) for line in lines)
        environment = {**jobs.clean_environment(), **scene.device.environment(), **scene.broker.variables()}
        done[how] = subprocess.run(["bash", "-c", text], env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=BOUND, check=False)
    assert done["plainly"].stdout == done["weft"].stdout, f"{done['plainly'].stdout} became {done['weft'].stdout}; {done['weft'].stderr}"
    assert weft(scene, "run", "--", "sh", "-c", "cd /; exit 9").returncode == 9


def main():
    return case.run(cases.parser(__doc__).parse_args())


if __name__ == "__main__":
    sys.exit(main())
