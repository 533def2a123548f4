"""The softmax's products on a CPU with factors rounded to bf16: near the exact ones, and only where
asked for."""

import pytest
import torch
from torch import Tensor

from posrec.training import epoch
from posrec.training.epoch import MANY_ITEMS, matmul_precision
from posrec.training.settings import Settings
from posrec.training.softmax import (
    rounded_table_products,
    softmax_loss,
    table_products,
)

ITEMS = 3000
D = 32


def loss_and_gradients(chunk: int | None) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    sessions = (torch.randn(20, D) / D**0.25).requires_grad_()
    table = (torch.randn(ITEMS, D) / D**0.25).requires_grad_()
    targets = torch.randint(1, ITEMS + 1, (20,))
    loss = softmax_loss(ITEMS, chunk)(sessions, table, targets)
    return loss.detach(), *torch.autograd.grad(loss.mean(), [sessions, table])


@pytest.mark.parametrize("chunk", [None, 512], ids=["full", "chunked"])
def test_losses_and_gradients_stay_near(chunk: int | None) -> None:
    exact_loss, *exact_gradients = loss_and_gradients(chunk)
    with rounded_table_products(True):
        loss, *gradients = loss_and_gradients(chunk)
    # bf16 has 8 bits: a factor is off by at most 1/256, and errors of D terms partly cancel.
    assert (loss - exact_loss).abs().max() < 0.02
    for rounded, exact in zip(gradients, exact_gradients, strict=True):
        assert (rounded - exact).norm() < 0.01 * exact.norm()
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(
    ("precision", "amx", "items", "rounds"),
    [
        ("fp32", True, 10**6, False),
        ("bf16", False, 1, True),
        ("auto", True, MANY_ITEMS, True),
        ("auto", True, MANY_ITEMS - 1, False),
        ("auto", False, 10**6, False),
    ],
)
def test_precision_decides(
    monkeypatch: pytest.MonkeyPatch, precision: str, amx: bool, items: int, rounds: bool
) -> None:
    monkeypatch.setattr(epoch, "has_amx", lambda: amx)
    settings = Settings(precision=precision)
    with matmul_precision(settings, torch.device("cpu"), items):
        before = torch.get_float32_matmul_precision()
        with table_products():
            assert (torch.get_float32_matmul_precision() == "medium") == rounds
        assert before == torch.get_float32_matmul_precision() == "highest"
