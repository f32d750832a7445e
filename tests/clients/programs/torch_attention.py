# SPDX-License-Identifier: MIT OR Apache-2.0
"""Fused attention, each of a chain of which needs the one before, and a Transformer layer."""

import client
import torch
from torch import nn


def body():
    q = torch.randn(2, 4, 128, 32).cuda().half()
    for causal in (False, True):
        out = q
        for _ in range(15):
            out = torch.tanh(q + nn.functional.scaled_dot_product_attention(out, q, q, is_causal=causal))
        assert out.shape == q.shape
        client.kept(f"attention, causal {causal}", out)
    layer = nn.TransformerEncoderLayer(d_model=64, nhead=4, batch_first=True).cuda()
    for _ in range(3):
        layer(torch.randn(4, 32, 64).cuda()).sum().backward()
    encoder = nn.TransformerEncoder(layer.eval(), num_layers=2)
    with torch.no_grad():
        assert encoder(torch.randn(4, 32, 64).cuda()).shape == (4, 32, 64)
    torch.cuda.synchronize()
    client.kept("gradients", [p.grad for p in layer.parameters()])


if __name__ == "__main__":
    client.main(body)
