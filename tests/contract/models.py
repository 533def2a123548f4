"""The models under contract: every entry of the registry, and the one that docs/own_model.md adds
from outside."""

import re
from typing import Any

from posrec.models.registry import MODELS as REGISTERED, ModelSpec
from tests.helpers import ROOT


def page_model() -> str:
    """The text of the model on the documentation's page."""
    page = (ROOT / "docs" / "own_model.md").read_text(encoding="utf-8")
    block = re.search(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert block is not None
    return block[1]


def own_spec() -> ModelSpec:
    names: dict[str, Any] = {"__name__": __name__}
    exec(page_model(), names)
    spec = names["RECENCY"]
    assert isinstance(spec, ModelSpec)
    return spec


MODELS: dict[str, ModelSpec] = {**REGISTERED, "own": own_spec()}
TRAINED = [name for name, spec in MODELS.items() if spec.is_trained]
