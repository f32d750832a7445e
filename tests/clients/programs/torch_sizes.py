# SPDX-License-Identifier: MIT OR Apache-2.0
"""Results whose sizes the device counts: printed tensors, selections, sparse matrices."""

import client
import torch


def body():
    for of in (torch.float32, torch.bfloat16, torch.int64):
        ones = torch.ones(8, device="cuda", dtype=of)
        # The memory that the next counts get held a pattern that is no small number.
        del ones
        values = torch.tensor([1, 0, 2, 3, 0], dtype=of).cuda()
        assert torch.nonzero(values).shape == (3, 1)
        assert torch.masked_select(values, values > 1).shape == (2,)
        assert values[values != 0].shape == (3,)
        printed = str(values)
        assert printed.startswith("tensor([") and "device='cuda:0'" in printed, printed
    repr(torch.nn.Linear(3, 4).cuda().weight)
    for of in (torch.bool, torch.float32, torch.int64):
        # Too many for one kernel: the count of each block, then their sum.
        many = torch.zeros(1_000_000, device="cuda", dtype=of)
        many[5_000:705_000] = 1
        assert torch.nonzero(many).shape == (700_000, 1)
        assert many[many].shape == (700_000,) if of == torch.bool else torch.argwhere(many).shape == (700_000, 1)
    assert torch.nonzero(torch.zeros(8, device="cuda")).shape == (0, 1)
    eye = torch.eye(16).to_sparse_csr().cuda()
    wide = torch.ones(16, 4, device="cuda")
    assert torch.sparse.mm(eye, wide).shape == (16, 4)
    pairs = torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 2)).cuda()
    assert torch.sparse.mm(pairs, torch.ones(2, 2, device="cuda")).shape == (2, 2)
    assert "size=(2, 2)" in str(pairs)
    torch.cuda.synchronize()
    return {"sizes": 5}


if __name__ == "__main__":
    client.main(body)
