# SPDX-License-Identifier: MIT OR Apache-2.0
"""A two-stage detector: ResNet-50 with a feature pyramid, a proposal head over all levels, and a
head over 256 regions.

The regions are given, not chosen by score. A choice branches on values, which have no meaning on
the simulated GPU, and waits for the host in the middle. Everything before and after the choice is
torchvision's Faster R-CNN.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.rpn import RPNHead
from torchvision.ops import roi_align

from .base import Task

REGIONS = 256
CLASSES = 91


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = resnet_fpn_backbone(backbone_name="resnet50", weights=None, trainable_layers=5)
        self.proposals = RPNHead(256, 3)
        self.head = TwoMLPHead(256 * 7 * 7, 1024)
        self.predictor = FastRCNNPredictor(1024, CLASSES)

    def forward(self, images, regions):
        levels = list(self.backbone(images).values())
        objectness, deltas = self.proposals(levels)
        # A quarter of the regions from each of the four fine levels, according to their sizes.
        share = regions.shape[0] // 4
        pooled = [
            roi_align(level, regions[i * share : (i + 1) * share], (7, 7), level.shape[-1] / images.shape[-1], 2)
            for i, level in enumerate(levels[:4])
        ]
        scores, boxes = self.predictor(self.head(torch.cat(pooled)))
        return objectness, deltas, scores, boxes


class Detection(Task):
    size = 512

    def __init__(self, mode, batch):
        super().__init__()
        self.prepare(Detector(), mode)
        self.images = torch.rand(batch, 3, self.size, self.size).pin_memory()
        corner = torch.rand(REGIONS, 2) * self.size / 2
        regions = torch.cat([torch.randint(0, batch, (REGIONS, 1)).float(), corner, corner + 16 + torch.rand(REGIONS, 2) * 200], 1)
        self.regions = regions.pin_memory()
        self.classes = torch.randint(0, CLASSES, (REGIONS,)).pin_memory()

    def request(self):
        _, _, scores, boxes = self.model(self.images.cuda(non_blocking=True), self.regions.cuda(non_blocking=True))
        best, label = scores.softmax(dim=-1).max(dim=-1)
        return torch.cat([best[:, None], label[:, None].float(), boxes[:, :4]], dim=1)

    def loss(self):
        objectness, deltas, scores, boxes = self.model(self.images.cuda(non_blocking=True), self.regions.cuda(non_blocking=True))
        loss = F.cross_entropy(scores, self.classes.cuda(non_blocking=True)) + boxes.abs().mean()
        for some, more in zip(objectness, deltas):
            loss = loss + F.binary_cross_entropy_with_logits(some, torch.zeros_like(some)) + more.abs().mean()
        return loss


def two_stage(batch):
    return lambda mode, given=None: Detection(mode, given or (2 if mode == "train" else batch))
