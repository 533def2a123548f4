"""`posrec doctor`: what it finds, and that it knows every extra."""

import json
import tomllib
from importlib import metadata

import pytest
import torch

import posrec
from posrec import doctor as diagnosis
from tests.helpers import ROOT, command


def test_it_shows_versions_devices_and_extras() -> None:
    done = command("doctor", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["posrec"], found["threads"]) == (
        posrec.__version__,
        torch.get_num_threads(),
    )
    assert {one["name"]: one["version"] for one in found["required"]}[
        "torch"
    ] == metadata.version("torch")
    assert min(found["memory"], found["free_disk"]) > 0
    assert f"{metadata.version('polars')} (posrec needs >=" in command("doctor").out


def test_every_extra_of_the_package_is_described() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(diagnosis.EXTRAS) == set(project["optional-dependencies"]) - {
        "dev",
        "docs",
    }
    named = {
        package["name"]: package["wanted"] for package in diagnosis.packages_of("scale")
    }
    assert named == {"faiss-cpu": ">=1.10"}


def test_what_is_missing_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = {"faiss-cpu", "polars"}
    found_version = diagnosis.installed_version
    monkeypatch.setattr(
        diagnosis,
        "installed_version",
        lambda name: None if name in gone else found_version(name),
    )
    done = command("doctor")
    assert "pip install 'posrec[scale]' for posrec export --index" in done.out
    assert "polars is required" in done.out.replace("\n", " ")


def test_it_works_from_the_source_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", nothing)
    assert diagnosis.packages_of(None) == []
