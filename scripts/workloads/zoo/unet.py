# SPDX-License-Identifier: MIT OR Apache-2.0
"""Diffusion: a U-Net that removes the noise from a latent image, in some steps per request."""

import torch
import torch.nn.functional as F
from torch import nn

from .base import Task


class Residual(nn.Module):
    """Two convolutions with the step's embedding between them, as in latent diffusion models."""

    def __init__(self, inside, outside, embedding):
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(32, inside), nn.GroupNorm(32, outside)])
        self.first, self.second = nn.Conv2d(inside, outside, 3, padding=1), nn.Conv2d(outside, outside, 3, padding=1)
        self.time = nn.Linear(embedding, outside)
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x, time):
        y = self.first(F.silu(self.norms[0](x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.second(F.silu(self.norms[1](y)))


class Attention(nn.Module):
    """The image attends to itself, then to the prompt."""

    def __init__(self, width, context, heads=8):
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(32, width)
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.q2, self.kv2 = nn.Linear(width, width), nn.Linear(context, 2 * width)
        self.out = nn.Linear(width, width)

    def attend(self, q, kv):
        def split(t):
            return t.view(t.shape[0], t.shape[1], self.heads, -1).transpose(1, 2)

        k, v = kv.chunk(2, dim=-1)
        y = F.scaled_dot_product_attention(split(q), split(k), split(v))
        return y.transpose(1, 2).reshape(q.shape)

    def forward(self, x, context):
        flat = self.norm(x).flatten(2).transpose(1, 2)
        flat = flat + self.attend(self.q(flat), self.kv(flat))
        flat = self.out(flat + self.attend(self.q2(flat), self.kv2(context)))
        return x + flat.transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    def __init__(self, widths=(160, 320, 640), context=768):
        super().__init__()
        embedding = 4 * widths[0]
        self.time = nn.Sequential(nn.Linear(widths[0], embedding), nn.SiLU(), nn.Linear(embedding, embedding))
        self.inside = nn.Conv2d(4, widths[0], 3, padding=1)
        self.down, self.up, self.shrink, self.grow = (nn.ModuleList() for _ in range(4))
        before = widths[0]
        for level, width in enumerate(widths):
            attention = Attention(width, context) if level else None
            self.down.append(nn.ModuleList([Residual(before, width, embedding), attention or nn.Identity()]))
            self.shrink.append(nn.Conv2d(width, width, 3, stride=2, padding=1) if width != widths[-1] else nn.Identity())
            before = width
        self.middle = nn.ModuleList([Residual(before, before, embedding), Attention(before, context)])
        for level, width in reversed(list(enumerate(widths))):
            attention = Attention(width, context) if level else None
            self.up.append(nn.ModuleList([Residual(before + width, width, embedding), attention or nn.Identity()]))
            self.grow.append(nn.Conv2d(width, width, 3, padding=1) if level else nn.Identity())
            before = width
        self.outside = nn.Sequential(nn.GroupNorm(32, before), nn.SiLU(), nn.Conv2d(before, 4, 3, padding=1))
        size = widths[0] // 2
        frequencies = torch.exp(-torch.arange(size) * 9.21 / size)
        self.register_buffer("frequencies", frequencies, persistent=False)

    @staticmethod
    def part(block, x, time, context):
        residual, attention = block
        x = residual(x, time)
        return attention(x, context) if isinstance(attention, Attention) else x

    def forward(self, x, step, context):
        angles = step[:, None] * self.frequencies
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1))
        x, kept = self.inside(x), []
        for block, shrink in zip(self.down, self.shrink):
            x = self.part(block, x, time, context)
            kept.append(x)
            x = shrink(x)
        x = self.part(self.middle, x, time, context)
        for index, (block, grow) in enumerate(zip(self.up, self.grow)):
            x = self.part(block, torch.cat([x, kept.pop()], dim=1), time, context)
            if index + 1 < len(self.up):
                x = grow(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.outside(x)


class Diffusion(Task):
    def __init__(self, mode, batch, steps):
        super().__init__()
        self.prepare(UNet(), mode)
        self.steps = steps
        self.noise = torch.randn(batch, 4, 64, 64).pin_memory()
        self.prompt = torch.randn(batch, 77, 768).pin_memory()
        self.times = torch.linspace(1000, 0, steps).repeat(batch, 1).T.contiguous().pin_memory()

    def make_optimizer(self):
        return torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def request(self):
        x, context = self.noise.cuda(non_blocking=True), self.prompt.cuda(non_blocking=True)
        times = self.times.cuda(non_blocking=True)
        for step in range(self.steps):
            x = x - 0.1 * self.model(x, times[step], context)
        return x

    def loss(self):
        x, context = self.noise.cuda(non_blocking=True), self.prompt.cuda(non_blocking=True)
        times = self.times.cuda(non_blocking=True)
        noise = torch.randn_like(x)
        return F.mse_loss(self.model(x + noise, times[0], context), noise)


def diffusion(batch, steps):
    return lambda mode, given=None: Diffusion(mode, given or (2 if mode == "train" else batch), steps)
