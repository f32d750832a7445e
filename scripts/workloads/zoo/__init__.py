# SPDX-License-Identifier: MIT OR Apache-2.0
"""Models that the workloads run: twelve, each by a name, with inference and training. They need
only torch and torchvision.

Weights are random. No model branches on a value. On the simulated GPU values have no meaning, so a
branch would make a service's launches differ from those on a real GPU.
"""

import importlib
from collections.abc import Mapping

from .base import Task

# Name on the command line -> constructor of the task: module, function, arguments. The order is
# that of tables.
TABLE = {
    "resnet50": ("vision", "classifier", {"name": "resnet50", "batch": 1, "training_batch": 16}),
    "resnet152": ("vision", "classifier", {"name": "resnet152", "batch": 1, "training_batch": 8}),
    "vgg19": ("vision", "classifier", {"name": "vgg19", "batch": 1, "training_batch": 8}),
    "inception_v3": ("vision", "inception", {"batch": 1, "training_batch": 8}),
    "densenet201": ("vision", "classifier", {"name": "densenet201", "batch": 1, "training_batch": 8}),
    "vit_b_16": ("vision", "classifier", {"name": "vit_b_16", "batch": 1, "training_batch": 8}),
    "bert_base": ("language", "bert", {"batch": 4, "length": 128}),
    "gpt2": ("language", "gpt2", {"prompt": 64, "tokens": 16}),
    "llama": ("language", "llama", {"prompt": 64, "tokens": 16}),
    "unet": ("unet", "diffusion", {"batch": 1, "steps": 2}),
    "detection": ("detection", "two_stage", {"batch": 1}),
    "lstm": ("recurrent", "lstm", {"batch": 16, "length": 48}),
}


class Models(Mapping):
    """Name -> constructor of the task. Its module is imported on access: torchvision takes as long
    as torch.
    """

    def __getitem__(self, name):
        module, function, arguments = TABLE[name]
        return getattr(importlib.import_module(f".{module}", __name__), function)(**arguments)

    def __iter__(self):
        return iter(TABLE)

    def __len__(self):
        return len(TABLE)


MODELS = Models()

__all__ = ["MODELS", "Task"]
