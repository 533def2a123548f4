"""Matrix products where torch's own are slow on a CPU: batches of small products, and products with item tables.

`batched_product` is for CPUs without MKL: there torch calls a matrix product once for each pair, and the calls take
longer than the arithmetic. Transposed views, as in attention's Q K^T and in the gradient of every product, are slower
still. NumPy computes the whole batch in one call.

`table_products` is for the products of a softmax over all items on a CPU: with bf16 rounding their factors are rounded
to 8 bits and the sums are in single precision, which CPUs with AMX compute in half the time. The other products of a
model are not rounded on a CPU: their shapes change with every batch, and oneDNN, which computes rounded products,
takes milliseconds to prepare for each new shape.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from posrec.nn.packing import is_eager_on_cpu

rounding: ContextVar[bool] = ContextVar("rounding", default=False)


@contextmanager
def rounded_table_products(rounded: bool) -> Iterator[None]:
    """In the block, `table_products` rounds, or does not."""
    token = rounding.set(rounded)
    try:
        yield
    finally:
        rounding.reset(token)


@contextmanager
def table_products() -> Iterator[None]:
    """Around products with an item table in single precision on a CPU."""
    if not rounding.get():
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


HAS_MKL = bool(torch.backends.mkl.is_available())  # type: ignore[no-untyped-call]


def batched_product(a: Tensor, b: Tensor) -> Tensor:
    """a [..., n, k] @ b [..., k, m]."""
    if HAS_MKL or not is_eager_on_cpu(a):
        return a @ b
    result: Tensor = Product.apply(a, b)  # type: ignore[no-untyped-call]
    return result


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return product(a, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        (gradient,) = gradients
        of_a = product(gradient, b.mT) if ctx.needs_input_grad[0] else None
        of_b = product(a.mT, gradient) if ctx.needs_input_grad[1] else None
        return of_a, of_b


def product(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype == b.dtype and a.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(a.numpy() @ b.numpy())
    return a.contiguous() @ b.contiguous()  # NumPy has no bf16
