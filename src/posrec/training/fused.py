"""A training step on a GPU that computes softmax and Adam of the item table by fused kernels (`kernels/table.py`,
`kernels/table_update.py`).

The table holds nearly all the weights, and its gradient is dense: writing it in the softmax and reading it in the
optimiser would be most of a step's work. Here only the encoder computes gradients that are written. The optimiser's
state stays where torch.optim.Adam keeps it, so checkpoints are the same.

The updates of the table and of the other weights are independent, so they are on streams of their own. If the encoder
computes no gradient for most rows of the table, most of its update comes earlier still (`early_update.py`).

Where several processes hold the table, each computes the softmax of all sessions over its own items, the results are
joined (`join_processes`), and each updates its own items.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posrec.kernels.table import Softmax, softmax
from posrec.kernels.table_update import KnownSoftmax, adam
from posrec.models.base import StepEncoder
from posrec.nn.batch import SessionBatch
from posrec.nn.table_rows import TableRows
from posrec.training.early_update import EarlyUpdate
from posrec.training.sharded_softmax import join_processes


class FusedStep:
    """`table` is the parameter with the item vectors, of which this process has `rows`; `sessions` is the size of a
    batch."""

    def __init__(
        self, encoder: StepEncoder, table: nn.Parameter, rows: TableRows, sessions: int,
        optimizer: torch.optim.Optimizer,
    ) -> None:  # fmt: skip
        self.encoder, self.table, self.rows = encoder, table, rows
        (self.options,) = optimizer.param_groups
        self.state = optimizer.state[table]
        self.beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.early: EarlyUpdate | None = None
        if encoder.sparse:
            self.early = EarlyUpdate(table, rows.held, sessions, self.state, self.options)

    @torch.no_grad()
    def __call__(self, batches: Sequence[SessionBatch], shares: Sequence[Tensor]) -> list[Tensor]:
        self.encoder.begin()
        if self.early is not None:
            self.early.begin(batches)
        losses = [self.step(batch, own) for batch, own in zip(batches, shares, strict=True)]
        if self.early is not None:
            self.early.finish_first_rows()
        return losses

    def step(self, batch: SessionBatch, shares: Tensor) -> Tensor:
        """Run one step; returns the loss of each sample, [B]."""
        rows, world, early, here = self.rows, self.rows.world, self.early, torch.cuda.current_stream()
        assert batch.targets is not None
        vectors, targets = self.encoder.encode(batch), batch.targets
        if world is not None:
            vectors, targets, shares = (world.gathered(one) for one in (vectors, targets, shares))
            targets = (rows.local(targets - 1) + 1) % (len(rows) + 1)  # 0 for a target of another process
        if early is not None:
            early.finish_first_rows()
            self.beside.wait_stream(here)
            with torch.cuda.stream(self.beside):
                early.make_next_list()
        result = softmax(vectors, self.table, rows.held, targets, shares, self.state["step"])
        if world is not None and not world.is_alone:
            own = (result.losses, result.logs, result.gradient)
            result = Softmax(*join_processes(world, *own, self.table, targets, shares))
        known = KnownSoftmax(vectors, targets, shares, result.logs)
        softmax_done = here.record_event()
        of_table = self.encoder.backward(result.gradient)
        if early is not None:
            early.update_first_rows(known, softmax_done)
        self.beside.wait_stream(here)
        with torch.cuda.stream(self.beside):
            self.encoder.update(self.options, self.state["step"])
        if early is not None:
            assert of_table is not None
            early.update_other_rows(known, of_table)
        else:
            adam(self.table, of_table, self.state, self.options, known, 0, rows.held)
        here.wait_stream(self.beside)
        return result.losses


class CompiledEncoder:
    """The encoder of any model: its compiled `session_vectors`, and autograd for their gradients."""

    sparse = False

    def __init__(
        self,
        session_vectors: Callable[[SessionBatch], Tensor],
        table: nn.Parameter,
        optimizer: torch.optim.Optimizer,
        after_backward: Callable[[], None],
    ) -> None:
        self.session_vectors, self.table, self.optimizer = session_vectors, table, optimizer
        self.after_backward = after_backward
        (options,) = optimizer.param_groups
        self.others = [parameter for parameter in options["params"] if parameter is not table]
        self.adam_of_many = torch.compile(adam_of_many, dynamic=False)

    def begin(self) -> None:
        pass

    def encode(self, batch: SessionBatch) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.enable_grad():
            self.sessions = self.session_vectors(batch)
        return self.sessions.detach().contiguous()

    def backward(self, gradient: Tensor) -> Tensor | None:
        torch.autograd.backward(self.sessions, gradient)
        del self.sessions
        self.after_backward()
        return self.table.grad

    def update(self, options: dict[str, Any], step: Tensor) -> None:
        trained = [parameter for parameter in self.others if parameter.grad is not None]
        if not trained:
            return
        gradients = [parameter.grad for parameter in trained]
        first, second, steps = (
            [self.optimizer.state[parameter][name] for parameter in trained]
            for name in ("exp_avg", "exp_avg_sq", "step")
        )
        beta1, beta2 = options["betas"]
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
