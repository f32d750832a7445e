# SPDX-License-Identifier: MIT OR Apache-2.0
"""The interface of every task for scripts/workloads/models.py."""

import torch


class Task:
    """A model with its input. `infer()` answers one request, `train()` does one iteration; both end
    with the answer on the host.

    A subclass creates its model on the GPU in `__init__(mode)`. It defines `request()`, which
    returns a tensor on the device, and `loss()`.
    """

    learning_rate = 1e-3
    # How the host detects that an answer is ready: "wait" waits for the stream (`.cpu()`), "event"
    # for an event after a copy into pinned memory, as vLLM does.
    end = "wait"
    # Sizes of requests that differ (record.py --varied).
    sizes = ()

    def take(self, size):
        """The next requests have this size; `None`: that of all others."""

    def prepare(self, model, mode):
        """Puts the model on the GPU in the mode; for training with an optimizer."""
        model = model.cuda()
        self.model = model.train() if mode == "train" else model.eval().requires_grad_(False)
        self.optimizer = self.make_optimizer() if mode == "train" else None
        return self.model

    def make_optimizer(self):
        return torch.optim.SGD(self.model.parameters(), lr=self.learning_rate, momentum=0.9)

    def infer(self):
        """One request, for whose answer a client waits."""
        with torch.inference_mode():
            return self.on_host(self.request())

    def on_host(self, answer):
        """The answer on the host, detected according to `end`."""
        if self.end == "wait":
            return answer.cpu()
        copied = torch.cuda.Event()
        on_host = answer.to("cpu", non_blocking=True)
        copied.record()
        copied.synchronize()
        return on_host

    def train(self):
        """One iteration. The loss is read, as in training loops that print it."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def request(self):
        raise NotImplementedError

    def loss(self):
        raise NotImplementedError
