# SPDX-License-Identifier: MIT OR Apache-2.0
"""Admission, live: jobs that do not fit together on a simulated GPU, under weft run and without it.

  pytest tests/admission                 all cases; those of several users (test_users.py) need root
  pytest tests/admission --torch 3       three of the ten jobs are PyTorch's, the others take memory
                                         by the driver API
  pytest tests/admission --torch 0       all ten take memory by the driver API
  pytest tests/admission --queued 200    200 jobs in the queue at once (default 50)

Each case has a device of 8 GiB and a broker of its own.
"""

import subprocess
import sys

import pytest
from harness import jobs, paths
from stage import BOUND, HOLDS, Scene

pytestmark = pytest.mark.scene(make=Scene)

# The jobs: name, user, duration, priority, memory that it declares, memory that it takes in two
# parts. Only the small one fits next to another one. The rest run one by one, and the first holds
# the device until all have come.
LARGE = ("5GiB", "3GiB", "1.5GiB")
TEN = [
    ("first", "ann", "medium", 5, *LARGE),
    ("small-cid", "cid", "short", 5, "1.5GiB", "1GiB", "256MiB"),
    ("long-ann", "ann", "long", 5, *LARGE),
    ("medium-ann", "ann", "medium", 5, *LARGE),
    ("short-ann", "ann", "short", 5, *LARGE),
    ("long-dan", "dan", "long", 5, *LARGE),
    ("short-bea", "bea", "short", 5, *LARGE),
    ("short-cid", "cid", "short", 5, *LARGE),
    ("short-dan", "dan", "short", 5, *LARGE),
    ("important", "ann", "long", 0, *LARGE),
]
# More important ones first; then shorter ones before longer ones; then the user who had least of
# late (ann had the first, cid has the small one); then the one who came first.
ORDER = ["first", "small-cid", "important", "short-bea", "short-dan", "short-cid", "short-ann", "medium-ann", "long-dan", "long-ann"]
# If not all are PyTorch's, these are, in this order: one that holds, one that waits, and the
# small one.
WITH_TORCH = ["first", "short-bea", "small-cid"]


def is_torch(scene, name):
    return len(TEN) <= scene.options.torch or name in WITH_TORCH[: scene.options.torch]


def test_ten_jobs_of_four_users_all_run(scene):
    running = {}
    for name, user, duration, priority, says, *takes in TEN:
        weft = ["--memory", says, "--duration", duration, "--priority", str(priority)]
        running[name] = scene.job(name, *takes, weft=weft, user=user, torch=is_torch(scene, name), stay=name in ("first", "small-cid"))
        scene.go(name)
        if name in ("first", "small-cid"):
            scene.until(f"{name} has its memory", lambda n=name: scene.has(n, "took", 2))
        else:
            scene.waits(running[name])
    table = subprocess.run([str(paths.WEFT), "queue"], env=scene.broker.environment(), capture_output=True, timeout=20, check=True).stdout.decode()
    print(table)
    assert "needs 5." in running["short-bea"].stderr() + table, running["short-bea"].stderr()
    scene.release("first")
    for name in [*(name for name in ORDER if name != "small-cid"), "small-cid"]:
        # The small one stays next to all others.
        scene.ends(running[name])
        assert "none" not in scene.events(name), f"{name} got no memory: {scene.events(name)}"
        assert running[name].stdout() == b"", f"{name}: something wrote to its stdout"
    order = sorted(ORDER, key=lambda name: scene.at(name, "begun"))
    assert order == ORDER, f"they began as {order}, the rule says {ORDER}"
    seen = scene.queue()
    assert (seen["admitted"], seen["waited"], seen["denied"]) == (10, 8, 0), seen


def test_the_same_ten_without_weft_get_no_memory(scene, record_property):
    running = [scene.job(name, *takes, torch=is_torch(scene, name), bare=True) for name, _, _, _, _, *takes in TEN]
    for name, *_ in TEN:
        scene.go(name)
    scene.until("each has its memory or none", lambda: all(scene.has(n, "none") or scene.has(n, "took", 2) for n, *_ in TEN))
    for name, *_ in TEN:
        scene.release(name)
    for job in running:
        job.wait(BOUND)
    without = [name for name, *_ in TEN if scene.has(name, "none")]
    # 8 GiB hold one large one and the small one; two large ones that begin at the same time may
    # both lack their second part.
    assert len(without) >= 8, f"{len(without)} of 10 got no memory"
    record_property("told", f"without weft {len(without)} of 10 got no memory")


def test_a_run_teaches_what_the_job_takes(scene):
    # It declares nothing: let in at once, and it grows.
    first = scene.job("first", "1GiB", "2GiB", weft=[], user="ann", stay=False)
    scene.go("first")
    scene.finish(first)
    # The broker notices its end a moment later.
    scene.until("the broker has learnt what the first took", lambda: scene.queue()["learnt"])
    seen = scene.queue()["learnt"]
    assert [(row["pid"], row["peak"], row["duration"], row["user"]) for row in seen] == [(first.pid, 3 << 30, "short", "ann")], seen
    done = scene.weft("profile", "keep", "--name", "taught")
    assert "3.0" in done.stderr and "--profile taught" in done.stderr, done
    # Its profile now declares the memory: it begins when there are 3 GiB, and reads that as the
    # device's size.
    holder = scene.holder("holder", "6GiB")
    again = scene.job("again", "1GiB", "2GiB", weft=["--profile", "taught"], stay=False)
    scene.go("again")
    scene.waits(again)
    row = scene.queue()["waiting"][0]
    assert row["duration"] == "short" and row["needs"] >= 3 << 30, row
    scene.ends(holder)
    scene.finish(again)
    assert "none" not in scene.events("again")
    # A job that had declared its memory teaches nothing.
    assert len(scene.queue()["learnt"]) == 1, scene.queue()["learnt"]
    unknown = scene.weft("profile", "keep", "1", "--name", "taught", code=1)
    assert "no memory use was recorded for a job of process 1" in unknown.stderr, unknown


def test_a_heavier_user_goes_more_often(scene):
    scene.weft("set", "--user", "ann", "--weight", "30")
    holder = scene.job("holder", "6GiB", weft=["--memory", "6GiB"], user="eve")
    scene.until("the holder has its memory", lambda: scene.has("holder", "took"))
    # All alike. None had a share of late, so the first to come goes first; then the one that had
    # least for its weight.
    names = ["ann1", "bob1", "ann2", "bob2", "ann3", "bob3"]
    running = {}
    for name in names:
        weft = ["--memory", "6GiB", "--duration", "short"]
        running[name] = scene.job(name, "5GiB", weft=weft, user=name[:3], stay=False, seconds=0.5)
        scene.waits(running[name])
    assert scene.queue()["weights"] == [{"user": "ann", "weight": 30}], scene.queue()
    # The weight outlives the broker.
    scene.broker.kill()
    scene.broker.start()
    assert scene.queue()["weights"] == [{"user": "ann", "weight": 30}], scene.queue()
    scene.ends(holder)
    for job in running.values():
        scene.finish(job)
    order = sorted(names, key=lambda name: scene.at(name, "begun"))
    # ann1 and bob1 first; then ann, who had a thirtieth for her weight, has both of hers before
    # bob's second.
    assert order == ["ann1", "bob1", "ann2", "ann3", "bob2", "bob3"], order


def test_a_job_that_can_never_fit_is_told_so_at_once(scene):
    job = scene.job("huge", "1GiB", weft=["--memory", "20GiB"])
    scene.finish(job, 3)
    assert "can never run here" in job.stderr() and "8.00 GiB" in job.stderr(), job.stderr()


def test_ranks_of_one_job_are_admitted_as_one(scene):
    shell = f'for r in 0 1; do "{sys.executable}" "{HOLDS}" "{scene.folder}/rank$r.json" --take 2GiB --while "{scene.folder}/ranks.stay" & done; wait'
    (scene.folder / "ranks.stay").touch()
    environment = {**jobs.clean_environment(), **scene.device.environment(), **scene.broker.variables(), "LOCAL_WORLD_SIZE": "2"}
    job = jobs.Job([str(paths.WEFT), "run", "--memory", "4GiB", "--", "/bin/sh", "-c", shell], environment=environment, folder=scene.folder, name="ranks")
    scene.jobs.append(job)
    scene.until("both ranks have their memory", lambda: scene.has("rank0", "took") and scene.has("rank1", "took"))
    running = scene.queue()["running"]
    assert len(running) == 1 and len(running[0]["clients"]) == 2, running
    other = scene.waiter("other", "4GiB", stay=False)
    (scene.folder / "ranks.stay").unlink()
    scene.finish(job)
    scene.finish(other)


def test_ranks_that_torchrun_starts_are_admitted_as_one(scene):
    if scene.options.torch == 0:
        pytest.skip("--torch 0")
    holder = scene.holder("holder", "5GiB")
    (scene.folder / "ranks.stay").touch()
    # One result for both: each line names its process.
    ranks = [str(paths.python("torch")), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(HOLDS), str(scene.folder / "ranks.json"),
             "--torch", "--take", "1.5GiB", "--while", str(scene.folder / "ranks.stay")]  # fmt: skip
    environment = {**jobs.clean_environment(), **scene.device.environment(), **scene.broker.variables()}
    job = jobs.Job([str(paths.WEFT), "run", "--memory", "4GiB", "--", *ranks], environment=environment, folder=scene.folder, name="ranks")
    scene.jobs.append(job)
    scene.until("both ranks wait", lambda: [len(row["clients"]) for row in scene.queue()["waiting"]] == [2])
    assert not scene.has("ranks", "begun"), scene.said("ranks")
    scene.ends(holder)
    scene.until("both ranks have their memory", lambda: scene.has("ranks", "took", 2))
    seen = scene.queue()
    assert [len(row["clients"]) for row in seen["running"]] == [2] and seen["waiting"] == [], seen
    (scene.folder / "ranks.stay").unlink()
    scene.finish(job)
    assert sorted(scene.events("ranks")) == sorted(2 * ["asks", "begun", "took", "ended"]), scene.said("ranks")
    assert len({line["pid"] for line in scene.said("ranks")}) == 2, scene.said("ranks")
    # One job was let in for the holder and one for both ranks.
    assert (scene.queue()["admitted"], scene.queue()["denied"]) == (2, 0), scene.queue()
