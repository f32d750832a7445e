# SPDX-License-Identifier: MIT OR Apache-2.0
"""An LSTM over words: embedding, two layers of cuDNN's LSTM, a score for each word."""

import torch
import torch.nn.functional as F
from torch import nn

from .base import Task

VOCABULARY = 10_000


class Words(nn.Module):
    def __init__(self, width=650, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.cells = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids, last=False):
        x, _ = self.cells(self.tokens(ids))
        return self.head(x[:, -1] if last else x)


class Lstm(Task):
    learning_rate = 0.1

    def __init__(self, mode, batch, length):
        super().__init__()
        self.prepare(Words(), mode)
        self.ids = torch.randint(0, VOCABULARY, (batch, length)).pin_memory()
        self.targets = torch.randint(0, VOCABULARY, (batch, length)).pin_memory()

    def request(self):
        return self.model(self.ids.cuda(non_blocking=True), last=True).argmax(dim=-1)

    def loss(self):
        logits = self.model(self.ids.cuda(non_blocking=True))
        return F.cross_entropy(logits.view(-1, VOCABULARY), self.targets.cuda(non_blocking=True).view(-1))


def lstm(batch, length):
    return lambda mode, given=None: Lstm(mode, given or batch, length)
