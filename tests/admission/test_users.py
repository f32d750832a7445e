# SPDX-License-Identifier: MIT OR Apache-2.0
"""Several people on one GPU: jobs of different users under one shared broker, live on a simulated
GPU.

They need root, since only root can start jobs of other users: without it they are skipped.
"""

import json
import os
import re
import urllib.request
from pathlib import Path

import pytest
from harness import jobs
from users import ANN, BEA, BOUND, SERVICE, Scene, becomes, python

pytestmark = [
    pytest.mark.scene(make=Scene),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start jobs of several users"),
    pytest.mark.skipif(os.geteuid() == 0 and python() is None, reason="no Python here that other users may start"),
]


def shares_fairly(scene):
    first = scene.holder(ANN, "first", "6GiB")
    again = scene.waiter(ANN, "again", "5GiB")
    # It claims to be a user's who has had nothing yet, and does not come before earlier jobs for
    # that.
    liar = scene.waiter(ANN, "liar", "5GiB", WEFT_USER=str(BEA))
    other = scene.waiter(BEA, "other", "5GiB")
    small = scene.holder(BEA, "small", "1GiB")
    uids = {row["pid"]: row["uid"] for row in scene.query("status")["clients"]}
    for job in (first, again, liar, other, small):
        assert uids[job.pid] == job.uid, f"{job.name} is user {job.uid}'s, status says {uids}"
    labels = {row["pid"]: row["user"] for kind in ("waiting", "running") for row in scene.query()[kind]}
    assert labels[liar.pid] == str(ANN) and labels[other.pid] == str(BEA), labels
    table = scene.weft(BEA, "status").stdout
    assert f" {ANN} " in table and f" {BEA} " in table, table
    for job in (first, other, again, liar, small):
        scene.finish(job)
    order = sorted((other, again, liar), key=scene.begun)
    assert order == [other, again, liar], [job.name for job in order]
    for job in (first, again, liar, other, small):
        assert "none" not in scene.events(job), f"{job.name}: {scene.events(job)}"


def test_two_users_share_a_device_fairly(scene):
    shares_fairly(scene)


@pytest.mark.scene(service=True)
def test_two_users_share_a_device_under_a_service_account(scene):
    shares_fairly(scene)
    assert "may do that" in scene.weft(ANN, "stop", code=1).stderr
    scene.weft(SERVICE, "stop")
    assert scene.broker.wait(BOUND) == 0


def test_nobody_changes_what_is_anothers(scene):
    job = scene.holder(ANN, "job", "2GiB")
    row = next(row for row in scene.query("status")["clients"] if row["pid"] == job.pid)
    for how in (("--pid", job.pid), ("--client", row["client"])):
        said = scene.weft(BEA, "set", *map(str, how), "--priority", "9", code=1).stderr
        assert f"belongs to user {ANN}" in said, said
    assert "may do that" in scene.weft(BEA, "set", "--user", str(BEA), "--weight", "100", code=1).stderr
    assert "may do that" in scene.weft(BEA, "stop", code=1).stderr
    scene.weft(ANN, "set", "--pid", str(job.pid), "--priority", "7")
    seen = next(row["priority"] for row in scene.query("status")["clients"] if row["pid"] == job.pid)
    assert seen == 7, seen
    scene.weft(0, "set", "--user", str(BEA), "--weight", "3")
    assert scene.query()["weights"] == [{"user": str(BEA), "weight": 3}], scene.query()["weights"]
    scene.finish(job)


def test_the_history_tells_each_user_of_their_own_jobs(scene):
    ann, bea = scene.holder(ANN, "ann", "1GiB"), scene.holder(BEA, "bea", "1GiB")
    for job in (ann, bea):
        scene.finish(job)

    def kept(uid):
        jobs_of = json.loads(scene.weft(uid, "history", "--json").stdout)["jobs"]
        return {(row["uid"], row["pid"]) for row in jobs_of}

    scene.until("both are kept", lambda: len(kept(0)) == 2)
    assert kept(0) == {(ANN, ann.pid), (BEA, bea.pid)}, kept(0)
    assert kept(ANN) == {(ANN, ann.pid)} and kept(BEA) == {(BEA, bea.pid)}, (kept(ANN), kept(BEA))
    file = scene.socket.with_name("broker.sock.history.sqlite")
    assert file.stat().st_mode & 0o777 == 0o600, oct(file.stat().st_mode)


@pytest.mark.scene(broker=("--metrics", "127.0.0.1:0", "--group", str(BEA)))
def test_metrics_name_jobs_to_the_owner_alone(scene):
    job = scene.holder(BEA, "bea", "1GiB")
    address = re.search(r"metrics at (http://\S+/metrics)", scene.broker.stderr())[1]
    with urllib.request.urlopen(address, timeout=BOUND) as answer:
        over_tcp = answer.read().decode()
    for text, name in (
        (scene.weft(0, "metrics").stdout, "holds.py"),
        (scene.weft(BEA, "metrics").stdout, ""),
        (over_tcp, ""),
    ):
        lines = [line for line in text.splitlines() if line.startswith("weft_job_info{")]
        assert len(lines) == 1 and f'pid="{job.pid}",user="{BEA}"' in lines[0], text
        assert f'name="{name}"' in lines[0], lines
    facts = scene.socket.with_name("broker.sock.metrics").stat()
    assert (facts.st_mode & 0o777, facts.st_gid) == (0o660, BEA), facts
    scene.finish(job)


@pytest.mark.scene(broker=("--priority-of", f"{BEA}=1", "--weight-of", f"{ANN}=4"))
def test_priority_is_what_the_owner_allows(scene):
    ann = scene.holder(ANN, "ann", "1GiB", WEFT_PRIORITY="0")
    bea = scene.holder(BEA, "bea", "1GiB", WEFT_PRIORITY="1")
    seen = {row["pid"]: row["priority"] for row in scene.query("status")["clients"]}
    assert (seen[ann.pid], seen[bea.pid]) == (5, 1), seen
    assert {row["priority"] for row in scene.query()["running"]} == {5, 1}, scene.query()
    scene.until("it is told", lambda: "priority 0 is above the limit" in ann.stderr())
    assert "owner" not in bea.stderr(), bea.stderr()
    assert "priority 5 at most" in scene.weft(ANN, "set", "--pid", str(ann.pid), "--priority", "4", code=1).stderr
    assert scene.query()["weights"] == [{"user": str(ANN), "weight": 4}]
    scene.finish(ann)
    scene.finish(bea)


def test_a_name_in_common_is_no_job_in_common(scene):
    # Processes of one job share its memory. A job that uses another user's gang name gets nothing
    # of it.
    ann = scene.job(ANN, "ann", "4GiB", preload=True, WEFT_GANG="one", WEFT_MEMORY="6GiB")
    scene.until("ann has its memory", lambda: "took" in scene.events(ann))
    second = scene.job(ANN, "second", "1GiB", preload=True, WEFT_GANG="one", WEFT_MEMORY="6GiB")
    scene.until("her second process has some of that", lambda: "took" in scene.events(second))
    bea = scene.job(BEA, "bea", "1GiB", preload=True, WEFT_GANG="one", WEFT_MEMORY="6GiB")
    scene.until("bea's job waits", lambda: scene.row("waiting", bea))
    seen = scene.query()
    assert [len(row["clients"]) for row in seen["running"]] == [2], seen
    for job in (ann, second, bea):
        scene.finish(job)


def test_a_profile_is_its_users_own(scene):
    silent = scene.job(ANN, "silent", "2GiB")
    scene.until("it has its memory", lambda: "took" in scene.events(silent))
    scene.finish(silent)
    said = scene.weft(BEA, "profile", "keep", "--name", "stolen", str(silent.pid), code=1).stderr
    assert "no memory use was recorded" in said, said
    scene.weft(ANN, "profile", "keep", "--name", "hers", str(silent.pid))
    file = scene.folder / str(ANN) / "profiles/hers.profile"
    assert file.stat().st_uid == ANN
    # Only she may use the folder; the broker gets the profile from her job, and not from
    # another's.
    ann = scene.job(ANN, "ann", "2GiB", weft=["--profile", "hers"])
    scene.until("ann's job has its memory", lambda: "took" in scene.events(ann))
    bea = scene.job(BEA, "bea", "1GiB", weft=["--profile", str(file.with_suffix(""))])
    scene.until("bea's job has its memory", lambda: "took" in scene.events(bea))
    seen = {row["pid"]: row for row in scene.query("status")["clients"]}
    assert seen[ann.pid]["profile_trouble"] is None and "may not read it" in seen[bea.pid]["profile_trouble"], seen
    shares = {row["pid"]: row["share"] for row in scene.query()["running"]}
    # Her kept profile, and a context; bea's job is unknown, so its share grew with the memory
    # that it took.
    assert 2 << 30 <= shares[ann.pid] < 3 << 30, shares
    # Only a private broker takes samples.
    trace = scene.job(BEA, "sampled", "1GiB", preload=True, WEFT_MODE="profile", WEFT_PROFILE="/etc/weft-users-test")
    scene.until("it runs", lambda: "took" in scene.events(trace))
    for job in (ann, bea, trace):
        scene.finish(job)
    assert not Path("/etc/weft-users-test.profile").exists()


def test_a_broker_that_is_begun_anew_knows_them_all(scene):
    holder = scene.holder(ANN, "holder", "6GiB")
    waiters = [scene.waiter(uid, f"waiter{at}", "5GiB") for at, uid in enumerate((ANN, BEA, BEA))]
    order = [row["pid"] for row in scene.query()["waiting"]]
    scene.broker.kill()
    # The broker's socket is there still: no user starts a broker of his own meanwhile, and a job
    # runs as without weft.
    lone = scene.job(BEA, "lone", "1GiB", weft=["--memory", "1GiB"])
    scene.until("it runs", lambda: "took" in scene.events(lone))
    assert "shared broker" in lone.stderr(), lone.stderr()
    assert not (scene.folder / str(BEA) / "weft/broker.sock").exists()
    scene.start()
    assert [row["pid"] for row in scene.query()["waiting"]] == order
    scene.until("all are back", lambda: all(row["clients"] for kind in ("waiting", "running") for row in scene.query()[kind]) and scene.row("running", lone))
    assert [row["pid"] for row in scene.query()["waiting"]] == order
    for job in waiters:
        scene.release(job)
    for job in (lone, holder, *waiters):
        scene.finish(job)
    begun = [job.pid for job in sorted(waiters, key=scene.begun)]
    assert begun == order, f"{order} waited, {begun} began"
    assert all("none" not in scene.events(job) for job in waiters)
    # The last client leaves a moment before its process ends.
    scene.until("nobody has memory", lambda: not scene.query()["running"])
    seen = scene.query()
    assert (seen["running"], seen["waiting"]) == ([], []), seen


@pytest.mark.scene(broker=("--group", str(BEA)))
def test_a_group_alone_is_served(scene):
    bea = scene.holder(BEA, "bea", "1GiB")
    ann = scene.job(ANN, "ann", "1GiB", weft=["--memory", "1GiB"])
    scene.until("it runs without", lambda: "took" in scene.events(ann))
    assert "not open to this user" in ann.stderr(), ann.stderr()
    assert [row["uid"] for row in scene.query("status")["clients"]] == [BEA]
    scene.finish(ann)
    scene.finish(bea)


def test_a_strangers_socket_is_not_used(scene):
    # Every user may make folders in one like /tmp, so bea's is not a place that the machine's
    # owner gave.
    place = scene.folder / "device/beas"
    place.mkdir(mode=0o755)
    os.chown(place, BEA, BEA)
    socket = place / "broker.sock"
    words = [scene.bin / "weft", "broker", "--shared", "--socket", socket]
    trap = jobs.Job(words, environment=scene.environment(BEA), folder=scene.folder, name="trap", limits=becomes(BEA), cwd="/")
    scene.jobs.append(trap)
    trap.uid = BEA
    assert jobs.wait_until(socket.exists, BOUND), trap.explain()
    ann = scene.job(ANN, "ann", "1GiB", weft=["--memory", "1GiB"], WEFT_SOCKET=str(socket))
    scene.until("it runs without", lambda: "took" in scene.events(ann))
    assert "belongs to another user" in ann.stderr(), ann.stderr()
    scene.finish(ann)
