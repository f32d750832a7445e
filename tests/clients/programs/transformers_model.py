# SPDX-License-Identifier: MIT OR Apache-2.0
"""Hugging Face transformers: a small Llama trained and run token by token; random numbers, nothing
is fetched."""

import client
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def body():
    config = LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64
    )
    torch.manual_seed(1)
    model = LlamaForCausalLM(config).cuda()
    tokens = torch.arange(48).view(2, 24).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(4):
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    model.eval()
    with torch.inference_mode():
        # Decoding by hand: generate() stops on a value that a simulated device does not compute.
        out = model(input_ids=tokens[:, :8], use_cache=True)
        for step in range(8, 24):
            out = model(input_ids=tokens[:, step : step + 1], past_key_values=out.past_key_values, use_cache=True)
    torch.cuda.synchronize()
    client.kept("logits", out.logits)
    client.kept("weights", list(model.parameters()))
    assert out.logits.shape == (2, 1, 128)


client.main(body)
