"""The last layer computes only the rows that are read, and they are the same as when it computes
all. Dropout takes sixteen random bits for each number."""

import pytest
import torch
from torch import nn

from posrec.nn.layers.transformer import Dropout, TransformerLayer, apply_layers
from posrec.nn.packing import pack


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_the_rows_that_are_read_are_those_of_the_whole_layer(layers: int) -> None:
    torch.manual_seed(0)
    stack = nn.ModuleList(TransformerLayer(8, 2, 16) for _ in range(layers)).double()
    lengths = torch.tensor([[3], [1], [2]])
    packing = pack(torch.arange(3) < lengths)
    x = torch.randn(6, 8, dtype=torch.double, requires_grad=True)
    rows = torch.tensor([2, 3, 5, 0, 3, 4])  # the last of each session, then the first
    every = x
    for layer in stack:
        every = layer(every, packing, None)
    some = apply_layers(stack, x, rows, packing, None)
    assert torch.allclose(some, every[rows], atol=1e-12)
    weights = torch.randn(6, 8, dtype=torch.double)
    (expected,) = torch.autograd.grad((every[rows] * weights).sum(), x)
    (gradient,) = torch.autograd.grad((some * weights).sum(), x)
    assert torch.allclose(gradient, expected, atol=1e-12)


@pytest.mark.parametrize("share", [0.1, 0.35, 0.5])
def test_the_share_that_is_dropped_and_the_scale_of_the_rest(share: float) -> None:
    torch.manual_seed(0)
    output = Dropout(share)(torch.ones(401, 501))  # an odd number of elements
    dropped = (output == 0).double()
    assert float(dropped.mean()) == pytest.approx(share, abs=0.005)
    assert torch.allclose(output[output != 0], torch.tensor(1 / (1 - share)))
    assert dropped.mean(1).std() < 0.03  # no pattern along either side
    assert dropped.mean(0).std() < 0.03


def test_the_gradient_is_that_of_the_same_draw_and_a_seed_repeats_it() -> None:
    x = torch.randn(5, 7, dtype=torch.double, requires_grad=True)
    torch.manual_seed(1)
    output = Dropout(0.4)(x)
    output.sum().backward()
    assert torch.allclose(x.grad * x.detach(), output.detach())
    torch.manual_seed(1)
    assert torch.equal(Dropout(0.4)(x), output)


def test_nothing_is_dropped_in_evaluation_or_with_a_share_of_0() -> None:
    x = torch.randn(9)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
