"""`posrec models`: the models, and what can be set of one."""

import json
from pathlib import Path

import pytest

from posrec.models.registry import MODELS
from tests.helpers import command

OWN = """
from dataclasses import dataclass

from posrec import ModelSpec, setting
from posrec.models.baselines.counting.popularity import Pop


@dataclass(frozen=True)
class MyConfig:
    max_length: int = 1
    window: int = setting(7, "days that are [bold]counted[/]", at_least=1)
    kind: str = setting("plain", "of `day`", choices=("plain", "fancy"))
    other: float = 0.5


MINE = ModelSpec(Pop, MyConfig, "my own")
"""


def test_every_model_is_listed() -> None:
    assert list(json.loads(command("models", "--json").out)) == list(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_settings_of_a_model_with_its_own_defaults(name: str) -> None:
    spec = MODELS[name]
    found = json.loads(command("models", name, "--json").out)
    assert {key: found[key]["default"] for key in vars(spec.config())} == vars(
        spec.config()
    )
    assert {key: found[key]["default"] for key in spec.settings} == spec.settings
    assert ("batch_size" in found) == spec.is_trained
    assert all(one["meaning"] and "](" not in one["meaning"] for one in found.values())
    shown = command("models", name).out
    assert all(key in shown for key in found)


def test_settings_of_a_model_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "my_model.py").write_text(OWN)
    done = command("models", f"{tmp_path / 'my_model.py'}:MINE", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["window"] == {
        "default": 7,
        "meaning": "days that are [bold]counted[/]; at least 1",
    }
    assert found["kind"] == {
        "default": "plain",
        "meaning": "of day; one of plain, fancy",
    }
    assert found["other"] == {"default": 0.5, "meaning": ""}
    assert (
        "[bold]counted[/]" in command("models", f"{tmp_path / 'my_model.py'}:MINE").out
    )
