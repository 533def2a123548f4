"""A training step on a GPU that computes softmax and Adam of the item table by fused kernels (`kernels/table.py`,
`kernels/table_update.py`).

The table holds nearly all the weights, and its gradient is dense: writing it in the softmax and reading it in the
optimiser would be most of a step's work. Here only the encoder computes gradients that are written. The optimiser's
state stays where torch.optim.Adam keeps it, so checkpoints are the same.

The updates of the table and of the other weights are independent, so they are on streams of their own.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from posrec.kernels.table import softmax
from posrec.kernels.table_update import KnownSoftmax, adam
from posrec.nn.batch import SessionBatch


class FusedStep:
    """`session_vectors` is the model's; `table` is the parameter whose first `items` rows are the item vectors. What is
    not a kernel of our own goes through `compile`."""

    def __init__(
        self,
        session_vectors: Callable[[SessionBatch], Tensor],
        table: nn.Parameter,
        items: int,
        optimizer: torch.optim.Optimizer,
        compile: Callable[[Any], Any],
    ) -> None:
        self.session_vectors, self.adam_of_others = compile(session_vectors), compile(adam_of_many)
        self.table, self.items, self.optimizer = table, items, optimizer
        (self.options,) = optimizer.param_groups
        self.others = [parameter for parameter in self.options["params"] if parameter is not table]
        self.beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, batch: SessionBatch, shares: Tensor) -> Tensor:
        """Run one step; returns the loss of each sample, [B]."""
        here, targets = torch.cuda.current_stream(), batch.targets
        assert targets is not None
        self.optimizer.zero_grad(set_to_none=True)
        sessions = self.session_vectors(batch)
        with torch.no_grad():
            vectors, state = sessions.detach().contiguous(), self.optimizer.state[self.table]
            result = softmax(vectors, self.table, self.items, targets, shares, state["step"])
            torch.autograd.backward(sessions, result.gradient)
            self.beside.wait_stream(here)
            with torch.cuda.stream(self.beside):
                self.update_others()
            known = KnownSoftmax(vectors, targets, shares, result.logs)
            adam(self.table, self.table.grad, state, self.options, known, self.items)
            here.wait_stream(self.beside)
        return result.losses

    def update_others(self) -> None:
        """Adam of all weights but the table."""
        trained = [parameter for parameter in self.others if parameter.grad is not None]
        if not trained:
            return
        first, second, steps = (
            [self.optimizer.state[parameter][name] for parameter in trained]
            for name in ("exp_avg", "exp_avg_sq", "step")
        )
        options, (beta1, beta2) = self.options, self.options["betas"]
        self.adam_of_others(
            trained, [parameter.grad for parameter in trained], first, second, steps,
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
