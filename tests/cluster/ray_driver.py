# SPDX-License-Identifier: MIT OR Apache-2.0
"""A driver of Ray in a network of its own: a cluster of four nodes on one machine, and jobs on it.

  ray_driver.py FOLDER      prints what each job saw, as JSON

Each node has a broker and a simulated GPU of its own, by NODES.json of the folder. test_ray.py
starts it and judges its output.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import weft_gpu.ray

# Seconds for one answer, on two busy cores: a worker's start is some seconds.
BOUND = 240

NAMES = ("LD_PRELOAD", "WEFT_PRIORITY", "WEFT_MEMORY", "WEFT_GANG", "WEFT_NAME", "NODE", "MORE")


def look(launches=0, seconds=0.0, mark=None):
    """This worker's state: its variables, whether weft is in it, and its broker's figures of it."""
    told = {name: os.environ.get(name) for name in NAMES}
    told["mapped"] = "libweft.so" in Path("/proc/self/maps").read_text()
    told["pid"] = os.getpid()
    told["gpus"] = ray.get_gpu_ids()
    child = [sys.executable, "-c", "print('libweft.so' in open('/proc/self/maps').read())"]
    told["child"] = subprocess.run(child, capture_output=True, text=True).stdout.strip() == "True"
    if launches:
        from plain import Gpu

        told["answer"] = Gpu().work(launches)
        words = [str(weft_gpu.program()), "status", "--json"]
        status = json.loads(subprocess.run(words, capture_output=True, text=True).stdout)
        mine = [one for one in status["clients"] if one["pid"] == os.getpid()]
        kept = ("name", "priority", "launches", "uid")
        told["clients"] = [{name: one[name] for name in kept} for one in mine]
        told["broker"] = status["broker"]["socket"]
    if mark:
        with open(mark, "a") as file:
            file.write(os.environ["NODE"] + "\n")
    time.sleep(seconds)
    return told


task = ray.remote(look)


@ray.remote
class Looker:
    """An actor that looks."""

    look = staticmethod(look)


def on(node, **more):
    """Options of a task that runs on this node."""
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node.node_id, soft=False), **more}


def refusal(call):
    """The kind and text of an exception, or None."""
    try:
        call()
    except Exception as why:  # noqa: BLE001 - whatever it is
        return [type(why).__name__, str(why)]
    return None


def jobs(folder, cluster, nodes):
    get = lambda *one: ray.get(list(one), timeout=BOUND)  # noqa: E731
    told = {}
    high = weft_gpu.ray.runtime_env(priority="high", memory="1GiB", name="service")
    runs = [task.options(num_gpus=0.5, runtime_env=high, **on(node)) for node in nodes]
    told["tasks"] = get(*[one.remote(20) for one in runs])
    told["plain"] = get(task.options(num_gpus=0.5, **on(nodes[0])).remote(20))[0]

    # Two actors of one runtime_env on one node are two jobs.
    low = {"weft": {"priority": 7}, "env_vars": {"MORE": "yes", "LD_PRELOAD": os.environ["OTHER"]}}
    pair = [Looker.options(num_gpus=0.5, runtime_env=low, **on(nodes[1])).remote() for _ in "ab"]
    told["actors"] = get(*[one.look.remote(20) for one in pair])
    told["again"] = get(pair[0].look.remote(20))[0]
    del pair

    # Wrong values, refused at submission.
    wrong = [
        {"priority": "urgent"},
        {"priority": 10},
        {"priority": True},
        {"memory": "much"},
        {"wait": 5, "no_wait": True},
        {"memry": "1GiB"},
        {"gpu": "any"},
        {"quiet": "yes"},
        "high",
    ]
    made = lambda one: refusal(lambda: task.options(runtime_env={"weft": one}).remote())  # noqa: E731
    told["refused"] = [made(one) for one in wrong]
    # And at the node: a driver that did not import weft's module.
    ray.runtime_env.RuntimeEnv.__init__ = ray.runtime_env.RuntimeEnv.__init__.__wrapped__
    late = [{"priority": "urgent"}, {"memory": "12"}]
    failed = lambda one: refusal(  # noqa: E731
        lambda: get(task.options(runtime_env={"weft": one}, **on(nodes[0])).remote())
    )
    told["late"] = [failed(one) for one in late]

    # A node that is lost: its task begins anew on another, under that one's broker.
    mark = folder / "begun"
    lost = task.options(num_gpus=1, runtime_env=high, max_retries=3, resources={"spare": 1})
    running = lost.remote(20, 5.0, str(mark))
    end = time.monotonic() + BOUND
    while not mark.exists() and time.monotonic() < end:
        time.sleep(0.05)
    at = int(mark.read_text().split()[0])
    cluster.remove_node(nodes[at], allow_graceful=False)
    told["moved"] = {"from": at, "saw": get(running)[0], "begun": mark.read_text().split()}
    return told


def main(folder):
    settings = json.loads((folder / "NODES.json").read_text())
    cluster = Cluster()
    nodes = []
    try:
        for number, variables in enumerate(settings):
            # Two of them can take the task whose node is lost.
            resources = {"spare": 1} if number >= 2 else {}
            more = {"env_vars": {**variables, "NODE": str(number)}, "resources": resources}
            nodes.append(cluster.add_node(num_cpus=2, num_gpus=1, include_dashboard=False, **more))
            if not number:
                ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        cluster.wait_for_nodes()
        told = jobs(folder, cluster, nodes)
    finally:
        ray.shutdown()
        cluster.shutdown()
    (folder / "TOLD.json").write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
