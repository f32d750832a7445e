# SPDX-License-Identifier: MIT OR Apache-2.0
"""A cache of keys and values that kvcached keeps, as an engine uses it: pages of device memory are
mapped while requests need them (cuMemCreate, cuMemMap) and unmapped when they end.

Two engines that do so by turns each use most of a device. tests/clients/test_engines.py plays it.
"""

import os
import sys
import time

import client
import stages
import torch
from kvcached.integration.vllm.interfaces import alloc_kv_cache, init_kvcached, shutdown_kvcached
from kvcached.kv_cache_manager import KVCacheManager

LAYERS, TOKENS, HEADS, WIDTH = 4, 16, 8, 64
TURNS = 2
# Part of the device that the cache takes at its peak: two of them never fit.
PEAK = 0.65
# Seconds that an engine lets a request wait for memory.
LONGEST_S = 60


def taken(cache, count):
    """This many blocks, as soon as the device has the memory."""
    end = time.monotonic() + LONGEST_S
    while time.monotonic() < end:
        blocks = cache.alloc(count)
        if blocks is not None:
            return blocks
        time.sleep(0.1)
    raise MemoryError(f"{cache.available_size()} of {count} blocks after {LONGEST_S} s")


def body():
    # kvcached prints names that have the process's id.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    torch.cuda.set_device(0)
    init_kvcached(is_worker=True)
    shape = (2, 1 << 20, TOKENS, HEADS, WIDTH)
    layers = alloc_kv_cache(shape, TOKENS, torch.float16, "cuda:0", LAYERS)
    cell_bytes = HEADS * WIDTH * torch.float16.itemsize
    cache = KVCacheManager(layers[0].shape[1], TOKENS, cell_bytes, LAYERS)
    block_bytes = 2 * LAYERS * TOKENS * cell_bytes
    count = int(torch.cuda.mem_get_info()[1] * PEAK) // block_bytes
    stages.reached("ready")
    for turn in range(TURNS):
        blocks = taken(cache, count)
        for layer in layers:
            layer[:, blocks[-1]].fill_(1.0)
        torch.cuda.synchronize()
        stages.reached(f"full-{turn}")
        cache.free(blocks)
        cache.trim()
        stages.reached(f"empty-{turn}")
    assert shutdown_kvcached()
    return {"blocks": count}


if __name__ == "__main__":
    client.main(body)
