"""The training loss has a gradient for every weight of a trained model, with settings that are not
defaults too."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from posrec.models.base import SessionModel
from posrec.models.registry import MODELS
from posrec.nn.batch import SessionBatch
from posrec.testing import known_settings
from tests.models.checks import ITEMS, WITH_UNKNOWN, build

CASES: list[tuple[str, dict[str, Any]]] = [
    ("posrec", {}),
    ("bprmf", {}),
    ("fpmc", {}),
    ("gru4rec", {}),
    ("gru4rec", {"layers": 3}),
    ("gru4rec", {"hidden": 4}),
    ("gru4rec", {"tied": False, "layers": 2}),
    ("gru4rec", {"truncated": False}),
    ("narm", {}),
    ("narm", {"softmax": False}),
    ("stamp", {}),
    ("stamp", {"add_mean": True}),
    ("stamp", {"encoding": "ldpe"}),
    ("stamp", {"encoding": "rpe"}),
    ("srgnn", {}),
    ("srgnn", {"anchors": True}),
    ("fgnn", {"layers": 3}),
    ("fgnn", {"layers": 3, "anchors": True}),
    ("gcsan", {"layers": 2}),
    ("gcsan", {"layers": 2, "anchors": True}),
    *(("sasrec", {"encoding": name}) for name in ("lpe", "ldpe", "rpe", "none")),
]


@pytest.mark.parametrize(("name", "changes"), CASES, ids=str)
def test_every_weight_has_a_gradient_that_a_capacity_does_not_change(
    name: str, changes: dict[str, Any]
) -> None:
    spec = MODELS[name]
    small = known_settings(spec, {"d": 8, "hidden": 8, "max_length": 9})
    model = build(spec.build, spec.config(), **{**small, **changes})
    # At this width the initial weights would leave next to nothing after some layers.
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    batch = SessionBatch.of(WITH_UNKNOWN)
    capacity = sum(map(len, WITH_UNKNOWN)) + 7
    expected = gradients(model, batch)
    of_capacity = gradients(model, replace(batch, capacity=capacity))
    for weight, gradient in expected.items():
        assert gradient is not None, weight
        assert gradient.abs().max() > 1e-9, weight
        other = of_capacity[weight]
        assert other is not None, weight
        assert torch.allclose(gradient, other, rtol=1e-6, atol=1e-9), weight


def gradients(model: SessionModel, batch: SessionBatch) -> dict[str, Tensor | None]:
    model.zero_grad()
    vectors, table = model.vectors(batch)
    (vectors @ table[:ITEMS].T).log_softmax(1)[:, 0].sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}
