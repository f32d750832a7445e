"""What every task offers to scripts/workloads/models.py."""

import torch


class Task:
    """A model with what it is fed. `infer()` answers one request, `train()` does one iteration; both end with the answer on the host.

    A subclass makes its model in `__init__(mode)` on the GPU and defines `request()` (returns a tensor on the device) and `loss()`.
    """

    learning_rate = 1e-3

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
            return self.request().cpu()

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
