"""Products of many small matrices.

Some CPU libraries take a path many times slower where the second matrix is transposed in place, which is what
attention's Q K^T and the gradient of every product ask for; here it is copied first.
"""

from typing import Any

import torch
from torch import Tensor


def batched_product(a: Tensor, b: Tensor) -> Tensor:
    """a [..., n, k] @ b [..., k, m]."""
    if a.device.type != "cpu":
        return a @ b
    product: Tensor = ContiguousProduct.apply(a, b)  # type: ignore[no-untyped-call]
    return product


class ContiguousProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a.contiguous() @ b.contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        (gradient,) = gradients
        of_a = gradient.contiguous() @ b.mT.contiguous() if ctx.needs_input_grad[0] else None
        of_b = a.mT.contiguous() @ gradient.contiguous() if ctx.needs_input_grad[1] else None
        return of_a, of_b
