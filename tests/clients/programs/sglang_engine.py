# SPDX-License-Identifier: MIT OR Apache-2.0
"""SGLang: a small Llama of random numbers, made here and loaded from disk."""

import os
import sys
import sysconfig
import tempfile
from pathlib import Path

import client
from small_llama import write_model

# A GiB. The simulated GPU keeps it in the host's memory.
CACHE_TOKENS = 1 << 21


def toolkit(folder):
    """SGLang compiles some of its kernels when it first uses them. The packages have the compiler.
    A toolkit also has the runtime library under the name that a linker looks for."""
    cuda = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13"
    (Path(folder) / "libcudart.so").symlink_to(cuda / "lib" / "libcudart.so.13")
    os.environ["CUDA_HOME"] = str(cuda)
    os.environ["LIBRARY_PATH"] = folder
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    if "XDG_CACHE_HOME" in os.environ:
        os.environ["SGLANG_JIT_CACHE_DIR"] = os.path.join(os.environ["XDG_CACHE_HOME"], "sglang")


def body():
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as libraries:
        toolkit(libraries)
        import sglang

        write_model(folder)
        engine = sglang.Engine(
            model_path=folder, skip_tokenizer_init=True, context_length=64, mem_fraction_static=0.3,
            max_total_tokens=CACHE_TOKENS, max_running_requests=4, attention_backend="triton",
            sampling_backend="pytorch", disable_cuda_graph=True, disable_overlap_schedule=True, log_level="error", random_seed=1,
        )
        wanted = {"max_new_tokens": 8, "ignore_eos": True, "temperature": 0.0}
        answers = engine.generate(input_ids=[[1, 5, 6, 7], [1, 9]], sampling_params=wanted)
        engine.shutdown()
        lengths = [len(answer["output_ids"]) for answer in answers]
        assert lengths == [8, 8], lengths
        return {"tokens": lengths}


if __name__ == "__main__":
    client.main(body)
