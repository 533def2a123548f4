"""Batches of small products agree with torch's own product."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from posrec.nn.layers.matmul import Product, batched_product

WAYS = [batched_product, Product.apply]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("transposed", [False, True])
def test_the_product_and_its_gradients(way: Callable[[Tensor, Tensor], Tensor], transposed: bool) -> None:
    a = torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    b = torch.randn(2, 3, 6, 5, dtype=torch.float64, requires_grad=True)
    other = b.mT if transposed else b.mT.clone()
    assert torch.allclose(way(a, other), a @ b.mT)
    assert torch.autograd.gradcheck(lambda x, y: way(x, y.mT), (a, b))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_keeps_the_dtype(way: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> None:
    a, b = torch.randn(3, 4, 5).to(dtype), torch.randn(3, 5, 2).to(dtype)
    product = way(a, b)
    assert product.dtype == dtype
    assert torch.allclose(product.float(), a.float() @ b.float(), atol=0.05)


@pytest.mark.parametrize("shape", [(0, 4, 5), (3, 0, 5), (3, 4, 0)])
def test_empty_matrices(shape: tuple[int, int, int]) -> None:
    a, b = torch.randn(shape), torch.randn(shape[0], shape[2], 2)
    assert torch.equal(Product.apply(a, b), a @ b)
