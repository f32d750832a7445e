# SPDX-License-Identifier: MIT OR Apache-2.0
"""cuBLAS and cuBLASLt: chains of products in three types, each of which needs the one before.

A launch that is lost, doubled or early changes all data after it. Values stay within what half
precision holds and away from zero.
"""

import client
import torch

TYPES = (torch.float32, torch.float16, torch.bfloat16)


def chain(dtype, device, steps):
    """Products of cuBLASLt with a bias and GELU behind them, and plain ones of cuBLAS."""
    x = torch.randn(256, 384, device=device).to(dtype)
    there = (torch.randn(384, 512, device=device) / 20).to(dtype)
    back = (torch.randn(512, 384, device=device) / 20).to(dtype)
    bias = torch.randn(512, device=device).to(dtype)
    for _ in range(steps):
        x = torch.tanh(torch.nn.functional.gelu(torch.addmm(bias, x, there)) @ back)
    return x


def deep(dtype, device, steps, width):
    """Few rows and long sums, which cuBLAS splits over blocks."""
    x = (torch.randn(16, width, device=device) / 90).to(dtype)
    weights = (torch.randn(width, width, device=device) / width**0.5).to(dtype)
    for _ in range(steps):
        x = torch.tanh(x @ weights)
    return x


def batched(dtype, device, steps):
    x = torch.randn(8, 32, 64, device=device).to(dtype)
    weights = (torch.randn(8, 64, 64, device=device) / 8).to(dtype)
    for _ in range(steps):
        x = torch.tanh(torch.bmm(x, weights))
    return x


def replayed(device, steps):
    """A product in a graph. Each replay needs the one before, and the addition between."""
    x = torch.randn(128, 256, device=device, dtype=torch.float16)
    weights = torch.randn(256, 256, device=device, dtype=torch.float16) / 16
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.tanh(x @ weights)
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        x.copy_(torch.tanh(x @ weights))
    for _ in range(steps):
        graph.replay()
        x.add_(0.001)
    return x


def products(device="cuda", steps=50, width=4096):
    torch.manual_seed(1)
    for dtype in TYPES:
        for name, data in (
            ("chain", chain(dtype, device, steps)),
            ("deep", deep(dtype, device, steps // 5, width)),
            ("batched", batched(dtype, device, steps)),
        ):
            assert data.dtype == dtype
            client.kept(f"{name} {dtype}", data)


def body():
    products()
    client.kept("graph", replayed("cuda", 50))
    torch.cuda.synchronize()


if __name__ == "__main__":
    client.main(body)
