"""Matrix products where torch's own are slow: linear layers over packed rows, and batches of small products.

`linear` has a backward pass of one kernel on a GPU where there are few rows; cuBLAS is faster where there are many.
`batched_product` is for CPUs without MKL: there torch calls a matrix product once for each pair, and the calls take
longer than the arithmetic. Transposed views, as in attention's Q K^T and in the gradient of every product, are slower
still. NumPy computes the whole batch in one call.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from posrec import kernels

if torch.cuda.is_available():
    from posrec.kernels.linear import linear as fused_linear

# Up to so many rows the kernel computes the backward pass. It was made for about 500 rows; at 5,120 (posrec-plus, H200)
# it takes 68 us a layer on average, and cuBLAS about half of that.
FEW_ROWS = 1024


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """`layer(x)` for x [T, in]."""
    if kernels.serve(x) and x.dim() == 2 and len(x) <= FEW_ROWS:
        return fused_linear(x, layer.weight, layer.bias)
    y: Tensor = layer(x)
    return y


HAS_MKL = bool(torch.backends.mkl.is_available())  # type: ignore[no-untyped-call]


def batched_product(a: Tensor, b: Tensor) -> Tensor:
    """a [..., n, k] @ b [..., k, m]."""
    if a.device.type != "cpu" or HAS_MKL or torch.compiler.is_compiling():
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
