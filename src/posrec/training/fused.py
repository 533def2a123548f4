"""A training step on a GPU that computes softmax and Adam of the item table by fused kernels, `kernels/table.py`.

The table holds nearly all the weights, and its gradient is dense: writing it in the softmax and reading it in the
optimiser would be most of a step's work. Here only the encoder goes through autograd, and its weights are updated by
one compiled kernel. The optimiser's state stays where torch.optim.Adam keeps it, so checkpoints are the same.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from posrec.kernels.table import adam, softmax
from posrec.nn.batch import SessionBatch


class FusedStep:
    """`encode` computes the session vectors [B, d] of a batch; `table` is the parameter with the item vectors."""

    def __init__(
        self,
        encode: Callable[[SessionBatch], Tensor],
        table: nn.Parameter,
        items: int,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self.encode, self.table, self.items, self.optimizer = encode, table, items, optimizer
        (self.options,) = optimizer.param_groups
        parameters: list[nn.Parameter] = self.options["params"]
        for parameter in parameters:
            if not optimizer.state[parameter]:
                optimizer.state[parameter] = {
                    "step": torch.zeros((), device=table.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
        self.others = [parameter for parameter in parameters if parameter is not table]
        self.adam_of_many = torch.compile(adam_of_many, dynamic=False)

    def __call__(self, batch: SessionBatch, shares: Tensor) -> Tensor:
        """Run one step; returns the loss of each sample, [B]."""
        self.optimizer.zero_grad(set_to_none=True)
        sessions = self.encode(batch)
        assert batch.targets is not None
        state = self.optimizer.state[self.table]
        with torch.no_grad():
            vectors = sessions.detach().contiguous()
            result = softmax(vectors, self.table, self.items, batch.targets, shares, state["step"])
        torch.autograd.backward(sessions, result.gradient)
        with torch.no_grad():
            self.update_others()
            adam(
                self.table, self.table.grad, state, self.options, self.items, vectors, batch.targets, shares,
                result.logs,
            )  # fmt: skip
        return result.losses

    def update_others(self) -> None:
        trained = [parameter for parameter in self.others if parameter.grad is not None]
        if not trained:
            return
        gradients = [parameter.grad for parameter in trained]
        first, second, steps = (
            [self.optimizer.state[parameter][name] for parameter in trained]
            for name in ("exp_avg", "exp_avg_sq", "step")
        )
        options, (beta1, beta2) = self.options, self.options["betas"]
        self.adam_of_many(
            trained, gradients, first, second, steps,
            options["lr"], options["weight_decay"], beta1, beta2, options["eps"],
        )  # fmt: skip


def adam_of_many(
    parameters: list[Any], gradients: list[Any], first: list[Tensor], second: list[Tensor], steps: list[Tensor],
    rate: Tensor, l2: float, beta1: float, beta2: float, epsilon: float,
) -> None:  # fmt: skip
    """Adam (Kingma and Ba, 2015; l2 added to the gradient) for many small tensors, compiled into one kernel."""
    torch._foreach_add_(steps, 1)
    whole = torch._foreach_add(gradients, parameters, alpha=l2)
    torch._foreach_lerp_(first, whole, 1 - beta1)
    torch._foreach_mul_(second, beta2)
    torch._foreach_addcmul_(second, whole, whole, value=1 - beta2)
    unbiased1, unbiased2 = 1 - beta1 ** steps[0], 1 - beta2 ** steps[0]
    roots = torch._foreach_sqrt(torch._foreach_div(second, unbiased2))
    torch._foreach_add_(roots, epsilon)
    torch._foreach_addcdiv_(parameters, torch._foreach_mul(first, -rate / unbiased1), roots)
