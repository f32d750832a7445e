# SPDX-License-Identifier: MIT OR Apache-2.0
"""CTranslate2: a worker thread and a blocking stream per model, the asynchronous allocator, 16-bit
floats and 8-bit integers.

The model is made here: a GPT-2 of two layers of random numbers.
"""

import os
import tempfile
import threading

import client
import ctranslate2
import numpy as np
from ctranslate2.specs.transformer_spec import TransformerDecoderModelSpec

VOCABULARY, WIDTH, HEADS, LAYERS, POSITIONS = 96, 64, 4, 2, 64


def fill(spec, random):
    def array(*shape):
        return random.normal(0, 0.05, shape).astype(np.float32)

    def linear(layer, out, into):
        layer.weight, layer.bias = array(out, into), array(out)

    def norm(layer):
        layer.gamma, layer.beta = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)

    decoder = spec.decoder
    decoder.embeddings.weight = array(VOCABULARY, WIDTH)
    decoder.position_encodings.encodings = array(POSITIONS, WIDTH)
    decoder.scale_embeddings = False
    norm(decoder.layer_norm)
    decoder.projection.weight = array(VOCABULARY, WIDTH)
    for layer in decoder.layer:
        norm(layer.self_attention.layer_norm)
        linear(layer.self_attention.linear[0], 3 * WIDTH, WIDTH)
        linear(layer.self_attention.linear[1], WIDTH, WIDTH)
        norm(layer.ffn.layer_norm)
        linear(layer.ffn.linear_0, 4 * WIDTH, WIDTH)
        linear(layer.ffn.linear_1, WIDTH, 4 * WIDTH)


def body():
    spec = TransformerDecoderModelSpec.from_config(
        LAYERS, HEADS, pre_norm=True, activation=ctranslate2.specs.Activation.GELUTanh
    )
    fill(spec, np.random.default_rng(3))
    words = ["<unk>", "<s>", "</s>"] + [f"w{i}" for i in range(VOCABULARY - 3)]
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = words[:3]
    spec.register_vocabulary(words)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model")
        os.mkdir(path)
        spec.validate()
        spec.save(path)
        generators = {
            kind: ctranslate2.Generator(path, device="cuda", compute_type=kind, inter_threads=1) for kind in ("float16", "int8")
        }
        lengths = {}

        def use(kind):
            # A fixed length: values that a simulated device computes must not steer the program.
            scores = generators[kind].score_batch([["<s>", "w1", "w2", "w3"]] * 4)
            out = generators[kind].generate_batch(
                [["<s>", "w5"]] * 2, max_length=12, min_length=12, sampling_topk=1, beam_size=1, end_token=[]
            )
            lengths[kind] = [len(scores), len(out)]

        # Both at once, each with its worker. (Two replicas of one model would share its queue by
        # who is faster.)
        users = [threading.Thread(target=use, args=(kind,)) for kind in generators]
        for user in users:
            user.start()
        for user in users:
            user.join()
    assert lengths == {"float16": [4, 2], "int8": [4, 2]}, lengths
    return dict(sorted(lengths.items()))


client.main(body)
