"""The models under contract: every entry of the catalog, and the one that docs/own_model.md adds from outside."""

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posrec.models.registry import MODELS as REGISTERED
from posrec.models.registry import ModelSpec
from posrec.nn.batch import SessionBatch
from posrec.training.settings import Settings
from tests.helpers import ROOT

ITEMS = 37  # a prime, so that no other side of a tensor has as many
NARROW = {"d": 16, "hidden": 16}


def page_model() -> str:
    """The text of the model on the documentation's page."""
    page = (ROOT / "docs" / "own_model.md").read_text(encoding="utf-8")
    found = re.search(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def own_spec() -> ModelSpec:
    names: dict[str, Any] = {"__name__": __name__}
    exec(page_model(), names)
    spec = names["RECENCY"]
    assert isinstance(spec, ModelSpec)
    return spec


MODELS: dict[str, ModelSpec] = {**REGISTERED, "own": own_spec()}
TRAINED = [name for name, spec in MODELS.items() if spec.is_trained]


def settings_of(spec: ModelSpec, **wanted: Any) -> dict[str, Any]:
    """Those of the settings wanted that a model has; the others stay as its spec says, its loss for one."""
    known = {field.name for field in fields(spec.config)}
    if spec.is_trained:
        known |= {field.name for field in fields(Settings)}
    return {name: value for name, value in wanted.items() if name in known}


def sessions(count: int = 60, longest: int = 9) -> list[list[int]]:
    random = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, longest + 1, (count,), generator=random).tolist()
    return [torch.randint(1, ITEMS + 1, (length,), generator=random).tolist() for length in lengths]


def make(spec: ModelSpec, counted: list[list[int]] | None = None) -> nn.Module:
    """A small model that can score: having counted some sessions, or with random weights.

    The weights are larger than some models begin with, whose scores are nothing but rounding.
    """
    torch.manual_seed(2)
    model = spec.build(ITEMS, replace(spec.config(), **settings_of(spec, **NARROW)))
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    if not spec.is_trained:
        fitted_on = counted or sessions()
        ends = torch.tensor([0, *map(len, fitted_on)]).cumsum(0)
        clicks = [item for session in fitted_on for item in session]
        model.count(torch.tensor(clicks, dtype=torch.int32), ends)  # type: ignore[operator]
    return model.eval()


@torch.no_grad()
def scores(model: nn.Module, *of: list[int]) -> Tensor:
    return scores_of(model, SessionBatch.of(of))


@torch.no_grad()
def scores_of(model: nn.Module, batch: SessionBatch) -> Tensor:
    found: Tensor = model.scores(batch)  # type: ignore[operator]
    return found


def alike(one: Tensor, other: Tensor) -> bool:
    """Equal but for rounding."""
    return torch.allclose(one, other, rtol=1e-4, atol=1e-5)


def state(run: Path) -> dict[str, Tensor]:
    from posrec.training.checkpoint import load_tensors
    from posrec.training.loop import WEIGHTS

    return load_tensors(run / WEIGHTS)[0]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Equal to the bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
