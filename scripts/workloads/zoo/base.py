"""What every task offers to scripts/workloads/models.py."""

import torch


class Task:
    """A model with what it is fed. `infer()` answers one request, `train()` does one iteration; both end with the answer on the host.

    A subclass makes its model in `__init__(mode)` on the GPU and defines `request()` (returns a tensor on the device) and `loss()`.
    """

    learning_rate = 1e-3
    # How the host learns that an answer is there: "wait" for the stream (`.cpu()`), or by an "event" behind a copy into pinned memory, as vLLM does.
    end = "wait"

    def prepare(self, model, mode):
        """Puts the model on the GPU in the mode; with an optimizer where it is to be trained."""
        model = model.cuda()
        self.model = model.train() if mode == "train" else model.eval().requires_grad_(False)
        self.optimizer = self.make_optimizer() if mode == "train" else None
        return self.model

    def make_optimizer(self):
        return torch.optim.SGD(self.model.parameters(), lr=self.learning_rate, momentum=0.9)

    def infer(self):
        """One request: what a client waits for."""
        with torch.inference_mode():
            return self.on_host(self.request())

    def on_host(self, answer):
        """The answer on the host, learnt as `end` says."""
        if self.end == "wait":
            return answer.cpu()
        copied = torch.cuda.Event()
        on_host = answer.to("cpu", non_blocking=True)
        copied.record()
        copied.synchronize()
        return on_host

    def train(self):
        """One iteration. The loss is read, as training loops do that print it."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def request(self):
        raise NotImplementedError

    def loss(self):
        raise NotImplementedError
