"""The training loss has a gradient for every weight of a trained model, with settings that are not
defaults too."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from posrec.models.registry import MODELS
from posrec.nn.batch import SessionBatch
from posrec.testing import known_settings
from tests.models.checks import ITEMS, WITH_UNKNOWN

CASES: dict[str, list[dict[str, Any]]] = {
    "posrec": [{}],
    "bprmf": [{}],
    "fpmc": [{}],
    "gru4rec": [
        {},
        {"layers": 3},
        {"hidden": 4},
        {"tied": False, "layers": 2},
        {"truncated": False},
    ],
    "narm": [{}, {"softmax": False}],
    "stamp": [{}, {"add_mean": True}, {"encoding": "ldpe"}, {"encoding": "rpe"}],
    "srgnn": [{}, {"anchors": True}],
    "fgnn": [{"layers": 3}, {"layers": 3, "anchors": True}],
    "gcsan": [{"layers": 2}, {"layers": 2, "anchors": True}],
    "sasrec": [{"encoding": name} for name in ("lpe", "ldpe", "rpe", "none")],
}


@pytest.mark.parametrize(
    ("name", "changes"),
    [(name, one) for name, some in CASES.items() for one in some],
    ids=str,
)
def test_every_weight_has_a_gradient_that_a_capacity_does_not_change(
    name: str, changes: dict[str, Any]
) -> None:
    spec = MODELS[name]
    small = known_settings(spec, {"d": 8, "hidden": 8, "max_length": 9})
    torch.manual_seed(3)
    model = (
        spec.build(ITEMS, replace(spec.config(), **{**small, **changes}))
        .double()
        .eval()
    )
    for weight in model.parameters():  # at this width the initial weights would leave next to nothing after some layers
        torch.nn.init.normal_(weight, std=0.5)
    made = SessionBatch.of(WITH_UNKNOWN)
    gradients = []
    for batch in (made, replace(made, capacity=sum(map(len, WITH_UNKNOWN)) + 7)):
        model.zero_grad()
        vectors, table = model.vectors(batch)
        (vectors @ table[:ITEMS].T).log_softmax(1)[:, 0].sum().backward()
        gradients.append(
            {name: parameter.grad for name, parameter in model.named_parameters()}
        )
    for weight, gradient in gradients[0].items():
        assert gradient is not None, weight
        assert gradient.abs().max() > 1e-9, weight
        assert torch.allclose(gradient, gradients[1][weight], rtol=1e-6, atol=1e-9), (
            weight
        )
