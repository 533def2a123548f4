"""The softmax's products on a CPU with factors rounded to bf16: near the exact ones, and only where
asked for."""

import pytest
import torch
from torch import Tensor

from posrec.nn.items.table_products import rounded_table_products, table_products
from posrec.training import epoch
from posrec.training.epoch import MANY_ITEMS, matmul_precision
from posrec.training.settings import Settings
from posrec.training.softmax import softmax_loss

ITEMS = 3000
D = 32
CPU = torch.device("cpu")
losses = pytest.mark.parametrize(
    "softmax", [softmax_loss(ITEMS), softmax_loss(ITEMS, 512)], ids=["full", "chunked"]
)


def loss_and_gradients(
    softmax, sessions: Tensor, table: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    sessions = sessions.clone().requires_grad_()
    table = table.clone().requires_grad_()
    loss = softmax(sessions, table, targets)
    loss.mean().backward()
    return loss.detach(), sessions.grad, table.grad


@losses
def test_losses_and_gradients_stay_near(softmax) -> None:
    torch.manual_seed(0)
    given = (
        torch.randn(20, D) / D**0.25,
        torch.randn(ITEMS, D) / D**0.25,
        torch.randint(1, ITEMS + 1, (20,)),
    )
    exact = loss_and_gradients(softmax, *given)
    with rounded_table_products(True):
        rounded = loss_and_gradients(softmax, *given)
    # bf16 has 8 bits: a factor is off by at most 1/256, and errors of D terms partly cancel.
    assert (rounded[0] - exact[0]).abs().max() < 0.02
    for near, true in zip(rounded[1:], exact[1:], strict=True):
        assert (near - true).norm() < 0.01 * true.norm()
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
    with matmul_precision(Settings(precision=precision), CPU, items):
        before = torch.get_float32_matmul_precision()
        with table_products():
            assert (torch.get_float32_matmul_precision() == "medium") == rounds
        assert before == torch.get_float32_matmul_precision() == "highest"
