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
    report = json.loads(done.out)
    assert report["posrec"] == posrec.__version__
    assert report["threads"] == torch.get_num_threads()
    versions = {package["name"]: package["version"] for package in report["required"]}
    assert versions["torch"] == metadata.version("torch")
    assert min(report["memory"], report["free_disk"]) > 0
    assert f"{metadata.version('polars')} (posrec needs >=" in command("doctor").out


def test_every_extra_of_the_package_is_described() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    assert set(diagnosis.EXTRAS) == extras - {"dev", "docs"}
    (package,) = diagnosis.packages_of("scale")
    assert (package["name"], package["wanted"]) == ("faiss-cpu", ">=1.10")


def test_what_is_missing_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    version = diagnosis.installed_version

    def without_two(name: str) -> str | None:
        return None if name in ("faiss-cpu", "polars") else version(name)

    monkeypatch.setattr(diagnosis, "installed_version", without_two)
    done = command("doctor")
    assert "pip install 'posrec[scale]'" in done.out
    assert "polars is required" in done.out.replace("\n", " ")


def test_it_works_from_the_source_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", nothing)
    assert diagnosis.packages_of(None) == []
