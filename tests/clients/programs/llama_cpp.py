# SPDX-License-Identifier: MIT OR Apache-2.0
"""llama.cpp (ggml-cuda): decodes with CUDA graphs, whose executables it updates, from a pool of
virtual memory.

The model is made here: two layers of random numbers. Its words mean nothing; the calls are a real
model's.
"""

import os
import tempfile

import client
import gguf
import numpy as np

VOCABULARY, WIDTH, HEADS, FEED, LAYERS, CONTEXT = 256, 64, 4, 128, 2, 128


def write_model(path):
    random = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(VOCABULARY)
    # A vocabulary of single bytes, so that any text is a sequence of known tokens.
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(VOCABULARY - 3)]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE] * (VOCABULARY - 3)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * VOCABULARY)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)

    def tensor(name, *shape):
        writer.add_tensor(name, random.normal(0, 0.05, shape).astype(np.float32))

    tensor("token_embd.weight", VOCABULARY, WIDTH)
    tensor("output.weight", VOCABULARY, WIDTH)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for layer in range(LAYERS):
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", np.ones(WIDTH, np.float32))
        writer.add_tensor(f"blk.{layer}.ffn_norm.weight", np.ones(WIDTH, np.float32))
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensor(f"blk.{layer}.{part}.weight", WIDTH, WIDTH)
        tensor(f"blk.{layer}.ffn_gate.weight", FEED, WIDTH)
        tensor(f"blk.{layer}.ffn_up.weight", FEED, WIDTH)
        tensor(f"blk.{layer}.ffn_down.weight", WIDTH, FEED)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def body():
    from cyllama.llama import llama_cpp as llama

    llama.disable_logging()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.gguf")
        write_model(path)
        llama.ggml_backend_load_all()
        params = llama.LlamaModelParams()
        params.n_gpu_layers = 99
        model = llama.LlamaModel(path, params)
        settings = llama.LlamaContextParams()
        settings.n_ctx = CONTEXT
        context = llama.LlamaContext(model, settings)
        # Tokens are chosen here and not sampled: values that a simulated device computes must not
        # steer the program.
        context.decode(llama.llama_batch_get_one([1] + list(range(10, 26)), 0))
        for step in range(24):
            context.decode(llama.llama_batch_get_one([10 + step], 17 + step))
        context.close()
    return {"tokens": 24}


client.main(body)
