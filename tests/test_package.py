"""The wheel has every file of the package, and the source distribution every file of the repository."""

import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.helpers import ROOT, SOURCE, module_at


@pytest.fixture(scope="module")
def package() -> ModuleType:
    return module_at(ROOT / ".ci" / "package.py")


def test_package_data_names_every_file_that_is_not_python() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    home = SOURCE / "posrec"
    named = {path for pattern in settings["package-data"]["posrec"] for path in home.glob(pattern)}
    others = {path for path in home.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert home / "py.typed" in others
    assert named == others


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for path in (SOURCE / "posrec").rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


@pytest.mark.process
def test_the_manifest_names_every_tracked_file() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split(
        "\n"
    )
    words = [line.split() for line in (ROOT / "MANIFEST.in").read_text().splitlines()]
    grafted = tuple(f"{folder}/" for line in words if line[:1] == ["graft"] for folder in line[1:])
    included = {name for line in words if line[:1] == ["include"] for name in line[1:]}
    by_setuptools = {"MANIFEST.in", "README.md", "LICENSE", "pyproject.toml"}
    missing = {name for name in listed if name and not name.startswith((*grafted, "src/"))} - included - by_setuptools
    assert missing == set()


def test_a_wheel_with_other_files_is_refused(package: ModuleType, tmp_path: Path) -> None:
    files = [path for path in (SOURCE / "posrec").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    names = [path.relative_to(SOURCE).as_posix() for path in files]
    for wheel, packed in (("good.whl", names), ("bad.whl", [*names[1:], "tests/test_package.py"])):
        with zipfile.ZipFile(tmp_path / wheel, "w") as archive:
            for name in [*packed, "posrec-0.1.0.dist-info/METADATA"]:
                archive.writestr(name, "")
    package.check_wheel(tmp_path / "good.whl")
    with pytest.raises(SystemExit, match=f"{names[0]} is missing\n  tests/test_package.py does not belong there"):
        package.check_wheel(tmp_path / "bad.whl")


@pytest.mark.process
def test_a_source_distribution_without_tests_is_refused(package: ModuleType, tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as archive:
        archive.add(ROOT / "README.md", "posrec-0.1.0/README.md")
    with pytest.raises(SystemExit, match=r"tests/test_package\.py is missing"):
        package.check_sdist(tmp_path / "bad.tar.gz")
