# SPDX-License-Identifier: MIT OR Apache-2.0
"""Faiss: searches in a flat index and in one of inverted lists."""

import client
import faiss
import numpy as np

WIDTH = 32


def body():
    vectors = np.random.default_rng(3).normal(size=(4000, WIDTH)).astype(np.float32)
    resources = faiss.StandardGpuResources()
    resources.setTempMemory(16 << 20)
    flat = faiss.GpuIndexFlatL2(resources, WIDTH)
    flat.add(vectors)
    # Its lists are made on the host: on the device they depend on values.
    lists = faiss.IndexIVFFlat(faiss.IndexFlatL2(WIDTH), WIDTH, 16)
    lists.train(vectors)
    lists.add(vectors)
    lists.nprobe = 4
    for name, index in (("flat", flat), ("lists", faiss.index_cpu_to_gpu(resources, 0, lists))):
        for _ in range(5):
            distances, found = index.search(vectors[:16], 4)
        assert distances.shape == found.shape == (16, 4)
        client.kept(name, found)


client.main(body)
