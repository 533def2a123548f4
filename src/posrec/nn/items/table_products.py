"""Matrix products with item tables on a CPU, in the softmax over all items, with rounded factors.

With bf16 rounding the factors of these products are rounded to 8 bits and the sums are in single
precision, which CPUs with AMX compute in half the time. The other products of a model are not
rounded on a CPU: their shapes change with every batch, and oneDNN, which computes rounded products,
takes milliseconds to prepare for each new shape."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

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
