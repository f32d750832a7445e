# SPDX-License-Identifier: MIT OR Apache-2.0
"""Image classifiers of torchvision: an image comes from the host, the class goes back."""

import torch
import torchvision

from .base import Task


class Classifier(Task):
    size = 224
    # Images of a request.
    sizes = range(1, 9)

    def __init__(self, mode, name, batch, **options):
        super().__init__()
        self.prepare(getattr(torchvision.models, name)(weights=None, **options), mode)
        self.fed = {}
        self.take(batch)
        self.criterion = torch.nn.CrossEntropyLoss()

    def take(self, size):
        if size and size not in self.fed:
            images = torch.rand(size, 3, self.size, self.size).pin_memory()
            self.fed[size] = images, torch.randint(0, 1000, (size,)).pin_memory()
        if size:
            self.images, self.labels = self.fed[size]

    def request(self):
        return self.model(self.images.cuda(non_blocking=True)).argmax(dim=1)

    def loss(self):
        output = self.model(self.images.cuda(non_blocking=True))
        return self.criterion(output, self.labels.cuda(non_blocking=True))


class Inception(Classifier):
    size = 299

    def loss(self):
        # In training it has two outputs: the auxiliary head helps the early layers.
        output = self.model(self.images.cuda(non_blocking=True))
        labels = self.labels.cuda(non_blocking=True)
        return self.criterion(output.logits, labels) + 0.4 * self.criterion(output.aux_logits, labels)


def classifier(name, batch, training_batch):
    def make(mode, given=None):
        return Classifier(mode, name, given or (training_batch if mode == "train" else batch))

    return make


def inception(batch, training_batch):
    def make(mode, given=None):
        size = given or (training_batch if mode == "train" else batch)
        # The default initialisation draws truncated normals for minutes; any random weights
        # suffice.
        return Inception(mode, "inception_v3", size, aux_logits=mode == "train", init_weights=False)

    return make
