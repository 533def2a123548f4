"""A setting outside its range is an error that names it, whatever the model."""

import math
import re
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import torch

from posrec.config import Declaration, declarations, setting
from posrec.errors import InputError
from posrec.models.registry import MODELS
from posrec.nn.batch import SessionBatch


def settings_of(kind: type) -> list[tuple[str, str]]:
    return [
        (model, field.name)
        for model, spec in MODELS.items()
        for field in fields(spec.config)
        if type(getattr(spec.config(), field.name)) is kind
    ]


@pytest.mark.parametrize(("model", "setting"), settings_of(int))
def test_every_whole_number_has_a_least_value(model: str, setting: str) -> None:
    least = dict(declarations(MODELS[model].config))[setting].at_least
    assert least == 1 or (least == 0 and setting in ("layers", "steps"))


@pytest.mark.parametrize(("model", "setting"), settings_of(float))
def test_every_number_is_finite(model: str, setting: str) -> None:
    spec = MODELS[model]
    with pytest.raises(
        InputError, match=f"^{setting} must be a finite number, not nan$"
    ):
        spec.build(5, replace(spec.config(), **{setting: float("nan")}))


def outside(declared: Declaration) -> list[Any]:
    """Values just outside what a setting allows."""
    if declared.choices:
        return ["steep"]
    low, high = declared.between
    numbers = (
        declared.at_least - 1,
        declared.above,
        declared.at_most + 1,
        declared.below,
        low - 1,
        high + 1,
    )
    return [number for number in numbers if math.isfinite(number)]


@pytest.mark.parametrize(
    ("model", "setting", "value"),
    [
        (model, name, value)
        for model, spec in MODELS.items()
        for name, declared in declarations(spec.config)
        for value in outside(declared)
    ],
)
def test_a_value_outside_the_declared_range_is_refused(
    model: str, setting: str, value: Any
) -> None:
    spec = MODELS[model]
    with pytest.raises(InputError, match=f"^{setting} must be .*, not {value!r}$"):
        spec.build(5, replace(spec.config(), **{setting: value}))


DROPOUTS = [
    (model, name)
    for model, name in settings_of(float)
    if "dropout" in name and name != "id_dropout"
]


@pytest.mark.parametrize(("model", "setting"), DROPOUTS)
def test_dropout_is_applied_in_training_only(model: str, setting: str) -> None:
    spec = MODELS[model]
    batch = SessionBatch.of([[1, 2, 3, 2], [4, 5]])
    scores = []
    none = {name: 0.0 for other, name in DROPOUTS if other == model}
    for share in (0.0, 0.5):
        torch.manual_seed(0)
        config = replace(spec.config(), **{**none, setting: share})
        built = spec.build(5, config)
        scores.append(built.eval().scores(batch))
    assert torch.equal(*scores)
    built.train()
    assert not torch.equal(built.scores(batch), built.scores(batch))


@dataclass(frozen=True)
class OwnConfig:
    d: int = 8
    rate: float = setting(0.5, above=0, below=1)
    steps: int = setting(2, at_most=9)
    kind: str = setting("a", choices=("a", "b"))
    seed: int | None = None
    max_length: int = 20


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rate": 1.0}, "rate must be above 0 and below 1, not 1.0"),
        ({"steps": 10}, "steps must be at most 9, not 10"),
        ({"kind": "c"}, "kind must be one of a, b, not 'c'"),
        ({"d": 2.5}, "d must be a whole number, not 2.5"),
        ({"seed": 0.5}, "seed must be a whole number or none, not 0.5"),
        ({"rate": "0.5"}, "rate must be a number, not '0.5'"),
        ({"max_length": 0}, "max_length must be at least 1, not 0"),
        ({"rate": float("inf")}, "rate must be a finite number, not inf"),
    ],
)
def test_ranges_of_ones_own_config(changed: dict[str, Any], message: str) -> None:
    spec = replace(MODELS["bprmf"], config=OwnConfig)
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        spec.build(5, replace(OwnConfig(), **changed))
    allowed = replace(OwnConfig(), rate=0.999, steps=9, kind="b", d=1)
    assert spec.build(5, allowed).config.d == 1


def test_a_config_without_max_length_is_refused() -> None:
    @dataclass(frozen=True)
    class Short:
        d: int = 8

    with pytest.raises(InputError, match="Short must have a field max_length"):
        replace(MODELS["bprmf"], config=Short).build(5, Short())
