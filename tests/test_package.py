"""What is released: the files of both distributions, and the locked packages of the image."""

import re
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.helpers import ROOT, SOURCE, module_at

PACKAGE = SOURCE / "posrec"
package = module_at(ROOT / ".ci" / "package.py")
lock = module_at(ROOT / ".ci" / "lock.py")


def not_python() -> set[Path]:
    files = {path for path in PACKAGE.rglob("*") if path.is_file()}
    return {path for path in files if path.suffix not in (".py", ".pyc")}


def test_package_data_names_every_file_that_is_not_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["posrec"]
    named = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    assert PACKAGE / "py.typed" in named
    assert named == not_python()


def words_after(command: str) -> set[str]:
    """What the lines of MANIFEST.in that begin with `command` name."""
    words: set[str] = set()
    for line in (ROOT / "MANIFEST.in").read_text().splitlines():
        first, *others = line.split() or [""]
        if first == command:
            words.update(others)
    return words


@pytest.mark.process
def test_the_manifest_names_every_tracked_file() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listing = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True)
    folders = tuple(f"{folder}/" for folder in {*words_after("graft"), "src"})
    by_setuptools = {"MANIFEST.in", "README.md", "LICENSE", "pyproject.toml"}
    files = {name for name in listing.split() if not name.startswith(folders)}
    assert files - words_after("include") - by_setuptools == set()


def write_wheel(path: Path, names: list[str]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in [*names, "posrec-0.1.0.dist-info/METADATA"]:
            archive.writestr(name, "")


def test_a_wheel_with_other_files_is_refused(tmp_path: Path) -> None:
    files = [*PACKAGE.rglob("*.py"), *not_python()]
    names = [path.relative_to(SOURCE).as_posix() for path in files]
    write_wheel(tmp_path / "good.whl", names)
    package.check_wheel(tmp_path / "good.whl")
    write_wheel(tmp_path / "bad.whl", [*names[1:], "tests/test_package.py"])
    with pytest.raises(SystemExit) as refusal:
        package.check_wheel(tmp_path / "bad.whl")
    assert f"{names[0]} is missing" in str(refusal.value)
    assert "tests/test_package.py does not belong" in str(refusal.value)


@pytest.mark.process
def test_a_source_distribution_without_tests_is_refused(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as archive:
        archive.add(ROOT / "README.md", "posrec-0.1.0/README.md")
    with pytest.raises(SystemExit, match=r"tests/test_package\.py is missing"):
        package.check_sdist(tmp_path / "bad.tar.gz")


ENTRY = re.compile(
    r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE
)


def locked() -> dict[str, str]:
    text = (ROOT / "requirements.lock").read_text()
    _, _, entries = text.partition("\n")  # after a comment
    assert ENTRY.sub("", entries).strip() == ""
    return {name: version for name, version, _ in ENTRY.findall(entries)}


def test_every_version_is_that_of_the_constraints() -> None:
    pinned = {}
    for line in (ROOT / "constraints.txt").read_text().split():
        name, _, version = line.partition("==")
        pinned[canonicalize_name(name)] = version
    assert locked().items() <= pinned.items()


def test_everything_that_the_server_needs_has_a_hash() -> None:
    pytest.importorskip("granian")
    packages = lock.needed_packages()
    assert {"granian", "numpy", "polars", "onnxruntime"} <= packages
    assert {"sympy", "anyio"} <= packages  # others need them
    assert packages == set(locked())


@pytest.mark.parametrize(
    ("wheel", "machines"),
    [
        ("a-1.0-py3-none-any.whl", {"x86_64", "aarch64"}),
        (
            "a-1-cp312-cp312-manylinux2014_aarch64.manylinux_2_17_aarch64.whl",
            {"aarch64"},
        ),
        ("a-1.0-cp39-abi3-manylinux_2_28_x86_64.whl", {"x86_64"}),
        ("a-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", set()),
        ("a-1.0-cp312-cp312-win_amd64.whl", set()),
        ("a-1.0-pp311-pypy311_pp73-manylinux_2_28_x86_64.whl", set()),
    ],
)
def test_wheels_of_the_image_are_listed(wheel: str, machines: set[str]) -> None:
    assert lock.machines(wheel) == machines


def test_the_image_installs_from_it() -> None:
    commands = (ROOT / "docs" / "Dockerfile").read_text()
    assert "--require-hashes --no-deps -r /src/requirements.lock" in commands
    assert "torch==" in commands


def test_the_page_installs_the_torch_of_the_constraints() -> None:
    """Another version would be replaced by the next command, with its build for GPUs."""
    page = (ROOT / "docs" / "installing.md").read_text(encoding="utf-8")
    (requirement,) = re.findall(r"pip install (torch==\S+) --index-url", page)
    assert requirement in (ROOT / "constraints.txt").read_text().split()
