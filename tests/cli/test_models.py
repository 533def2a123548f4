"""`posrec models`: the models and their settings."""

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
    listed = json.loads(command("models", name, "--json").out)
    defaults = {key: setting["default"] for key, setting in listed.items()}
    assert vars(spec.config()).items() <= defaults.items()
    assert spec.settings.items() <= defaults.items()
    assert ("batch_size" in listed) == spec.is_trained
    table = command("models", name).out
    for key, setting in listed.items():
        assert setting["meaning"]
        assert "](" not in setting["meaning"]
        assert key in table


def test_settings_of_a_model_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "my_model.py"
    file.write_text(OWN)
    done = command("models", f"{file}:MINE", "--json")
    assert done.code == 0, done.err
    listed = json.loads(done.out)
    meanings = {key: setting["meaning"] for key, setting in listed.items()}
    assert meanings["window"] == "days that are [bold]counted[/]; at least 1"
    assert meanings["kind"] == "of day; one of plain, fancy"
    assert meanings["other"] == ""
    assert listed["other"]["default"] == 0.5
    assert "[bold]counted[/]" in command("models", f"{file}:MINE").out
