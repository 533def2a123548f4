"""A model is restored from settings and weights that fit each other, and from no others."""

import pytest
import torch

from posrec.errors import InputError
from posrec.models.registry import MODELS
from posrec.models.restore import WrongWeights, check_shapes, restore_model

TRAINED = [name for name, spec in MODELS.items() if spec.is_trained]


@pytest.mark.parametrize("name", list(MODELS))
def test_every_model_has_its_shapes_without_its_memory(name: str) -> None:
    """A model that can't be built on the meta device would be built for any number of items that
    config.json names."""
    spec = MODELS[name]
    with torch.device("meta"):
        planned = spec.build(30, spec.config()).state_dict()
    built = spec.build(30, spec.config()).state_dict()
    assert planned.keys() == built.keys()
    for name, tensor in planned.items():
        assert tensor.shape == built[name].shape


@pytest.mark.parametrize("name", TRAINED)
def test_weights_of_more_items_do_not_fit(name: str) -> None:
    spec = MODELS[name]
    weights = spec.build(31, spec.config()).state_dict()
    restore_model(spec, 31, {}, weights)
    with pytest.raises(WrongWeights, match=r"has the shape \[.*\], not \["):
        restore_model(spec, 1 << 40, {}, weights)
    with pytest.raises(WrongWeights, match="is missing"):
        check_shapes(spec, 31, spec.config(), {})


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("d", "16", "d must be a whole number, not '16'"),
        ("d", 2.5, "d must be a whole number, not 2.5"),
        ("d", True, "d must be a whole number, not True"),
        ("dropout", float("inf"), "dropout must be a finite number, not inf"),
        ("encoding", None, "encoding must be text, not None"),
        ("anchors", 1, "anchors must be true or false, not 1"),
        ("layers", 10**9, "too few for 1000000000 layers"),
    ],
)
def test_settings_of_another_type_are_refused(
    setting: str, value: object, message: str
) -> None:
    spec = MODELS["posrec"]
    weights = spec.build(30, spec.config()).state_dict()
    with pytest.raises(InputError, match=message):
        restore_model(spec, 30, {setting: value}, weights)
