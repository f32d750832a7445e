# SPDX-License-Identifier: MIT OR Apache-2.0
"""What went wrong is one line: a history that cannot be written, a mistyped socket, a closed
stdout, a broker that was killed."""

import json
import os
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest
from fixtures.scene import BOUND, COMPANION, weft, weft_in
from harness import jobs, paths


def environment(scene, **more):
    return {**jobs.clean_environment(), **scene.device.environment(), **scene.broker.variables(), **more}


def short(scene):
    """A short job that prints its outcome."""
    done = weft(scene, "run", "--", COMPANION, "--while", scene.running, "--at-most", 1, more={"WEFT_OUTCOME": "on"})
    assert done.returncode == 0 and " ran " in done.stderr, done
    return done


def history(scene):
    done = weft(scene, "history", "--json")
    return json.loads(done.stdout)["jobs"], done.stderr


def reported(scene, *words):
    """Each page reports the lost history in one line with these words."""
    for line in (short(scene).stderr, weft(scene, "status").stdout, weft(scene, "doctor").stdout, history(scene)[1]):
        told = [one for one in line.splitlines() if "jobs that end now are not recorded" in one]
        assert len(told) == 1 and all(word in told[0] for word in words), line
    assert scene.broker.job.stderr().count("are not recorded") == 1, scene.broker.job.stderr()


@pytest.mark.finding("users5-M5")
def test_a_history_that_cannot_be_written_is_reported(scene):
    # A file in the folder's place, because root may write to a folder that is read-only.
    (scene.folder / "state").write_text("")
    doctor = weft(scene, "doctor")
    assert f"{scene.folder}/state/history.sqlite is not writable" in doctor.stdout, doctor.stdout
    scene.broker.start()
    reported(scene, f"{scene.folder}/state/history.sqlite", "set WEFT_STATE_DIR")
    # The line goes when the file can be written.
    (scene.folder / "state").unlink()
    short(scene)
    rows, line = history(scene)
    assert len(rows) == 1 and line == "", (rows, line)


@pytest.mark.finding("users5-M5")
def test_a_full_disk_loses_no_older_row_and_is_reported(scene):
    state = scene.folder / "state"
    state.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "weft-test", state], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("no rights to mount")
    try:
        scene.broker.start()
        for _ in range(3):
            short(scene)
        before, line = history(scene)
        assert len(before) == 3 and line == "", (before, line)
        scene.broker.stop()
        with (state / "filled").open("wb", buffering=0) as file, pytest.raises(OSError):
            while True:
                file.write(bytes(4096))
        assert "its disk is full" in weft(scene, "doctor").stdout
        scene.broker.start()
        reported(scene, f"{state}/history.sqlite", "free space on its disk")
        assert history(scene)[0] == before
        (state / "filled").unlink()
        short(scene)
        rows, line = history(scene)
        assert rows[1:] == before and line == "", (rows, line)
    finally:
        scene.broker.stop()
        subprocess.run(["umount", state], check=True)


@pytest.mark.finding("users5-L1")
def test_a_mistyped_socket_is_one_line_and_leaves_nothing(scene):
    scene.broker.start()
    before = set(os.listdir(scene.folder))
    other = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    other.bind(f"{scene.folder}/other.sock")
    other.listen()
    inode = os.stat(f"{scene.folder}/other.sock").st_ino
    for name in ("profiles", "", "new/", "x" * 104, "other.sock", "not/there/broker.sock"):
        variables = environment(scene, WEFT_SOCKET=f"{scene.folder}/{name}")
        done = weft_in(variables, "run", "--", "true")
        told = [line for line in done.stderr.splitlines() if "set WEFT_SOCKET to a" in line]
        assert done.returncode == 0 and len(told) == 1 and "runs without weft" in told[0], done
        made = weft_in(variables, "broker", "--background")
        assert made.returncode == 1 and "set WEFT_SOCKET to a" in made.stderr, made
        assert made.stderr.count(str(scene.folder)) == 1, made
    assert os.stat(f"{scene.folder}/other.sock").st_ino == inode
    # The driver's names for the job. The history of the broker that runs may be there already.
    made = {name for name in os.listdir(scene.folder) if not name.startswith("lib-")}
    assert made - before <= {"other.sock", "state"}
    assert before <= made
    # Another path may be meant: the job reports that it is not with the others.
    elsewhere = environment(scene, WEFT_SOCKET=str(scene.folder / "brokr" / "broker.sock"))
    done = weft_in(elsewhere, "run", "--", "true")
    try:
        line = f"weft: WEFT_SOCKET named no running broker: one was started at {scene.folder}/brokr/broker.sock"
        assert done.stderr.splitlines().count(line) == 1, done
        assert "started" not in weft_in(elsewhere, "run", "--", "true").stderr
    finally:
        weft_in(elsewhere, "stop")


@pytest.mark.finding("users5-L2")
def test_a_second_broker_is_not_sent_to_another_socket(scene):
    scene.broker.start()
    for words in (["broker"], ["broker", "--background"], ["broker", "--shared"]):
        done = weft(scene, *words)
        assert done.returncode == 1 and "--replace" in done.stderr and "weft stop" in done.stderr, done
        assert "WEFT_SOCKET" not in done.stderr and "--socket" not in done.stderr, done


@pytest.mark.finding("users5-L3")
def test_a_page_that_does_not_arrive_is_no_success(scene):
    scene.broker.start()
    command = [str(paths.WEFT)]
    for words in (["status"], ["status", "--json"], ["history"], ["history", "--total"], ["config", "constants"], ["completions", "bash"], ["--help"], ["run", "--help"], ["--version"]):
        full = subprocess.run(["sh", "-c", '"$@" >/dev/full', "sh", *command, *words], env=environment(scene), capture_output=True, text=True, timeout=BOUND, check=False)
        closed = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command, *words], env=environment(scene), capture_output=True, text=True, timeout=BOUND, check=False)
        if words == ["history", "--total"]:
            # Without jobs it prints nothing.
            assert (full.returncode, closed.returncode) == (0, 0), (full, closed)
            continue
        for done in (full, closed):
            assert done.returncode == 1 and done.stderr.startswith("weft: cannot print: ") and done.stderr.count("\n") == 1, (words, done)
        reader, writer = os.pipe()
        os.close(reader)
        unread = subprocess.run([*command, *words], env=environment(scene), stdout=writer, stderr=subprocess.PIPE, text=True, timeout=BOUND, check=False)
        os.close(writer)
        assert (unread.returncode, unread.stderr) == (128 + 13, ""), (words, unread)


@pytest.mark.finding("users5-L3")
def test_a_job_finds_closed_what_was_closed(scene):
    scene.broker.start()
    show = "import os; print([n for n in range(3) if os.path.exists(f'/proc/self/fd/{n}')], file=open('/dev/stderr', 'w'))"
    for how in ([], [str(paths.WEFT), "run", "--"], [str(paths.WEFT), "profile", "--name", "q", "--"]):
        command = ["sh", "-c", '"$@" <&- >&-', "sh", *how, "python3", "-I", "-c", show]
        done = subprocess.run(command, env=environment(scene), capture_output=True, text=True, timeout=BOUND, check=False)
        assert "[2]" in done.stderr.splitlines(), done


@pytest.mark.finding("users5-L4")
def test_a_profile_whose_folder_is_not_there_makes_no_folder(scene):
    scene.broker.start()
    done = subprocess.run([str(paths.WEFT), "profile", "--name", "a/b", "--", "true"], env=environment(scene), cwd=scene.folder, capture_output=True, text=True, timeout=BOUND, check=False)
    assert (done.returncode, done.stderr) == (2, "weft: --name a/b is a file, because it has a slash, and there is no folder a\n"), done
    assert not (scene.folder / "a").exists()
    done = subprocess.run([str(paths.WEFT), "profile", "show", "a/b"], env=environment(scene), cwd=scene.folder, capture_output=True, text=True, timeout=BOUND, check=False)
    assert "weft profile --name a/b -- COMMAND" in done.stderr, done


@pytest.mark.finding("users5-L5")
def test_a_job_whose_broker_was_killed_has_a_line(scene):
    scene.broker.start()
    more = {"WEFT_OUTCOME": "on"}
    lost = scene.companion("lost", more=more)
    scene.broker.kill()
    assert jobs.wait_until(lambda: scene.broker.status() is None, BOUND)
    assert jobs.wait_until(lambda: "the broker is lost" in lost.stderr(), BOUND), lost.explain()
    scene.running.unlink()
    scene.finish(lost)
    assert lost.stderr().count("its broker is gone: what weft did for this job is not known") == 1, lost.explain()
    scene.running.touch()
    scene.broker.start()
    again = scene.companion("again", more=more)
    scene.broker.kill()
    scene.broker.start()
    scene.attached(again)
    scene.progresses(again)
    scene.running.unlink()
    scene.finish(again)
    assert again.stderr().count("warning: its figures begin with this broker") == 1, again.explain()
    # A broker that ends by itself hands its sums on.
    scene.running.touch()
    kept = scene.companion("kept", more=more)
    scene.broker.stop()
    scene.broker.start()
    scene.attached(kept)
    scene.progresses(kept)
    scene.running.unlink()
    scene.finish(kept)
    assert "its figures begin" not in kept.stderr(), kept.explain()


@pytest.mark.finding("users5-L6")
def test_a_private_broker_of_another_user_is_called_that(scene):
    if os.geteuid() != 0:
        pytest.skip("needs another user")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        variables = environment(scene, WEFT_SOCKET=f"{folder}/broker.sock")
        assert weft_in(variables, "broker", "--background").returncode == 0
        command = [str(paths.WEFT.resolve()), "status"]
        done = subprocess.run(command, env=variables, user=65534, group=65534, extra_groups=[], capture_output=True, text=True, timeout=BOUND, check=False)
        weft_in(variables, "stop")
    assert done.returncode == 1 and "it is the private broker of user 0" in done.stderr, done


@pytest.mark.finding("users5-L7")
@pytest.mark.parametrize("words", ["trace import x y --host-time -1", "top --interval -1", "top --count -3", "history --user -1", "run --memory -1 -- true", "run --sm-share -5 -- true", "trace import x --device -1", "cluster --commands -1"])
def test_a_negative_number_is_named_by_its_option(scene, words):
    done = weft(scene, *words.split())
    option = next(word for word in words.split() if word.startswith("--"))
    assert done.returncode == 2 and option in done.stderr and "unexpected argument" not in done.stderr, done
