"""The initial weights of models that have the setting `spread`."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from posrec.models.registry import MODELS

WITH_SPREAD = [
    name for name, spec in MODELS.items() if hasattr(spec.config(), "spread")
]


@pytest.mark.parametrize("name", WITH_SPREAD)
def test_weights_have_the_spread_and_biases_are_zero(name: str) -> None:
    torch.manual_seed(0)
    spec = MODELS[name]
    model = spec.build(500, replace(spec.config(), spread=0.03))
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if isinstance(module, nn.LayerNorm):
                assert set(parameter.unique().tolist()) <= {0.0, 1.0}
            elif parameter.dim() == 1:
                assert not parameter.any()
            elif parameter.numel() >= 1000:
                assert parameter.std().item() == pytest.approx(0.03, rel=0.1)


@pytest.mark.parametrize("name", WITH_SPREAD)
def test_without_a_spread_weights_are_bounded(name: str) -> None:
    spec = MODELS[name]
    model = spec.build(500, spec.config())
    largest = max(
        parameter.abs().max().item()
        for parameter in model.parameters()
        if parameter.numel() >= 1000
    )
    assert 0.05 < largest <= 0.15  # 1 / sqrt(width), for widths of 50 to 100
