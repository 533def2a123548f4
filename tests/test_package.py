"""What is released: the files of the wheel and of the source distribution, and the locked packages
of the image."""

import re
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
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"][
        "setuptools"
    ]
    home = SOURCE / "posrec"
    named = {
        path
        for pattern in settings["package-data"]["posrec"]
        for path in home.glob(pattern)
    }
    others = {
        path
        for path in home.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert home / "py.typed" in others
    assert named == others


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for path in (SOURCE / "posrec").rglob("*.py")}
    assert [
        folder for folder in folders if not (folder / "__init__.py").is_file()
    ] == []


@pytest.mark.process
def test_the_manifest_names_every_tracked_file() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    words = [line.split() for line in (ROOT / "MANIFEST.in").read_text().splitlines()]
    grafted = tuple(
        f"{folder}/" for line in words if line[:1] == ["graft"] for folder in line[1:]
    )
    included = {name for line in words if line[:1] == ["include"] for name in line[1:]}
    by_setuptools = {"MANIFEST.in", "README.md", "LICENSE", "pyproject.toml"}
    missing = (
        {name for name in listed if name and not name.startswith((*grafted, "src/"))}
        - included
        - by_setuptools
    )
    assert missing == set()


def test_a_wheel_with_other_files_is_refused(
    package: ModuleType, tmp_path: Path
) -> None:
    files = [
        path
        for path in (SOURCE / "posrec").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    names = [path.relative_to(SOURCE).as_posix() for path in files]
    for wheel, packed in (
        ("good.whl", names),
        ("bad.whl", [*names[1:], "tests/test_package.py"]),
    ):
        with zipfile.ZipFile(tmp_path / wheel, "w") as archive:
            for name in [*packed, "posrec-0.1.0.dist-info/METADATA"]:
                archive.writestr(name, "")
    package.check_wheel(tmp_path / "good.whl")
    with pytest.raises(
        SystemExit,
        match=f"{names[0]} is missing\n  tests/test_package.py does not belong there",
    ):
        package.check_wheel(tmp_path / "bad.whl")


@pytest.mark.process
def test_a_source_distribution_without_tests_is_refused(
    package: ModuleType, tmp_path: Path
) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as archive:
        archive.add(ROOT / "README.md", "posrec-0.1.0/README.md")
    with pytest.raises(SystemExit, match=r"tests/test_package\.py is missing"):
        package.check_sdist(tmp_path / "bad.tar.gz")


ENTRY = re.compile(
    r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE
)


@pytest.fixture(scope="module")
def lock() -> ModuleType:
    return module_at(ROOT / ".ci" / "lock.py")


def locked() -> dict[str, str]:
    text = (ROOT / "requirements.lock").read_text()
    entries = ENTRY.findall(text)
    assert (
        "".join(f"{name}=={version}{hashes}\n" for name, version, hashes in entries)
        == text.partition("\n")[2]
    )
    return {name: version for name, version, _ in entries}


def test_every_version_is_that_of_the_constraints() -> None:
    lines = (ROOT / "constraints.txt").read_text().split()
    pinned = {
        re.sub(r"[-_.]+", "-", name).lower(): version
        for name, version in (line.split("==") for line in lines)
    }
    assert {name: pinned[name] for name in locked()} == locked()


def test_everything_that_the_server_needs_has_a_hash(lock: ModuleType) -> None:
    pytest.importorskip("granian")
    needed = lock.needed_packages()
    assert {
        "granian",
        "numpy",
        "polars",
        "onnxruntime",
        "sympy",
        "anyio",
    } <= needed  # directly and through others
    assert needed == set(locked())


@pytest.mark.parametrize(
    ("wheel", "machines"),
    [
        ("a-1.0-py3-none-any.whl", {"x86_64", "aarch64"}),
        (
            "a-1.0-cp312-cp312-manylinux2014_aarch64.manylinux_2_17_aarch64.whl",
            {"aarch64"},
        ),
        ("a-1.0-cp39-abi3-manylinux_2_28_x86_64.whl", {"x86_64"}),
        ("a-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", set()),
        ("a-1.0-cp312-cp312-win_amd64.whl", set()),
        ("a-1.0-pp311-pypy311_pp73-manylinux_2_28_x86_64.whl", set()),
    ],
)
def test_wheels_of_the_image_are_listed(
    lock: ModuleType, wheel: str, machines: set[str]
) -> None:
    assert lock.machines(wheel) == machines


def test_the_image_installs_from_it() -> None:
    commands = (ROOT / "docs" / "Dockerfile").read_text()
    assert "--require-hashes --no-deps -r /src/requirements.lock" in commands
    assert "torch==" in commands


def test_the_page_installs_the_torch_of_the_constraints() -> None:
    """Another version would be replaced by the next command, with its build for GPUs."""
    (named,) = re.findall(
        r"pip install (torch==\S+) --index-url",
        (ROOT / "docs" / "installing.md").read_text(encoding="utf-8"),
    )
    assert named in (ROOT / "constraints.txt").read_text().split()
