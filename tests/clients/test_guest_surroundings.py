# SPDX-License-Identifier: MIT OR Apache-2.0
"""Odd surroundings. Descriptors, limits, namespaces, stopped processes, an environment that is
wiped."""

import os
import resource
import signal
import sys
import time
from pathlib import Path

from fixtures.scene import BOUND, CLIENT, says
from guest_stage import PYTHON, in_roles, plainly, same, script, weft_command
from harness import jobs, paths


def test_stopped_and_continued(scene):
    scene.broker.start()
    beside = scene.companion("beside", priority=0, pause=3000)
    job = scene.companion("job", priority=6)
    scene.attached(beside, job)
    for victim in (beside, job, scene.broker.job):
        os.kill(victim.pid, signal.SIGSTOP)
        stopped = Path(f"/proc/{victim.pid}/stat")
        assert jobs.wait_until(lambda stopped=stopped: stopped.read_text().rsplit(")", 1)[1].split()[0] == "T", BOUND), victim.explain()
        # If any one is stopped, the others end what they begin.
        if victim is not job:
            scene.finish(scene.client(priority=7))
        os.kill(victim.pid, signal.SIGCONT)
        scene.progresses(job)
    scene.finish_companions(beside, job)


def test_few_descriptors_are_left(scene):
    scene.broker.start()
    # A simulated driver needs some ten; weft needs some more to attach. If weft cannot attach,
    # the job runs, weft prints a line, and none of weft's descriptors stays open.
    for files in (11, 12, 13, 14, 16, 20):
        def limits(files=files):
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

        bare = plainly(scene, [CLIENT, scene.folder / "few.json"], f"plainly{files}", limits=limits)
        job = scene.job([CLIENT, scene.folder / "few.json"], f"few{files}", limits=limits, priority=5)
        job.wait(BOUND)
        same(bare, job)
        assert "failed at" not in job.stderr(), job.explain()
        if "runs without weft" in job.stderr():
            says(job, "weft", "enough files")


def test_closed_standard_descriptors_stay_the_jobs_own(scene):
    """A broker that comes back must not get a number below 3 if a job has closed those: the job's
    own output would go there."""
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


def test_odd_surroundings(scene):
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


def test_a_job_that_leaves_its_surroundings(scene):
    """Other namespaces, another root, a folder that is gone: the job continues, also when the
    broker dies and another one comes, which it may never find."""
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


def test_a_job_that_is_process_one(scene):
    """In a process namespace of its own (as in a container that shares the socket): the broker
    identifies it, and notices its end."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    allowed = plainly(scene, [*unshare, "true"], "allowed").process.returncode == 0
    if not allowed:
        return
    in_roles(scene, [*unshare, *script("children.py")], "background", attached=False)
    assert jobs.wait_until(lambda: not scene.status()["clients"], BOUND), f"the broker never saw it end: {scene.status()['clients']}"


# A file tree with a /tmp of its own, in which the scene's folder is mounted at its path, as in a
# container that was given the folder of the socket. weft's own tree may lie in /tmp, too.
CONTAINED = """
set -e
folder=$1; tree=$2; shift 2
exec 7<"$folder" 8<"$tree"
mount -t tmpfs own-tmp /tmp
mkdir -p "$folder" "$tree"
mount --no-canonicalize --bind /proc/self/fd/7 "$folder"
mount --no-canonicalize --bind /proc/self/fd/8 "$tree"
cd "$folder"
exec "$@"
"""


def test_a_job_in_a_container_that_has_the_sockets_folder(scene):
    """Mounts, network and processes of its own: the job attaches all the same."""
    apart = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]
    contained = [*apart, "sh", "-c", CONTAINED, "contained", scene.folder, paths.ROOT]
    if plainly(scene, [*contained, "true"], "allowed").process.returncode:
        return
    in_roles(scene, [*contained, *script("children.py")], "background", attached=False)
    seen = scene.status()
    ended = [row["last"] for row in seen["ended"]]
    assert any(row["launches"] for row in ended) and not seen["broker"]["refused"], seen["broker"]


def test_limits_of_a_careful_shell(scene):
    """No memory may be locked, no core is written, few signals may wait, stacks are small: as a
    batch system sets it."""
    scene.broker.start()
    command = ["bash", "-c", 'ulimit -c 0 -l 0 -q 0 -i 8 -s 512; "$0" "$@" | cat; echo ${PIPESTATUS[0]}', *map(str, script("threads.py"))]
    bare = plainly(scene, command)
    job = scene.job(command, "careful", more=PYTHON, priority=5)
    job.wait(BOUND)
    same(bare, job)


def test_an_environment_that_is_wiped(scene):
    """`env -i` under weft run: the job runs as without weft, since weft's variables are gone. With
    only the preload it runs under weft by its defaults."""
    scene.broker.start()
    command = script("children.py")
    bare = plainly(scene, command)
    needs = [f"{name}={value}" for name, value in {**scene.device.environment(), **PYTHON, "PATH": os.environ["PATH"]}.items()]
    for name, more in (("wiped", []), ("preloaded", [f"LD_PRELOAD={paths.LIBWEFT}", f"WEFT_SOCKET={scene.broker.socket}", f"WEFT_CUDA_LIBRARY={paths.SIMGPU_CUDA}"])):
        job = weft_command(scene, "run", "--", "env", "-i", *needs, *more, *command)
        assert (job.process.returncode, job.stdout()) == (0, bare.stdout()), f"{name}: {job.explain()}"
