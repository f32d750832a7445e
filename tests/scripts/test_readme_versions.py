# SPDX-License-Identifier: MIT OR Apache-2.0
"""README names the versions that the tests really install."""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A client's name in README's table: its file in scripts/requirements, its package there.
PACKAGES = {
    "PyTorch": ("torch", "torch"),
    "Triton": ("torch", "triton"),
    "CuPy": ("torch", "cupy-cuda13x"),
    "Numba": ("torch", "numba"),
    "tinygrad": ("torch", "tinygrad"),
    "JAX": ("jax", "jax"),
    "TensorFlow": ("tensorflow", "tensorflow"),
    "XGBoost": ("xgboost", "xgboost"),
    "CatBoost": ("catboost", "catboost"),
    "Faiss": ("faiss", "faiss-gpu-cu12"),
    "Warp": ("warp", "warp-lang"),
    "ONNX Runtime": ("onnx", "onnxruntime-gpu"),
    "transformers": ("hf", "transformers"),
    "vLLM with sleep mode": ("vllm", "vllm"),
    "SGLang": ("sglang", "sglang"),
    "Ray": ("ray", "ray"),
}


def rows():
    """client -> version, of README's table."""
    table = (ROOT / "README.md").read_text().split("## Tested with")[1].split("##")[0]
    found = {}
    for line in re.findall(r"^\| ([^|]+) \| ([\w., ]+) \|", table, re.MULTILINE):
        names, versions = (part.split(", ") for part in line)
        if len(names) == len(versions):
            found |= dict(zip(names, versions))
    return found


class Versions(unittest.TestCase):
    def test_each_version_of_readme_is_the_one_that_is_installed(self):
        found = rows()
        self.assertEqual(set(PACKAGES), set(found))
        for name, (file, package) in PACKAGES.items():
            text = (ROOT / "scripts" / "requirements" / f"{file}.txt").read_text()
            self.assertIn(f"\n{package}=={found[name]}\n", f"\n{text}", name)


if __name__ == "__main__":
    unittest.main()
