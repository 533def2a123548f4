"""The last layer computes only the rows that are read, and they are the same as when it computes all."""

import pytest
import torch
from torch import nn

from posrec.nn.layers.transformer import TransformerLayer, apply_layers
from posrec.nn.packing import pack


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_the_rows_that_are_read_are_those_of_the_whole_layer(layers: int) -> None:
    torch.manual_seed(0)
    stack = nn.ModuleList(TransformerLayer(8, 2, 16) for _ in range(layers)).double()
    packing = pack(torch.tensor([[True, True, True], [True, False, False], [True, True, False]]))
    x = torch.randn(6, 8, dtype=torch.double, requires_grad=True)
    rows = torch.tensor([2, 3, 5, 0, 3, 4])  # the last of each session, then the first
    whole = x
    for layer in stack:
        whole = layer(whole, packing, None)
    some = apply_layers(stack, x, rows, packing, None)
    assert torch.allclose(some, whole[rows], atol=1e-12)
    weights = torch.randn(6, 8, dtype=torch.double)
    (expected,) = torch.autograd.grad((whole[rows] * weights).sum(), x)
    (given,) = torch.autograd.grad((some * weights).sum(), x)
    assert torch.allclose(given, expected, atol=1e-12)
