# SPDX-License-Identifier: MIT OR Apache-2.0
"""weft's own command between a shell and a job. Signals, terminals, preloads, pipes, exit codes."""

import contextlib
import fcntl
import os
import re
import resource
import signal
import struct
import subprocess
import termios
from pathlib import Path

from fixtures.scene import BOUND, weft
from guest_stage import PROGRAMS, PYTHON, compiled, counters, plainly, same, script, weft_command
from harness import jobs, paths


def test_a_job_begins_with_its_parent_s_signals(scene):
    """Signals that are ignored and blocked, under `weft run` and `weft profile`: a shell's
    background job, nohup, a server that ignores SIGPIPE."""
    scene.broker.start()
    shown = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]

    def limits_of(ignored, blocked):
        def limits():
            for number in (signal.SIGPIPE, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

        return limits

    def mask(job):
        # The C library ignores its two own signals (32, 33) in the processes that it spawns, with
        # and without weft.
        return [int(line.split()[1], 16) & ~(3 << 31) for line in job.stdout().decode().splitlines()]

    for ignored, blocked in ((set(), set()), ({signal.SIGPIPE}, {signal.SIGUSR1}), ({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT}, set())):
        limits = limits_of(ignored, blocked)
        bare = plainly(scene, shown, f"shown{scene.number}", limits=limits)
        for how in (["run"], ["profile", "--name", "shown"]):
            job = weft_command(scene, *how, "--", *shown, limits=limits)
            # A program that uses no GPU yields no profile.
            code = 0 if how == ["run"] else 73
            assert job.process.returncode == code and mask(job) == mask(bare), f"{how}, {ignored} ignored: {bare.stdout()} became {job.stdout()}"


def test_nohup_holds_under_weft_profile(scene):
    scene.broker.start()
    environment = {**jobs.clean_environment(), **scene.device.environment(), **scene.broker.variables()}
    ready = scene.folder / "ready"
    command = ["nohup", paths.WEFT, "profile", "--name", "kept", "--", "sh", "-c", f"touch {ready}; sleep 1; echo whole"]
    job = jobs.Job(command, environment=environment, folder=scene.folder, name="nohup")
    scene.jobs.append(job)
    assert jobs.wait_until(ready.exists, BOUND), job.explain()
    os.killpg(job.pid, signal.SIGHUP)
    # No profile comes of it.
    scene.finish(job, 73)
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
        """The shell's answer to `echo QUESTION`."""
        self.said = ""
        self.type(f"echo answer={question}\n")
        self.until("an answer", lambda: re.search(r"answer=(-?\w+)\r", self.said))
        return re.search(r"answer=(-?\w+)\r", self.said)[1]


PREFIXES = {"plainly": [], "run": [paths.WEFT, "run", "--"], "profile": [paths.WEFT, "profile", "--name", "terminal", "--"]}


def test_job_control_at_a_terminal(scene):
    """^Z, fg, a changed window and ^C reach a job as they reach it without weft, once each, and the
    shell sees the same end."""
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
                    """Its state (0) or its parent (1); Z if it is gone."""
                    try:
                        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[what]
                    except (FileNotFoundError, ProcessLookupError):
                        return "Z"

                # The process that the shell started: the job, or weft profile.
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


def test_signals_for_weft_are_signals_for_the_job(scene):
    """A supervisor knows the process that it started: signals that it sends there reach the job,
    once, and the end it sees is the job's."""
    scene.broker.start()
    environment = {**jobs.clean_environment(), **scene.device.environment(), **scene.broker.variables(), **PYTHON}

    def nothing_ignored():
        """A user who runs these tests under nohup has hang-ups ignored, and ignored signals stay so
        under weft. And no cores of the QUIT."""
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


def test_a_user_s_own_preload_is_heard(scene):
    """Another preload with driver functions of its own is called, and finds weft behind it,
    whichever way weft came in."""
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


def test_a_program_with_a_sanitizer(scene):
    """ASan must come first: if a user preloads it, as the warning about weft's own preload asks, it
    is first under `weft run`."""
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


def test_pipes_and_exit_codes_of_scripts(scene):
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
