"""cuBLAS and cuBLASLt: single, half and batched."""

import client
import torch


def body():
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        a = torch.ones(256, 384, device="cuda", dtype=dtype)
        b = torch.ones(384, 128, device="cuda", dtype=dtype)
        for _ in range(10):
            c = a @ b
        assert c.shape == (256, 128) and c.dtype == dtype
        linear = torch.nn.Linear(384, 64, device="cuda", dtype=dtype)
        assert torch.nn.functional.gelu(linear(a)).shape == (256, 64)
        batched = torch.bmm(torch.ones(8, 32, 64, device="cuda", dtype=dtype), torch.ones(8, 64, 16, device="cuda", dtype=dtype))
        assert batched.shape == (8, 32, 16)
        client.kept(f"matmul {dtype}", [c, linear(a), batched])
    torch.cuda.synchronize()


if __name__ == "__main__":
    client.main(body)
