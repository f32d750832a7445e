# SPDX-License-Identifier: MIT OR Apache-2.0
"""Language models: an encoder (BERT-base), a decoder whose cache grows (GPT-2), a decoder with a
cache of fixed size (Llama's shape).

The two decoders differ on purpose. GPT-2's attention gets one column longer with every token, so
each token launches kernels of other shapes. The other one attends to its whole cache under a mask,
so every token is the same sequence of launches and can be a CUDA graph.
"""

import torch
import torch.nn.functional as F
from torch import nn

from .base import Task


class Attention(nn.Module):
    """Self-attention with one projection for queries, keys and values, as in BERT and GPT-2."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, past=None, causal=False):
        batch, length, width = x.shape
        q, k, v = self.project(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width)), (k, v)


class Block(nn.Module):
    """A transformer block: normalised before (GPT-2) or after (BERT) each half."""

    def __init__(self, width, heads, before):
        super().__init__()
        self.before = before
        self.attention = Attention(width, heads)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, past=None, causal=False):
        if self.before:
            y, past = self.attention(self.norms[0](x), past, causal)
            x = x + y
            return x + self.narrow(F.gelu(self.wide(self.norms[1](x)), approximate="tanh")), past
        y, past = self.attention(x, past, causal)
        x = self.norms[0](x + y)
        return self.norms[1](x + self.narrow(F.gelu(self.wide(x)))), past


class Transformer(nn.Module):
    def __init__(self, vocabulary, positions, width=768, layers=12, heads=12, before=True):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.blocks = nn.ModuleList([Block(width, heads, before) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("order", torch.arange(positions), persistent=False)

    def forward(self, ids, pasts=None, causal=False, last=False):
        begin = 0 if pasts is None else pasts[0][0].shape[2]
        x = self.tokens(ids) + self.positions(self.order[begin : begin + ids.shape[1]])
        kept = []
        for index, block in enumerate(self.blocks):
            x, past = block(x, None if pasts is None else pasts[index], causal)
            kept.append(past)
        x = self.norm(x)
        return self.head(x[:, -1:] if last else x), kept


class Language(Task):
    """Training is next-token prediction with AdamW; every language model here trains alike."""

    def make_optimizer(self):
        return torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    # Tokens of a sentence.
    sizes = range(8, 257, 8)

    def feed(self, vocabulary, batch, length):
        self.vocabulary, self.batch, self.fed = vocabulary, batch, {}
        self.take(length)

    def take(self, size):
        if size and size not in self.fed:
            texts = (torch.randint(0, self.vocabulary, (self.batch, size)) for _ in range(2))
            self.fed[size] = [text.pin_memory() for text in texts]
        if size:
            self.ids, self.targets = self.fed[size]

    def loss(self):
        logits = self.logits(self.ids.cuda(non_blocking=True))
        return F.cross_entropy(logits.view(-1, self.vocabulary), self.targets.cuda(non_blocking=True).view(-1))


class Bert(Language):
    """A request classifies a batch of sentences."""

    def __init__(self, mode, batch, length):
        super().__init__()
        self.prepare(Transformer(30_522, 512, before=False), mode)
        self.feed(30_522, batch, length)
        self.classes = nn.Linear(768, 2).cuda().requires_grad_(False)

    def logits(self, ids):
        return self.model(ids)[0]

    def request(self):
        ids = self.ids.cuda(non_blocking=True)
        model = self.model
        x = model.tokens(ids) + model.positions(model.order[: ids.shape[1]])
        for block in model.blocks:
            x, _ = block(x)
        return self.classes(x[:, 0]).argmax(dim=1)


class Decoder(Language):
    """A request is a prompt and some tokens. Each token goes to the host, as in a streaming
    service.
    """

    # Tokens of a prompt.
    sizes = range(16, 129, 8)

    def infer(self):
        with torch.inference_mode():
            token = self.start(self.ids.cuda(non_blocking=True))
            text = [self.on_host(token)]
            for position in range(self.tokens - 1):
                token = self.next(token, self.ids.shape[1] + position)
                text.append(self.on_host(token))
        return text


class Gpt2(Decoder):
    def __init__(self, mode, batch, prompt, tokens):
        super().__init__()
        self.tokens = tokens
        self.prepare(Transformer(50_257, 1024), mode)
        self.feed(50_257, batch, prompt if mode == "infer" else 256)

    def logits(self, ids):
        return self.model(ids, causal=True)[0]

    def start(self, ids):
        logits, self.pasts = self.model(ids, causal=True, last=True)
        return logits.argmax(dim=-1)

    def next(self, token, _position):
        logits, self.pasts = self.model(token, self.pasts, last=True)
        return logits.argmax(dim=-1)


class LlamaBlock(nn.Module):
    """RMS norm, rotary positions, grouped queries, gated linear unit."""

    def __init__(self, width, heads, groups, inner):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, groups * self.size, bias=False)
        self.v = nn.Linear(width, groups * self.size, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.norms = nn.ParameterList([nn.Parameter(torch.ones(width)) for _ in range(2)])

    @staticmethod
    def norm(x, weight):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight

    @staticmethod
    def rotate(x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def forward(self, x, cos, sin, mask, cache=None, at=None):
        batch, length, width = x.shape
        y = self.norm(x, self.norms[0])
        q = self.rotate(self.q(y).view(batch, length, self.heads, self.size).transpose(1, 2), cos, sin)
        k = self.rotate(self.k(y).view(batch, length, self.groups, self.size).transpose(1, 2), cos, sin)
        v = self.v(y).view(batch, length, self.groups, self.size).transpose(1, 2)
        if cache is not None:
            k, v = cache[0].index_copy_(2, at, k), cache[1].index_copy_(2, at, v)
        k, v = (t.repeat_interleave(self.heads // self.groups, dim=1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, width))
        y = self.norm(x, self.norms[1])
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class LlamaModel(nn.Module):
    def __init__(self, vocabulary, width, layers, heads, groups, positions):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([LlamaBlock(width, heads, groups, width * 11 // 4) for _ in range(layers)])
        self.norm = nn.Parameter(torch.ones(width))
        self.head = nn.Linear(width, vocabulary, bias=False)
        size = width // heads
        angles = torch.outer(torch.arange(positions).float(), 10_000 ** (-torch.arange(0, size, 2).float() / size))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        # The positions that a position may attend to: itself and earlier ones.
        mask = torch.full((positions, positions), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, ids, at, caches=None, last=False):
        x = self.tokens(ids)
        cos, sin = self.cos[at], self.sin[at]
        mask = self.mask[at] if caches is not None else self.mask[at][:, : ids.shape[1]]
        for index, block in enumerate(self.blocks):
            x = block(x, cos, sin, mask, None if caches is None else caches[index], at)
        x = LlamaBlock.norm(x, self.norm)
        return self.head(x[:, -1:] if last else x)


class Llama(Decoder):
    """About 0.2 billion parameters: the shape of the large ones, small enough for a test."""

    width, layers, heads, groups, positions = 1024, 12, 16, 4, 256

    def __init__(self, mode, batch, prompt, tokens, graph=False):
        super().__init__()
        self.tokens, self.graph = tokens, None
        model = LlamaModel(32_000, self.width, self.layers, self.heads, self.groups, self.positions)
        self.prepare(model, mode)
        self.feed(32_000, batch, prompt if mode == "infer" else self.positions)
        self.order = torch.arange(self.positions).cuda()
        if mode == "infer":
            shape = (batch, self.groups, self.positions, self.width // self.heads)
            self.caches = [(torch.zeros(shape).cuda(), torch.zeros(shape).cuda()) for _ in range(self.layers)]
            self.token, self.at = torch.zeros(batch, 1, dtype=torch.long).cuda(), self.order[:1].clone()
            if graph:
                self.capture()

    def logits(self, ids):
        return self.model(ids, self.order[: ids.shape[1]])

    def decode(self):
        return self.model(self.token, self.at, self.caches, last=True).argmax(dim=-1)

    def capture(self):
        """Captures the decoding of one token as a CUDA graph."""
        with torch.inference_mode():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    self.decode()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.answer = self.decode()
        self.graph = graph

    def start(self, ids):
        return self.model(ids, self.order[: ids.shape[1]], self.caches, last=True).argmax(dim=-1)

    def next(self, token, position):
        self.token.copy_(token)
        self.at.copy_(self.order[position : position + 1])
        if self.graph is None:
            return self.decode()
        self.graph.replay()
        return self.answer


def bert(batch, length):
    return lambda mode, given=None: Bert(mode, given or batch, length)


def gpt2(prompt, tokens):
    return lambda mode, given=None: Gpt2(mode, given or (2 if mode == "train" else 1), prompt, tokens)


def llama(prompt, tokens):
    def make(mode, given=None, graph=False):
        return Llama(mode, given or (2 if mode == "train" else 1), prompt, tokens, graph)

    make.graphs = True
    return make
