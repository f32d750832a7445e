# SPDX-License-Identifier: MIT OR Apache-2.0
"""vLLM's sleep mode: the engine unmaps its memory (cuMemUnmap, cuMemRelease) and maps it again.

Level 1 copies the weights to the host and drops the KV cache. Level 2 drops both, and the weights
are loaded again from the disk.
"""

import tempfile

import client
import stages
from small_llama import write_model

# The simulated GPU keeps it in the host's memory.
CACHE_BYTES = 1 << 30


def body():
    from vllm import LLM, SamplingParams

    with tempfile.TemporaryDirectory() as folder:
        write_model(folder)
        engine = LLM(
            model=folder, skip_tokenizer_init=True, enforce_eager=True, max_model_len=64, enable_sleep_mode=True,
            gpu_memory_utilization=0.5, kv_cache_memory_bytes=CACHE_BYTES, max_num_seqs=4, disable_log_stats=True,
        )
        wanted = SamplingParams(max_tokens=8, min_tokens=8, ignore_eos=True, temperature=0.0, detokenize=False)
        prompts = [{"prompt_token_ids": [1, 5, 6, 7]}, {"prompt_token_ids": [1, 9]}]
        lengths = []

        def serve():
            answers = engine.generate(prompts, wanted, use_tqdm=False)
            lengths.append([len(answer.outputs[0].token_ids) for answer in answers])

        serve()
        stages.reached("awake")
        for level in (1, 2):
            engine.sleep(level=level)
            stages.reached(f"asleep-{level}")
            if level == 2:
                engine.wake_up(tags=["weights"])
                engine.collective_rpc("reload_weights")
                engine.wake_up(tags=["kv_cache"])
            else:
                engine.wake_up()
            serve()
            stages.reached(f"woken-{level}")
        assert lengths == [[8, 8]] * 3, lengths
        return {"tokens": lengths}


if __name__ == "__main__":
    client.main(body)
