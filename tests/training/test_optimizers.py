"""Adagrad and Adam: their steps by hand, and what a checkpoint and a warm start keep of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from posrec.training.checkpoint import load_state, save_state
from posrec.training.optimizers import (
    EPSILON,
    Adagrad,
    Optimizer,
    make_optimizer,
    set_learning_rate,
)
from posrec.training.settings import Settings
from posrec.training.start import Continuation, set_moments


def table_and_optimizer(
    optimizer: str = "adagrad", l2: float = 0.0, beta2: float = 0.999
) -> tuple[Any, Optimizer]:
    """A table of two rows, and an optimizer at a rate of 0.5."""
    model = nn.ParameterDict({"table": torch.tensor([[1.0, 2.0], [3.0, 4.0]])})
    settings = Settings(optimizer=optimizer, learning_rate=0.5, l2=l2, beta2=beta2)
    return model, make_optimizer(model, settings, torch.device("cpu"))


def step(model: Any, optimizer: Optimizer, gradient: float) -> list[float]:
    """The first row after a step with this gradient for its first weight, and 0 for all others."""
    model["table"].grad = torch.tensor([[gradient, 0.0], [0.0, 0.0]])
    optimizer.step()
    row: list[float] = model["table"][0].tolist()
    return row


@pytest.mark.parametrize("as_on_a_gpu", [False, True])
def test_steps_are_divided_by_the_root_of_all_squares_so_far(as_on_a_gpu: bool) -> None:
    model, optimizer = table_and_optimizer()
    if as_on_a_gpu:  # where a captured step reads the rate
        rate = torch.tensor(0.5)
        optimizer = Adagrad(model.parameters(), lr=rate, eps=EPSILON, foreach=True)
    first = 1 - 0.5 * 0.3 / (0.3 + EPSILON)
    assert step(model, optimizer, 0.3) == pytest.approx([first, 2])
    second = first + 0.5 * 0.4 / (0.5 + EPSILON)  # 0.3^2 + 0.4^2 = 0.5^2
    assert step(model, optimizer, -0.4) == pytest.approx([second, 2])
    set_learning_rate(optimizer, 0.1)
    third = second - 0.1 * 1.2 / (1.3 + EPSILON)
    assert step(model, optimizer, 1.2) == pytest.approx([third, 2])


def test_l2_is_added_to_the_gradient() -> None:
    model, optimizer = table_and_optimizer(l2=0.1)
    gradients = torch.tensor([0.3 + 0.1 * 1, 0.1 * 2])
    expected = torch.tensor([1.0, 2.0]) - 0.5 * gradients / (gradients + EPSILON)
    assert step(model, optimizer, 0.3) == pytest.approx(expected.tolist())


def test_a_resumed_run_goes_on_with_its_squares(tmp_path: Path) -> None:
    model, optimizer = table_and_optimizer()
    step(model, optimizer, 0.3)
    save_state(tmp_path, model, optimizer, {"epoch": 1})
    resumed, its_optimizer = table_and_optimizer()
    assert load_state(tmp_path, resumed, its_optimizer) == {"epoch": 1}
    expected = step(model, optimizer, 0.4)
    assert step(resumed, its_optimizer, 0.4) == pytest.approx(expected)


def test_a_warm_start_has_the_mean_of_each_row() -> None:
    model, optimizer = table_and_optimizer()
    step(model, optimizer, 0.8)
    saved = Continuation.of_training(model, optimizer, trained_until=7)
    assert saved.moments["table"].tolist() == pytest.approx([0.32, 0])
    later, its_optimizer = table_and_optimizer()
    set_moments(later, its_optimizer, saved.moments)
    root = (0.32 + 0.6**2) ** 0.5
    first = 1 - 0.5 * 0.6 / (root + EPSILON)
    assert step(later, its_optimizer, 0.6) == pytest.approx([first, 2])


def test_the_second_beta_of_adam() -> None:
    model, adam = table_and_optimizer("adam", beta2=0.75)
    assert step(model, adam, 0.3) == pytest.approx([0.5, 2])
    mean = (0.9 * 0.03 + 0.1 * 0.6) / 0.19  # 1 - 0.9^2
    squares = (0.75 * 0.0225 + 0.25 * 0.36) / 0.4375  # 1 - 0.75^2
    second = 0.5 - 0.5 * mean / squares**0.5
    assert step(model, adam, 0.6) == pytest.approx([second, 2], abs=1e-6)
