"""Cases with the invariants of weft under Slurm, run on a cluster of scripts/harness/slurm.py.

A case submits jobs only by sbatch and srun, as users of the cluster. It leaves nothing behind:
`clean` checks that after each. Jobs are small native clients of the simulated GPU.
"""

import contextlib
import re
import time

from . import jobs
from .scene import BOUND
from .slurm import USERS, another_release, build_plugin

# A job that keeps its GPU busy until FILE is removed, at most for the length of a case.
WORK = "exec {bin}/companion --while {file} --pause {pause} --result {file}.result --at-most 300"
# A job that takes memory, and keeps it until FILE is removed.
HOLD = "exec {python} {bin}/holds.py {file}.held --take {memory} --while {file}"

# Slurm reads a script again if its time of change is at least a second later, s.
SCRIPT_S = 1.1


class Play:
    """Helpers of a case on a cluster: jobs, with files that keep them running."""

    def __init__(self, cluster, python):
        self.cluster, self.python = cluster, python
        self.number = 0

    def file(self, user):
        """A file that a job of this user watches."""
        self.number += 1
        file = self.cluster.folder / "home" / user / f"go{time.monotonic_ns()}"
        file.touch()
        return file

    def work(self, user, *options, pause=500):
        """Submits a job that launches. Returns its number and its file."""
        file = self.file(user)
        script = WORK.format(bin=self.cluster.bin, file=file, pause=pause)
        return self.cluster.sbatch(user, script, *options), file

    def hold(self, user, memory, *options):
        """Submits a job that takes memory. Returns its number and its file."""
        file = self.file(user)
        script = HOLD.format(python=self.python, bin=self.cluster.bin, file=file, memory=memory)
        return self.cluster.sbatch(user, script, *options), file

    def clients(self):
        """The rows of all brokers, with their node's name."""
        return [{**row, "node": node.name} for node in self.cluster.nodes for row in node.clients()]

    def client(self, job):
        """The row of a job's process, once it is attached."""
        found = []

        def there():
            found[:] = [row for row in self.clients() if row["gang"].endswith(f"slurm-{job}")]
            return found

        # Asks only the brokers: the controller may be away.
        assert jobs.wait_until(
            there, BOUND, step=0.2
        ), f"job {job} is not attached\n{self.cluster.explain()}"
        return found[0]

    def progresses(self, *numbers):
        """Every one of these jobs continues to launch."""
        for number in numbers:
            before = self.client(number)["launches"]

            def more(number=number, before=before):
                return self.client(number)["launches"] > before

            assert jobs.wait_until(more, BOUND, step=0.2), f"job {number} stands still"

    def finish(self, *pairs):
        """Lets these jobs end. All must have ended well."""
        for _, file in pairs:
            file.unlink(missing_ok=True)
        for number, _ in pairs:
            state = self.cluster.wait_state(
                number, "COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT"
            )
            said = [self.cluster.output(user, number) for user in ("ann", "bea", "service")]
            assert (
                state == "COMPLETED"
            ), f"job {number} is {state}: {said}\n{self.cluster.explain()}"

    def clean(self):
        """Nothing is left: no job, no process of one, no client, no shard in use."""
        cluster = self.cluster
        wrong = []

        def nothing():
            wrong[:] = self.left_over()
            return not wrong

        if not jobs.wait_until(nothing, BOUND, step=0.3):
            said = "left over: " + "; ".join(wrong) + "\n" + cluster.explain()
            self.sweep()
            raise AssertionError(said)

    def sweep(self):
        """Ends all jobs, so that a failed case does not disturb the next ones."""
        for user in USERS:
            self.cluster.run(["scancel", "-u", user])

    def left_over(self):
        queued = self.cluster.must(["squeue", "-h", "-o", "job %i %T"]).splitlines()
        attached = [f"client {row['name']} on {row['node']}" for row in self.clients()]
        users = [
            f"process {words}"
            for words in self.cluster.processes().values()
            if re.search(r"companion|holds\.py|slurmstepd", words)
        ]
        shown = self.cluster.must(["scontrol", "show", "node", "-d", "-o"])
        used = [
            found
            for found in re.findall(r"GresUsed=(\S+)", shown)
            if re.search(r":[1-9]\d*\(", found)
        ]
        return [*queued, *attached, *users, *used]


def variables_of_tasks(play):
    """A GPU's step has weft's variables, once; a step without a GPU has nothing preloaded."""
    cluster = play.cluster
    show = "env | grep -E '^(WEFT|LD_PRE)' | sort; grep -c libweft.so /proc/self/maps"
    # A relative file belongs to the submit folder, in whatever folder the script runs.
    script = f'cd /\n{show}\necho STEP\nsrun sh -c "{show}"\necho NONE\nsrun --gres=none sh -c "{show}"'
    asked = ["--gpu-mem=20G", "--gpu-priority=low", "--gpu-slowdown=2%", "--gpu-profile=./known.profile"]
    number = cluster.sbatch("ann", script, "-J", "train", *asked)
    cluster.wait_state(number, "COMPLETED", "FAILED")
    batch, _, rest = cluster.output("ann", number).partition("STEP\n")
    step, _, none = rest.partition("NONE\n")
    library = cluster.bin / "libweft.so"
    for part in (batch, step):
        for line in (
            f"LD_PRELOAD={library}",
            f"WEFT_NAME=train[{number}]",
            f"WEFT_GANG=slurm-{number}",
            "WEFT_PRIORITY=7",
            "WEFT_MEMORY=21474836480b",
            "WEFT_SLOWDOWN=2%",
            f"WEFT_PROFILE={cluster.folder / 'home' / 'ann' / 'known.profile'}",
            "WEFT_SOCKET=/run/weft/broker.sock",
            "WEFT_AUTOSTART=0",
        ):
            assert line in part.splitlines(), f"{line} is not in\n{part}\n{step}"
    # srun's own messages begin with `srun: `.
    told = [line for line in none.splitlines() if line and not line.startswith("srun: ")]
    assert "LD_PRELOAD" not in none and told[-1] == "0", none
    number = cluster.sbatch("ann", show, "--gpu-priority=high")
    cluster.wait_state(number, "COMPLETED", "FAILED")
    bare = cluster.output("ann", number)
    assert "WEFT_GANG" not in bare and bare.endswith("\n0\n"), bare


def wrong_values_are_refused(play):
    """A wrong value of an option, and a value that the policy denies, is refused at once."""
    cluster = play.cluster
    wrong = (
        "--gpu-priority=highest",
        "--gpu-priority=10",
        "--gpu-mem=20",
        "--gpu-mem=much",
        "--gpu-mem=-1G",
        "--gpu-slowdown=7",
        "--gpu-slowdown=101%",
        "--gpu-profile= ",
    )
    for option in wrong:
        for command in (
            ["sbatch", option, "--wrap=true"],
            ["srun", option, "true"],
            ["salloc", option, "true"],
        ):
            done = cluster.run(command, user="ann")
            said = [line for line in done.stderr.splitlines() if line.startswith("weft: ")]
            name = option.partition("=")[0]
            assert (
                done.returncode and len(said) == 1 and said[0].startswith(f"weft: {name}: ")
            ), f"{command}: {done}"
    script = "#!/bin/sh\n#SBATCH --gpu-mem=much\ntrue\n"
    done = cluster.run(["sbatch"], user="ann", given=script)
    assert done.returncode and "weft: --gpu-mem: much is not an amount" in done.stderr, done
    done = cluster.run(["sbatch", "--gpu-mem=81G", "--wrap=true"], user="ann")
    assert done.returncode and "weft: 81 GiB of GPU memory" in done.stderr, done
    assert not cluster.must(["squeue", "-h"]), "something was submitted"


def amounts_become_shards(play):
    """--gpu-mem requests shards, rounded up; the user's own requests to Slurm stay."""
    cluster = play.cluster
    for options, wanted in (
        (["--gpu-mem=20G"], "gres:shard:20"),
        (["--gpu-mem=20.2GiB"], "gres:shard:21"),
        (["--gpu-mem=500MB"], "gres:shard:1"),
        (["--gpu-mem=20GB"], "gres:shard:19"),
        (["--gpu-mem=20G", "--gres=gpu:1"], "gres:gpu:1"),
        (["--gpu-mem=20G", "--gres=shard:5"], "gres:shard:5"),
    ):
        told = asked_for(cluster, *options)
        assert told == wanted, f"{options}: {told}, not {wanted}"
    told = asked_for(cluster, script="#!/bin/sh\n#SBATCH --gpu-mem=20G\ntrue\n")
    assert told == "gres:shard:20", told


@contextlib.contextmanager
def policy(cluster, **numbers):
    """The administrator's job_submit.lua with other numbers, for a while."""
    file = cluster.etc / "job_submit.lua"
    before = file.read_text()
    text = before
    for name, value in numbers.items():
        text, count = re.subn(rf"(?m)^local {name} = .*$", f"local {name} = {value}", text)
        assert count == 1, f"{name} is not in {file}"
    try:
        time.sleep(SCRIPT_S)
        file.write_text(text)
        yield
    finally:
        time.sleep(SCRIPT_S)
        file.write_text(before)


def asked_for(cluster, *options, script="true"):
    """The requests of a job with these user options. The job never runs."""
    return withdrawn(cluster, cluster.sbatch("ann", script, "--hold", *options))


def withdrawn(cluster, number):
    """A job's requests per node, as Slurm 22.05 writes them. Cancels the job."""
    told = cluster.job(number).get("TresPerNode")
    cluster.must(["scancel", number], user="ann")
    return told and told.replace("gres/", "gres:")


def priorities_by_account(play):
    """A priority that is not for an account is refused in Slurm, in whatever way it is requested.
    """
    cluster = play.cluster
    with policy(cluster, FIRST_PRIORITY_OF_ALL=3, IMPORTANT_ACCOUNTS="{ prod = true }"):
        script = "#!/bin/sh\n#SBATCH --gpu-mem=1G\n#SBATCH --gpu-priority=2\ntrue\n"
        for command, given, level in (
            (["sbatch", "--gpu-mem=1G", "--gpu-priority=high", "--wrap=true"], "", 0),
            (["sbatch", "-A", "test", "--gpu-mem=1G", "--gpu-priority=2", "--wrap=true"], "", 2),
            (["srun", "--gpu-mem=1G", "--gpu-priority=high", "true"], "", 0),
            (["salloc", "--gpu-mem=1G", "--gpu-priority=high", "true"], "", 0),
            (["sbatch"], script, 2),
        ):
            done = cluster.run(command, user="ann", given=given)
            line = f"weft: --gpu-priority={level} is not for this account: 3 to 9"
            assert done.returncode and line in done.stderr, f"{command}: {done}"
        assert not cluster.must(["squeue", "-h"]), "something was submitted"
        for options in (
            ("--gpu-priority=high", "-A", "prod"),
            ("--gpu-priority=3",),
            ("--gpu-priority=low",),
            (),
        ):
            assert asked_for(cluster, "--gpu-mem=1G", *options) == "gres:shard:1", options
    assert asked_for(cluster, "--gpu-mem=1G", "--gpu-priority=high") == "gres:shard:1"


def default_shards(play):
    """A job without GPU options gets its partition's shards; given options stay."""
    cluster = play.cluster
    with policy(cluster, DEFAULT_SHARDS="{ all = 4 }"):
        for options, wanted in (
            ([], "gres:shard:4"),
            (["-p", "all"], "gres:shard:4"),
            (["--gpu-priority=low"], "gres:shard:4"),
            (["--gpu-mem=20G"], "gres:shard:20"),
            (["--gres=shard:5"], "gres:shard:5"),
            (["--gres=gpu:1"], "gres:gpu:1"),
        ):
            told = asked_for(cluster, *options)
            assert told == wanted, f"{options}: {told}, not {wanted}"
        # A change of an existing job keeps its requests.
        number = cluster.sbatch("ann", "true", "--hold", "--gpu-mem=20G")
        cluster.must(["scontrol", "update", f"job={number}", "partition=all"], user="ann")
        told = withdrawn(cluster, number)
        assert told == "gres:shard:20", told
        number = cluster.sbatch("ann", "env | grep ^WEFT_MEMORY")
        cluster.wait_state(number, "COMPLETED", "FAILED")
        told = cluster.output("ann", number)
        assert told == f"WEFT_MEMORY={4 << 30}b\n", told
    told = asked_for(cluster)
    assert told is None, told


def users_share_a_gpu(play):
    """A service and two users' training on one GPU: Slurm places them, the broker ranks them."""
    node = ["-w", "n1"]
    service = play.work(
        "service", "-J", "serve", "--gpu-priority=high", "--gpu-mem=20G", *node, pause=3000
    )
    ann = play.work("ann", "-J", "ann-train", "--gpu-priority=low", "--gpu-mem=20G", *node)
    bea = play.work("bea", "-J", "bea-train", "--gpu-mem=20G", *node)
    rows = {
        name: play.client(job)
        for name, (job, _) in (("service", service), ("ann", ann), ("bea", bea))
    }
    told = {
        name: (row["node"], row["name"], row["uid"], row["priority"]) for name, row in rows.items()
    }
    assert told == {
        "service": ("n1", f"serve[{service[0]}]", 61000, 0),
        "ann": ("n1", f"ann-train[{ann[0]}]", 61001, 7),
        "bea": ("n1", f"bea-train[{bea[0]}]", 61002, 5),
    }, told

    def ranked():
        modes = {
            name: play.client(job)["mode"]
            for name, (job, _) in (("service", service), ("ann", ann))
        }
        return modes == {"service": "foreground", "ann": "background"}

    assert jobs.wait_until(ranked, BOUND, step=0.2), play.clients()
    play.progresses(service[0], ann[0], bea[0])
    play.finish(service, ann, bea)


def memory_that_does_not_fit_waits(play):
    """A job whose memory fits on no GPU waits until another job has ended, then runs."""
    cluster = play.cluster
    count = len(cluster.nodes) * cluster.gpus
    held = [play.hold("ann" if at % 2 else "bea", "50GiB", "--gpu-mem=50G") for at in range(count)]
    for number, _ in held:
        cluster.wait_state(number, "RUNNING")
        play.client(number)
    late = play.hold("service", "50GiB", "--gpu-mem=50G")
    small = play.hold("service", "20GiB", "--gpu-mem=20G")
    cluster.wait_state(small[0], "RUNNING")
    waits = cluster.job(late[0])
    assert (waits["JobState"], waits["Reason"]) == ("PENDING", "Resources"), waits
    where = sorted(
        (row["node"], row["device_uuid"])
        for row in play.clients()
        if row["gang"].split("-")[-1] in {str(number) for number, _ in held}
    )
    assert len(set(where)) == count, f"two of them share a GPU: {where}"
    play.finish(held.pop())
    cluster.wait_state(late[0], "RUNNING")
    play.client(late[0])
    play.finish(late, small, *held)


def array_jobs_are_told_apart(play):
    """A job of an array has the name that squeue shows."""
    file = play.file("ann")
    script = WORK.format(bin=play.cluster.bin, file=file, pause=2000)
    number = play.cluster.sbatch("ann", script, "-J", "sweep", "--gpu-mem=10G", "--array=3-4")
    names = [f"sweep[{number}_3]", f"sweep[{number}_4]"]

    def there():
        return sorted(row["name"] for row in play.clients()) == names

    assert jobs.wait_until(there, BOUND, step=0.2), play.clients()
    file.unlink()
    play.clean()


def inner_jobs_begin_anew(play):
    """A job that a job submits inherits neither that job's priority nor its profile nor its name.
    """
    cluster = play.cluster
    out = cluster.folder / "home" / "ann" / "inner"
    inner = f"#!/bin/sh\nenv | grep -E '^(WEFT|LD_PRE)' | sort > {out}\n"
    script = f"sbatch --parsable --wait -J inner --gres=shard:2 <<'END'\n{inner}END\n"
    number = cluster.sbatch(
        "ann", script, "-J", "outer", "--gpu-mem=20G", "--gpu-priority=2", "--gpu-slowdown=3%"
    )
    cluster.wait_state(number, "COMPLETED", "FAILED")
    told = out.read_text()
    assert re.search(r"^WEFT_NAME=inner\[\d+\]$", told, re.MULTILINE), told + cluster.output(
        "ann", number
    )
    assert "WEFT_MEMORY=2147483648b\n" in told and told.count("libweft.so") == 1, told
    assert "WEFT_PRIORITY" not in told and "WEFT_SLOWDOWN" not in told, told


def cancelled_at_any_moment(play):
    """scancel of jobs that wait, begin, attach, run and end leaves nothing behind."""
    cluster = play.cluster
    for pause in (0.0, 0.3, 1.0, 2.0, 2.2, 2.5, 3.0):
        number, _ = play.work("ann", "--gpu-mem=30G")
        time.sleep(pause)
        cluster.must(["scancel", number], user="ann")
    number, _ = play.hold("bea", "30GiB", "--gpu-mem=30G")
    play.client(number)
    cluster.must(["scancel", "--signal=KILL", "--full", number], user="bea")
    play.clean()


def controller_restarts(play):
    """A controller that is killed and restarted loses no job."""
    cluster = play.cluster
    running = play.work("ann", "--gpu-mem=10G")
    play.client(running[0])
    waiting = play.hold("bea", "10GiB", "--gpu-mem=10G", "--begin=now+15")
    cluster.wait_saved()
    cluster.controller.kill()
    play.progresses(running[0])
    cluster.start_controller()
    cluster.wait_nodes()
    play.client(waiting[0])
    play.progresses(running[0])
    play.finish(running, waiting)


def broker_killed(play):
    """Jobs of a node whose broker is killed continue, and find the next broker."""
    cluster = play.cluster
    node = cluster.nodes[0]
    first = play.work("ann", "--gpu-mem=10G", "-w", node.name)
    second = play.hold("bea", "20GiB", "--gpu-mem=20G", "-w", node.name)
    play.client(first[0]), play.client(second[0])
    node.broker.kill()
    third = play.work("service", "--gpu-mem=10G", "--gpu-priority=high", "-w", node.name)
    cluster.wait_state(third[0], "RUNNING")
    node.start_broker()
    play.progresses(first[0], third[0])
    assert play.client(second[0])["uid"] == 61002
    play.finish(first, second, third)
    log = (cluster.folder / "logs" / f"{node.name}.log").read_text()
    assert (
        f"weft: no broker at /run/weft/broker.sock: job {third[0]} " in log
    ), "the prolog did not report it"


def node_daemon_killed(play):
    """Jobs of a node whose slurmd is killed continue, and end well once it is back."""
    cluster = play.cluster
    node = cluster.nodes[-1]
    job = play.work("ann", "--gpu-mem=10G", "-w", node.name)
    play.client(job[0])
    node.slurmd.kill()
    play.progresses(job[0])
    node.start_slurmd()
    cluster.wait_nodes()
    play.progresses(job[0])
    play.finish(job)


def leftovers_are_killed(play):
    """A process that a job detaches from itself ends with the job, and its memory is freed."""
    cluster = play.cluster
    file = play.file("ann")
    hold = HOLD.format(python=play.python, bin=cluster.bin, file=file, memory="10GiB").removeprefix(
        "exec "
    )
    script = f"setsid sh -c '({hold} &) ; exit 0' </dev/null >/dev/null 2>&1\nuntil grep -q took {file}.held 2>/dev/null; do sleep 0.1; done"
    number = cluster.sbatch("ann", script, "--gpu-mem=10G")
    cluster.wait_state(number, "COMPLETED")
    play.clean()


def another_releases_plugin(play):
    """A plugin for another release of Slurm is not loaded, and jobs run as without it."""
    cluster = play.cluster
    header = another_release(cluster.etc)
    other = cluster.etc / "other.so"
    other.write_bytes(build_plugin(header).read_bytes())
    stack = cluster.etc / "plugstack.conf"
    before = stack.read_text()
    try:
        stack.write_text(f"optional {other}\n")
        done = cluster.run(["srun", "--gres=shard:1", "sh", "-c", "echo ran; env"], user="ann")
        assert (
            done.returncode == 0 and "ran" in done.stdout and "LD_PRELOAD" not in done.stdout
        ), done
        done = cluster.run(["sbatch", "--gpu-mem=1G", "--wrap=true"], user="ann")
        assert done.returncode and "unrecognized option" in done.stderr, done
        number = cluster.sbatch("ann", "echo ran", "--gres=shard:1")
        cluster.wait_state(number, "COMPLETED")
        assert cluster.output("ann", number) == "ran\n"
    finally:
        stack.write_text(before)


def played(play, case):
    """Runs a case; it must leave nothing behind."""
    try:
        case(play)
    except BaseException:
        play.sweep()
        raise
    play.clean()


ALL = [
    variables_of_tasks,
    wrong_values_are_refused,
    amounts_become_shards,
    priorities_by_account,
    default_shards,
    users_share_a_gpu,
    memory_that_does_not_fit_waits,
    array_jobs_are_told_apart,
    inner_jobs_begin_anew,
    cancelled_at_any_moment,
    controller_restarts,
    broker_killed,
    node_daemon_killed,
    leftovers_are_killed,
    another_releases_plugin,
]
