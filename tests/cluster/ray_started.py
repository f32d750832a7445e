# SPDX-License-Identifier: MIT OR Apache-2.0
"""A driver on a node that `python -m weft_gpu.ray start` started: Serve, Train, and PyTorch.

  ray_started.py FOLDER       what it saw is in STARTED.json

test_ray.py starts the node and this, and judges what it saw.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import ray
import ray_torch
from ray import serve
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray_driver import look

import weft_gpu
import weft_gpu.ray

# Seconds for one answer, on two busy cores.
BOUND = 240


def broker():
    """The process of the node's broker, or None."""
    words = [str(weft_gpu.program()), "status", "--json"]
    done = subprocess.run(words, capture_output=True, text=True)
    return None if done.returncode else json.loads(done.stdout)["broker"]["pid"]


@serve.deployment(
    ray_actor_options={"num_gpus": 0.25, "runtime_env": weft_gpu.ray.runtime_env(priority="high")}
)
class Service:
    """A deployment that looks."""

    def __call__(self):
        return look(20)


def loop(config):
    """The work of each worker of a trainer."""
    rank = ray.train.get_context().get_world_rank()
    (Path(config["folder"]) / f"rank{rank}.json").write_text(json.dumps(look(20)))


def main(folder):
    told = {"broker": broker()}
    ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    handle = serve.run(Service.bind(), route_prefix=None, name="service")
    told["service"] = handle.remote().result(timeout_s=BOUND)
    DataParallelTrainer(
        loop,
        train_loop_config={"folder": str(folder)},
        scaling_config=ScalingConfig(
            num_workers=2, use_gpu=True, resources_per_worker={"GPU": 0.25, "CPU": 1}
        ),
        run_config=RunConfig(
            storage_path=str(folder / "runs"),
            worker_runtime_env=weft_gpu.ray.runtime_env(priority="low", name="training"),
        ),
    ).fit()
    told["workers"] = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    serve.shutdown()
    if "TORCH" in os.environ:
        told["torch"] = ray_torch.play(folder)
    told["after"] = broker()
    (folder / "STARTED.json").write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
