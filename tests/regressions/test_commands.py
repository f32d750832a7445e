# SPDX-License-Identifier: MIT OR Apache-2.0
"""Commands that a person types and their output: `weft run`, `weft profile`, the other commands,
and Ctrl-C."""

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import built
import pytest
from fixtures.scene import BOUND, COMPANION, weft
from harness import jobs, paths


def waits(scene, job):
    """Waits until the job stands in the queue for memory."""

    def there():
        done = weft(scene, "queue", "--json")
        return done.returncode == 0 and any(row["pid"] == job.pid for row in json.loads(done.stdout)["waiting"])

    assert jobs.wait_until(lambda: there() or not job.running(), BOUND, step=0.1) and job.running(), job.explain()


@pytest.mark.finding("users-B1")
def test_ctrl_c_in_the_queue_ends_a_script_by_the_signal(scene):
    scene.broker.start()
    scene.companion("foreground", more={"WEFT_MEMORY": "38GiB"})
    code = "import torch; torch.empty(15 << 30, dtype=torch.uint8, device='cuda')"
    script = scene.job([paths.python("torch"), "-c", code], "script", more={"WEFT_MEMORY": "20GiB"})
    waits(scene, script)
    os.kill(script.pid, signal.SIGINT)
    scene.finish(script, -signal.SIGINT)
    assert "lost sys.stderr" not in script.stderr() and "out of memory" not in script.stderr(), script.explain()
    # A person at a prompt keeps the session: there the interpreter gets the signal.
    code = "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); cuda.cuInit(0); cuda.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)"
    prompt = scene.job([sys.executable, "-i", "-c", code], "prompt", more={"WEFT_MEMORY": "20GiB"})
    waits(scene, prompt)
    os.kill(prompt.pid, signal.SIGINT)
    scene.finish(prompt, 0)
    assert "KeyboardInterrupt" in prompt.stderr(), prompt.explain()
    assert jobs.wait_until(lambda: json.loads(weft(scene, "queue", "--json").stdout)["waiting"] == [], BOUND, step=0.1)


def installed(scene):
    """weft as it is after `cargo install` and a copy of its library: nothing was laid out next to
    it."""
    folder = scene.folder / "bin"
    folder.mkdir()
    for file in (paths.WEFT, paths.LIBWEFT):
        shutil.copy(file.resolve(), folder / file.name)
    folder.chmod(0o755)
    return folder / "weft"


def typed(*command, environment, code=0, **more):
    """Runs a command as a person types it. Returns its output; it must end with this exit code."""
    done = subprocess.run([str(word) for word in command], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BOUND, check=False, **more)
    assert done.returncode == code, f"exit {done.returncode}, not {code}: {done.stdout}{done.stderr}"
    return done


@pytest.mark.finding("correctness-15")
def test_weft_run_starts_the_job_though_its_own_folder_cannot_be_used(scene):
    command = installed(scene)
    (scene.folder / "taken").write_text("somebody was here first")
    (scene.folder / "tmp").mkdir()
    environment = {**scene.broker.environment(), "WEFT_SOCKET": str(scene.folder / "taken" / "broker.sock"), "TMPDIR": str(scene.folder / "tmp")}
    shown = ["sh", "-c", "echo ran; echo ${LD_PRELOAD-none}; ls ${LD_LIBRARY_PATH%%:*}"]
    job = typed(command, "run", "--", *shown, environment=environment)
    # weft is under it, by links in a folder of their own.
    assert job.stdout.splitlines() == ["ran", str(scene.folder / "bin" / "libweft.so"), "libcuda.so", "libcuda.so.1"], job.stdout
    # If not even that can be made, it runs with the environment as it was, and a warning.
    environment["TMPDIR"] = str(scene.folder / "nowhere")
    job = typed(command, "run", "--", *shown[:2], "echo ran; echo ${LD_PRELOAD-none} ${WEFT_GANG-none}; exit 7", environment=environment, code=7)
    assert job.stdout.splitlines() == ["ran", "none none"], job.stdout
    assert "the job runs without weft" in job.stderr, job.stderr
    # A process that outlives the job removes the files that were made for it.
    assert len(os.listdir(scene.folder / "tmp")) == 1
    environment["TMPDIR"] = str(scene.folder / "tmp")
    typed(command, "profile", "--trace", scene.folder / "x.trace", "--", "true", environment=environment, code=73)
    assert len(os.listdir(scene.folder / "tmp")) == 1
    if os.geteuid() == 0:
        squatted(scene, command)


def squatted(scene, command):
    """Another user was first to make this user's folder, or may change the links in it."""
    scene.folder.chmod(0o711)
    # Users that this machine does not have, so that no folder is theirs.
    user = 2_000_000_000 + os.getpid()
    for squatter, mode in ((user + 1, 0o755), (user, 0o777)):
        folder = f"/tmp/weft-{user}"
        os.mkdir(folder, 0o700)
        try:
            os.chmod(folder, mode)
            os.chown(folder, squatter, squatter)
            environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
            shown = ["sh", "-c", "echo ran; dirname $LD_LIBRARY_PATH; rm -r $LD_LIBRARY_PATH; rmdir $(dirname $LD_LIBRARY_PATH)"]
            job = typed(command, "run", "--", *shown, environment=environment, user=user, group=user, extra_groups=[], cwd="/")
            ran, where = job.stdout.splitlines()
            assert ran == "ran" and where.startswith("/tmp/weft-lib-"), job.stdout + job.stderr
        finally:
            shutil.rmtree(folder)


def learnt(scene, name):
    """A profile of the companion's kernels, taken by a plain broker while it runs."""
    job = scene.companion(name, mode="profile", profile=name)
    assert jobs.wait_until(lambda: (scene.row(job) or {"samples": 0})["samples"] > 0, BOUND, step=0.1), job.explain()
    job.kill()
    assert jobs.wait_until((scene.broker.profiles / f"{name}.profile").exists, BOUND), job.explain()


@pytest.mark.finding("users-B3")
def test_a_profile_of_other_code_is_told(scene):
    scene.broker.start()
    learnt(scene, "companion")
    own = scene.companion("own", profile="companion", more={"WEFT_LOG": "info"})
    says_known(own)
    row = scene.row(own)
    assert row["profile_known"] == row["kernels"] > 0 and row["profile_trouble"] is None, row
    own.kill()
    # The checking client launches kernels that the companion does not launch.
    client = scene.client("client", mode="profile", profile="client")
    scene.finish(client)
    assert jobs.wait_until((scene.broker.profiles / "client.profile").exists, BOUND), client.explain()
    other = scene.companion("other", profile="client")
    assert jobs.wait_until(lambda: " knows " in other.stderr(), BOUND), other.explain()
    row = scene.row(other)
    assert row["profile_known"] * 2 < row["kernels"] and " knows " in row["profile_trouble"], row
    page = weft(scene, "status", more={"COLUMNS": "120"}).stdout
    assert "(!) client" in page and "is it of another job?" in page, page
    scene.finish_companions(other)
    assert other.stderr().count(" knows ") == 1, other.explain()
    # A job that ended before it could be judged is judged by its launches so far.
    short = scene.client("short", profile="companion")
    scene.finish(short)

    def last():
        return next((row["last"] for row in scene.status()["ended"] if row["last"]["pid"] == short.pid), None)

    assert jobs.wait_until(last, BOUND, step=0.1), short.explain()
    assert " knows " in (last()["profile_trouble"] or ""), last()


def says_known(job):
    """It reports that its profile knows all of it."""

    def said():
        for line in job.stderr().splitlines():
            if "info: profile" in line and " knows " in line:
                words = line.split(" knows ")[1].split()
                return words[0] == words[3] != "0"
        return False

    assert jobs.wait_until(said, BOUND), job.explain()


@pytest.mark.finding("users-B4")
def test_weft_profile_looks_before_it_runs_and_keeps_what_it_replaces(scene):
    scene.broker.start()
    ran = scene.folder / "ran"
    taken = scene.folder / "taken"
    taken.write_text("no folder")
    for wrong, more in (
        (["--name", "q"], {"WEFT_PROFILE_DIR": str(taken / "profiles")}),
        (["--name", "q", "--out", scene.folder / "nowhere" / "x"], {}),
        (["--trace", scene.folder / "nowhere" / "x.trace"], {}),
        (["--trace", scene.folder], {}),
    ):
        told = weft(scene, "profile", *wrong, "--", "touch", ran, more=more)
        assert told.returncode == 1 and not ran.exists() and len(told.stderr.splitlines()) == 1, f"{wrong}: {told}"
        assert "the job was not started" in told.stderr or "nowhere" in told.stderr, told.stderr
    # No profile was written: that is no success, but the job's own failure counts more.
    for name, command, code in (("q", ["true"], 73), ("q", ["sh", "-c", "exit 5"], 5)):
        told = weft(scene, "profile", "--name", name, "--", *command)
        assert told.returncode == code and "nothing was learnt" in told.stderr, told
    told = weft(scene, "profile", "--trace", scene.folder / "x.trace", "--", "true")
    assert told.returncode == 73 and not (scene.folder / "x.trace").exists(), told
    # The replaced profile is kept, and reported.
    learn = ["profile", "--name", "twice", "--", COMPANION, "--while", scene.running, "--at-most", 1, "--pause", 500]
    learnt = weft(scene, *learn)
    assert learnt.returncode == 0
    # Its bursts are equal: all but the first repeat.
    repeats = re.search(r"weft: (\d+) of (\d+) stretches between two waits", learnt.stderr)
    assert repeats and 1 < int(repeats[2]) == int(repeats[1]) + 1, learnt.stderr
    before = (scene.broker.profiles / "twice.profile").stat()
    again = weft(scene, *learn)
    assert again.returncode == 0 and "the former profile twice is now twice.old" in again.stderr, again.stderr
    assert (scene.broker.profiles / "twice.profile").stat().st_mtime_ns > before.st_mtime_ns
    listed = weft(scene, "profile", "list").stdout
    assert "twice.old" in listed and "twice " in listed, listed
    # Nothing learnt replaces nothing.
    told = weft(scene, "profile", "--name", "twice", "--", "true")
    assert told.returncode == 73 and "twice is unchanged" in told.stderr, told.stderr
    assert weft(scene, "profile", "show", "twice.old").returncode == 0


def told(scene, *words, code=2, more=None):
    """The answer of `weft` to these words: one line, and this exit code."""
    done = weft(scene, *words, more=more)
    assert done.returncode == code and len(done.stderr.splitlines()) == 1 and not done.stdout, f"{words}: {done}"
    return done.stderr.strip()


@pytest.mark.finding("users-B2")
def test_a_mistyped_option_is_a_mistake_and_no_program(scene):
    for words, meant in (
        (["run", "--profle", "resnet", "--", "true"], "'--profile'"),
        (["run", "--prioriy=0", "true"], "'--priority'"),
        (["run", "-x", "true"], "'-x'"),
        (["run", "--help-me", "true"], "'--help'"),
        (["profile", "--nme", "q", "--", "true"], "'--name'"),
    ):
        line = told(scene, *words)
        assert meant in line and f"(weft {words[0]} --help)" in line, line
    assert "'status'" in told(scene, "statsu")
    assert "'lst' is not one of show, list, keep, delete" in told(scene, "profile", "lst")
    # Words behind the command are the command's.
    scene.broker.start()
    for words in (["run", "echo", "-n", "--profle"], ["run", "--", "echo", "-n", "--profle"]):
        done = weft(scene, *words)
        assert (done.returncode, done.stdout) == (0, "--profle"), done
    done = weft(scene, "profile", "--name", "q", "echo", "-n", "--profle")
    assert done.stdout == "--profle", done


@pytest.mark.finding("users-B8")
def test_a_second_broker_in_the_background_is_refused(scene):
    scene.broker.start()
    line = told(scene, "broker", "--background", "--policy", "fikit", code=1)
    assert "already runs at" in line and "weft stop" in line, line
    # A job that only needs a broker has one.
    assert weft(scene, "run", "--", "true").stderr == ""


@pytest.mark.finding("users-B9")
def test_doctor_is_content_with_a_shared_broker_that_a_variable_names(scene):
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    scene.folder.chmod(0o711)
    # A place that only root can give away, as the mount of a container is.
    place = Path(tempfile.mkdtemp(prefix="weft-regression-", dir="/run"))
    place.chmod(0o755)
    environment = {**scene.broker.environment(), **scene.device.environment(), "WEFT_SOCKET": str(place / "weft" / "broker.sock")}
    shared = jobs.Job([paths.WEFT, "broker", "--shared"], environment=environment, folder=scene.folder, name="shared")
    scene.jobs.append(shared)
    try:
        assert jobs.wait_until(lambda: jobs.socket_answers(environment["WEFT_SOCKET"]) or not shared.running(), BOUND), shared.explain()
        command = installed(scene)
        rows = subprocess.run(
            [command, "doctor", "--json"], env={**environment, "HOME": "/nonexistent"}, capture_output=True, text=True, timeout=BOUND, check=False, user=61001, group=61001, extra_groups=[], cwd="/"
        ).stdout
        row = {row["what"]: row for row in json.loads(rows)["rows"]}
        assert row["sockets"]["verdict"] == row["broker"]["verdict"] == "ok", row
        assert "shared broker" in row["sockets"]["found"], row["sockets"]
    finally:
        shared.terminate()
        shutil.rmtree(place)


@pytest.mark.finding("users-B11")
def test_a_job_is_named_by_its_script(scene):
    scene.broker.start()
    # No command line of an interpreter in a deep folder fits the column.
    folder = scene.folder / ("deep" * 12) / "resnet"
    folder.mkdir(parents=True)
    script = folder / "train.py"
    script.write_text(QUEUED)
    names = ["train.py --rank 0", "train.py --rank 1"]
    ranks = [scene.job([sys.executable, "-u", script, "--rank", rank, scene.running]) for rank in (0, 1)]
    scene.attached(*ranks)
    waiter = scene.job([sys.executable, "-u", script, "--rank", 2], more={"WEFT_MEMORY": "39.2GiB"})
    waits(scene, waiter)
    assert {row["name"] for row in scene.status()["clients"]} == {"train.py"}, scene.status()["clients"]
    wide = {"COLUMNS": "250"}
    for page in (weft(scene, "status", more=wide).stdout, weft(scene, "top", "-n", 1, "--interval", 0.1, more=wide).stdout, weft(scene, "queue", more=wide).stdout):
        shown = [line for line in page.splitlines() if "train.py --rank " in line]
        assert len(shown) == 3 and all(any(name in line for line in shown) for name in names), page
    waiter.kill()
    scene.running.unlink()
    for rank in ranks:
        scene.finish(rank)
    ended = weft(scene, "status", more=wide).stdout
    assert all(name in ended for name in names), ended


# A job with a context, for as long as a file is there.
QUEUED = """
import ctypes, os, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
context = ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
while os.path.exists(sys.argv[-1]):
    time.sleep(0.01)
"""


@pytest.mark.finding("users-B12")
def test_what_is_said_wrongly_is_told(scene):
    scene.broker.start()
    job = scene.client("loud", more={"WEFT_LOG": "loud", "WEFT_MODE": "serv", "WEFT_MEMORY": "12", "WEFT_SOCKET": "relative.sock"})
    scene.finish(job)
    for words in (("WEFT_LOG=loud", "not one of"), ("WEFT_MODE=serv", "trace"), ("WEFT_MEMORY", "12GiB"), ("WEFT_SOCKET=relative.sock", "folder")):
        assert any(all(word in line for word in words) for line in job.stderr().splitlines()), f"{words}: {job.explain()}"
    assert "12GiB" in told(scene, "run", "--memory", 12, "--", "true")
    for words in (["run", "--priority", "urgent", "--", "true"], ["run", "-p", "12", "--", "true"], ["set", "--client", "1", "-p", "12"]):
        assert "0 (matters most) to 9" in told(scene, *words)
    for words in (["set", "--client", "x", "-p", "1"], ["broker", "--switch-cost", "x"], ["profile", "keep", "x", "--name", "q"]):
        assert "a whole number" in told(scene, *words)
    line = told(scene, "run", "--", scene.folder, code=126)
    assert line.endswith("Permission denied"), line
    line = told(scene, "trace", "show", scene.folder / "none.weft", code=1)
    assert line.count("No such file") == 1 and "os error" not in line, line
    nowhere = jobs.clean_environment()
    for name in ("HOME", "XDG_DATA_HOME"):
        nowhere.pop(name, None)
    rows = subprocess.run([paths.WEFT, "doctor", "--json"], env=nowhere, capture_output=True, text=True, timeout=BOUND, check=False).stdout
    found = next(row["found"] for row in json.loads(rows)["rows"] if row["what"] == "profiles")
    assert "WEFT_PROFILE_DIR" in found, found
    # A relative socket is the same one for the command, its job and its broker, wherever they are.
    environment = {**scene.broker.environment(), **scene.device.environment(), "WEFT_SOCKET": "here/relative.sock"}
    shown = typed(paths.WEFT, "run", "--", "sh", "-c", "cd /; echo $WEFT_SOCKET", environment=environment, cwd=scene.folder)
    assert shown.stdout.strip() == str(scene.folder / "here" / "relative.sock"), shown
    typed(paths.WEFT, "stop", environment=environment, cwd=scene.folder)


@pytest.mark.finding("users-B12")
def test_a_stopped_job_is_shown_as_stopped_and_figures_as_people_read_them(scene):
    scene.broker.start()
    assert "client 99 is not attached" in told(scene, "set", "--client", 99, "-p", 1, code=1)
    job = scene.companion("job")
    assert ", 1 job, " in weft(scene, "top", "-n", 1, "--interval", 0.1).stdout
    os.kill(job.pid, signal.SIGSTOP)
    try:
        assert jobs.wait_until(lambda: scene.row(job)["stopped"], BOUND), scene.row(job)
        assert "alone, stopped" in weft(scene, "status").stdout
    finally:
        os.kill(job.pid, signal.SIGCONT)
    assert jobs.wait_until(lambda: not scene.row(job)["stopped"], BOUND), scene.row(job)
    large = scene.client("large", more={"WEFT_MEMORY": "400GiB"})
    large.wait(BOUND)
    line = next(line for line in large.stderr().splitlines() if "can never run here" in line)
    assert "it needs 400 GiB (" in line and "device it may use has 40.0 GiB" in line, line


# A terminal would clear the screen, set its title, and turn lines around.
ORDERS = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e"


def is_shown(done, code, *words):
    """A command ended with this exit code, and has shown these words and nothing that is obeyed."""
    shown = done.stdout + done.stderr
    assert done.returncode == code and all(word in shown for word in words), done
    obeyed = {c for c in shown if c in ORDERS and not c.isprintable()}
    assert not obeyed, (obeyed, shown[:2000])


def sealed(file, change):
    """A profile with another body, and the checksum of that (kernel-id/src/hash.rs)."""
    low, keys = 2**64 - 1, (0x9E3779B97F4A7C15, 0xE4386A8885A308D3, 0x13198A2E03707345)

    def folded(one, other):
        product = one * other
        return (product & low) ^ (product >> 64)

    raw = file.read_bytes()
    body = change(raw[32:])
    state = len(body) ^ keys[2]
    for at in range(0, len(body), 8):
        state = folded(state ^ int.from_bytes(body[at : at + 8], "little"), keys[0])
        state = (state << 23 | state >> 41) & low
    file.write_bytes(raw[:16] + struct.pack("<QQ", len(body), folded(state, keys[1]) or keys[0]) + body)


@pytest.mark.finding("attack-A11", "attack-A14")
def test_no_word_of_a_file_is_obeyed_by_a_terminal(scene):
    file = scene.folder / "own.trace"
    shutil.copy(next((paths.ROOT / "profiles" / "recorded").rglob("*.trace")), file)
    assert weft(scene, "trace", "export", file, scene.folder / "own.json").returncode == 0
    trace = json.loads((scene.folder / "own.json").read_text())
    for name in ("name", "note"):
        trace[name] = f"begin{ORDERS}end"
    trace["gpu"]["name"] = f"card{ORDERS}"
    for kernel in trace["kernels"]:
        kernel["id"]["symbol"] = f"kernel{ORDERS}"
    foreign = scene.folder / "foreign.json"
    foreign.write_text(json.dumps(trace))
    assert weft(scene, "trace", "import", foreign, file).returncode == 0
    is_shown(weft(scene, "trace", "show", file), 0, "begin", "card", "kernel")
    told = weft(scene, "trace", "show", "--json", file)
    is_shown(told, 0, "begin", "card")
    assert json.loads(told.stdout)["name"] == trace["name"], told.stdout[:2000]
    foreign.write_text(json.dumps({**trace, "source": f"Other{ORDERS}"}))
    is_shown(weft(scene, "trace", "import", foreign, file), 1, "foreign.json is not a trace")
    # A profile has its kernels' names and its GPU's from its maker.
    scene.broker.start()
    learnt(scene, "own")
    profile = scene.broker.profiles / "own.profile"
    shown = json.loads(weft(scene, "profile", "show", "own", "--json").stdout)
    names = [shown["gpu"]["name"], shown["kernels"][0]["symbol"]]
    # Names keep their length.
    orders = "\x1b[2J\x9b".encode()

    def spoilt(body):
        for name in names:
            said = name.encode()
            assert said in body and len(said) > len(orders), name
            body = body.replace(said, orders + said[len(orders) :])
        return body

    sealed(profile, spoilt)
    for more in ([], ["--json"]):
        is_shown(weft(scene, "profile", "show", "own", *more), 0, names[0][len(orders) :])
    is_shown(weft(scene, "profile", "list"), 0, names[0][len(orders) :])
    settings = scene.folder / "weft.toml"
    settings.write_text('[run]\npriority = "no \\u001b[2J\\u009b\\u202e"\n"key\\u001b[2J" = 1\n["section\\u001b"]\n', encoding="utf-8")
    for command in (["config", "show"], ["config", "show", "--json"], ["run", "--", "true"], ["broker"]):
        is_shown(weft(scene, *command, more={"WEFT_CONFIG": str(settings)}), 2, "weft.toml:2", "no such section")


@pytest.mark.finding("attack-A14")
def test_settings_that_another_group_may_write_are_not_read(scene):
    if os.geteuid() != 0:
        pytest.skip("only root can give files to users")
    command, user, group = installed(scene), 61001, 61007
    scene.folder.chmod(0o755)
    settings = scene.folder / "weft.toml"
    settings.write_text("[run]\npriority = 3\n")
    shown = [command, "config", "show"]
    more = {"environment": {"PATH": os.environ["PATH"], "WEFT_CONFIG": str(settings)}, "user": user, "group": user, "extra_groups": [], "cwd": "/"}
    for gid, mode, code in ((group, 0o640, 0), (user, 0o664, 0), (group, 0o660, 2)):
        os.chown(settings, user, gid)
        settings.chmod(mode)
        told = typed(*shown, code=code, **more)
        assert ("is writable by group 61007 (chmod g-w)" in told.stderr) == (code == 2), told.stderr
    # Root chose who may write the machine's file.
    os.chown(settings, 0, group)
    settings.chmod(0o664)
    typed(*shown, **more)


# The time that weft broker --replace once waited for the old broker, seconds.
PATIENCE = 15


@pytest.mark.finding("attack-A8")
def test_a_broker_is_replaced_however_slow_its_disk_is(scene):
    held = scene.folder / "held"
    slow = built.compiled(scene, "held_sync.c", "-shared", "-fPIC")
    # With NVML the brokers know of strangers' memory.
    plain = {**scene.device.environment(), **scene.broker.environment(), "LD_LIBRARY_PATH": str(paths.SIMGPU_LIB), "WEFT_LOG": "info"}
    environment = {**plain, "LD_PRELOAD": str(slow), "HELD_BY": str(held)}
    old = scene.broker.job = jobs.Job([paths.WEFT, "broker"], environment=environment, folder=scene.folder, name="old")
    assert jobs.wait_until(scene.broker.status, BOUND), old.explain()
    # The broker writes the profile of a sampled job as it ends. A stranger has the memory.
    sampled = scene.companion("sampled", mode="profile", profile="p")
    assert jobs.wait_until(lambda: (scene.row(sampled) or {"samples": 0})["samples"] > 0, BOUND, step=0.1), sampled.explain()
    taken = scene.folder / "stranger.json"
    stranger = scene.job([sys.executable, paths.ROOT / "tests" / "admission" / "holds.py", taken, "--take", "30GiB", "--while", scene.running], "stranger", more={"LD_PRELOAD": ""})
    assert jobs.wait_until(lambda: taken.exists() and '"took"' in taken.read_text(), BOUND), stranger.explain()
    waiter = scene.job([COMPANION, "--while", scene.running, "--ready", scene.folder / "waiter.ready"], "waiter", more={"WEFT_MEMORY": "20GiB"})
    waits(scene, waiter)
    held.touch()
    new = scene.broker.job = jobs.Job([paths.WEFT, "broker", "--replace"], environment=plain, folder=scene.folder, name="new")
    try:
        assert jobs.wait_until(lambda: weft(scene, "status").returncode != 0, BOUND), "the old one answers"
        assert not jobs.wait_until(lambda: not new.running() or "begins" in waiter.stderr() or (scene.folder / "waiter.ready").exists(), PATIENCE + 3), new.explain() + waiter.explain()
        assert "no longer answers" in new.stderr() and old.running(), new.explain()
        held.unlink()
        assert jobs.wait_until(scene.broker.status, BOUND), new.explain()
        waits(scene, waiter)
        scene.attached(sampled)
        assert old.wait(BOUND) == 0, old.explain()
    finally:
        held.unlink(missing_ok=True)
        old.kill()


@pytest.mark.finding("attack-A3")
def test_a_log_that_a_broker_writes_by_itself_is_begun_anew_while_it_runs(scene):
    log, old = (scene.folder / f"broker.sock.{end}" for end in ("log", "log.old"))
    assert weft(scene, "broker", "--background").returncode == 0
    try:
        with log.open("a") as more:
            more.write("flooded\n" * 200_000)
        client = scene.companion("client")
        assert jobs.wait_until(lambda: old.exists() and log.stat().st_size < 1 << 20, BOUND), log.stat()
        assert "flooded" in old.read_text() and "flooded" not in log.read_text()
        client.kill()
        assert jobs.wait_until(lambda: f"(process {client.pid}) vanished" in log.read_text(), BOUND), log.read_text()
        assert {file.stat().st_mode & 0o777 for file in (log, old)} == {0o600}
    finally:
        assert weft(scene, "stop").returncode == 0


@pytest.mark.parametrize("named", ["job", "pid", "client"])
def test_a_priority_is_set_for_all_processes_of_a_job(scene, named):
    scene.broker.start()
    gang = {"WEFT_GANG": "one", "WEFT_PRIORITY": "5"}
    first = scene.companion("first", more={**gang, "WEFT_NAME": "pool.py"})
    worker = scene.companion("worker", more={**gang, "WEFT_NAME": "python"})
    other = scene.companion("other", more={"WEFT_GANG": "two", "WEFT_PRIORITY": "5", "WEFT_NAME": "python"})
    row = scene.row(first)
    word = {"job": row["name"], "pid": row["pid"], "client": row["client"]}[named]
    done = weft(scene, "set", f"--{named}", word, "--priority", "3")
    assert done.returncode == 0, done
    assert [scene.row(job)["priority"] for job in (first, worker, other)] == [3, 3, 5]
    scene.finish_companions(first, worker, other)
