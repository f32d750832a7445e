# SPDX-License-Identifier: MIT OR Apache-2.0
"""CUDA tensors that go through a multiprocessing queue: device memory and an event that two
processes share (CUDA IPC), in both directions."""

import client
import torch
import torch.multiprocessing as mp


def worker(inbox, outbox):
    while (tensor := inbox.get(timeout=120)) is not None:
        seen = tensor.cpu().tolist()
        tensor.fill_(seen[0] + 1)
        torch.cuda.synchronize()
        outbox.put(seen)
        del tensor
    # A tensor of its own, which must live until the other side has let go of it.
    own = torch.full((1000,), 77, dtype=torch.int32, device="cuda")
    outbox.put(own)
    inbox.get(timeout=120)
    del own


def body():
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=worker, args=(inbox, outbox))
    process.start()
    for turn in range(5):
        tensor = torch.full((256,), 10 * turn, dtype=torch.int32, device="cuda")
        inbox.put(tensor)
        assert outbox.get(timeout=120) == [10 * turn] * 256
        assert tensor.cpu().tolist() == [10 * turn + 1] * 256
    inbox.put(None)
    theirs = outbox.get(timeout=120)
    assert theirs.cpu().tolist() == [77] * 1000
    del theirs
    inbox.put(None)
    process.join(60)
    assert process.exitcode == 0, process.exitcode
    torch.cuda.ipc_collect()
    return {"shared": 6}


if __name__ == "__main__":
    client.main(body)
