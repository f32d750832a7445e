# SPDX-License-Identifier: MIT OR Apache-2.0
"""A small Llama of random numbers, as engines load it from a folder."""

import json
import os


def write_model(folder):
    import torch
    from safetensors.torch import save_file

    width, feed, layers, words = 64, 128, 2, 256
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width, "intermediate_size": feed,
        "num_hidden_layers": layers, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": words,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "torch_dtype": "float16", "bos_token_id": 1, "eos_token_id": 2,
        "tie_word_embeddings": False, "hidden_act": "silu", "rope_theta": 10000.0,
    }
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    torch.manual_seed(4)

    def tensor(*shape):
        return (torch.randn(*shape) * 0.05).half()

    tensors = {"model.embed_tokens.weight": tensor(words, width), "lm_head.weight": tensor(words, width)}
    tensors["model.norm.weight"] = torch.ones(width).half()
    for layer in range(layers):
        at = f"model.layers.{layer}"
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            tensors[f"{at}.self_attn.{part}.weight"] = tensor(width, width)
        tensors[f"{at}.mlp.gate_proj.weight"] = tensor(feed, width)
        tensors[f"{at}.mlp.up_proj.weight"] = tensor(feed, width)
        tensors[f"{at}.mlp.down_proj.weight"] = tensor(width, feed)
        tensors[f"{at}.input_layernorm.weight"] = torch.ones(width).half()
        tensors[f"{at}.post_attention_layernorm.weight"] = torch.ones(width).half()
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
