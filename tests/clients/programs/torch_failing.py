# SPDX-License-Identifier: MIT OR Apache-2.0
"""A kernel that fails (the simulated GPU's settings name it: the last before a synchronisation).
PyTorch raises the error there, and for all work from then on."""

import client
import torch


def told(call):
    """The first line of the error that it raises."""
    try:
        call()
    except RuntimeError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return None


def body():
    values = torch.ones(1024, device="cuda")
    event = torch.cuda.Event()
    heard = {}
    for step in range(20):
        for _ in range(8):
            values.add_(1)
        why = told(torch.cuda.synchronize)
        if why:
            heard["step"] = [step, why]
            break
    heard["copy"] = told(values.cpu)
    heard["item"] = told(lambda: values.sum().item())
    heard["event"] = told(event.record)
    heard["stream"] = told(torch.cuda.current_stream().synchronize)
    heard["memory"] = told(lambda: torch.empty(64 << 20, device="cuda"))
    heard["all"] = told(torch.cuda.synchronize)
    return heard


client.main(body)
