# SPDX-License-Identifier: MIT OR Apache-2.0
"""vLLM: a small Llama of random numbers, made here and loaded from disk."""

import sys
import tempfile

import client
from small_llama import write_model


def body():
    from vllm import LLM, SamplingParams

    with tempfile.TemporaryDirectory() as folder:
        write_model(folder)
        engine = LLM(
            model=folder, skip_tokenizer_init=True, enforce_eager="--compiled" not in sys.argv, max_model_len=64,
            gpu_memory_utilization=0.3, max_num_seqs=4, disable_log_stats=True,
        )
        wanted = SamplingParams(max_tokens=8, min_tokens=8, ignore_eos=True, temperature=0.0, detokenize=False)
        prompts = [{"prompt_token_ids": [1, 5, 6, 7]}, {"prompt_token_ids": [1, 9]}]
        answers = engine.generate(prompts, wanted, use_tqdm=False)
        lengths = [len(answer.outputs[0].token_ids) for answer in answers]
        assert lengths == [8, 8], lengths
        return {"tokens": lengths}


if __name__ == "__main__":
    client.main(body)
