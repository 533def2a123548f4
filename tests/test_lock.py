"""requirements.lock has every package that the Docker image needs, in the tested version and with hashes."""

import re
from types import ModuleType

import pytest

from tests.helpers import ROOT, module_at

pytest.importorskip("uvicorn")
ENTRY = re.compile(r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def lock() -> ModuleType:
    return module_at(ROOT / ".ci" / "lock.py")


def locked() -> dict[str, str]:
    text = (ROOT / "requirements.lock").read_text()
    entries = ENTRY.findall(text)
    assert "".join(f"{name}=={version}{hashes}\n" for name, version, hashes in entries) == text.partition("\n")[2]
    return {name: version for name, version, _ in entries}


def test_every_version_is_that_of_the_constraints() -> None:
    lines = (ROOT / "constraints.txt").read_text().split()
    pinned = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in (line.split("==") for line in lines)}
    assert {name: pinned[name] for name in locked()} == locked()


def test_everything_that_the_server_needs_has_a_hash(lock: ModuleType) -> None:
    needed = lock.needed_packages()
    assert {"uvicorn", "numpy", "polars", "onnxruntime", "sympy", "h11"} <= needed  # directly and through others
    assert needed == set(locked())


@pytest.mark.parametrize(
    ("wheel", "machines"),
    [
        ("a-1.0-py3-none-any.whl", {"x86_64", "aarch64"}),
        ("a-1.0-cp312-cp312-manylinux2014_aarch64.manylinux_2_17_aarch64.whl", {"aarch64"}),
        ("a-1.0-cp39-abi3-manylinux_2_28_x86_64.whl", {"x86_64"}),
        ("a-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", set()),
        ("a-1.0-cp313-cp313t-manylinux_2_28_x86_64.whl", set()),
        ("a-1.0-cp312-cp312-win_amd64.whl", set()),
        ("a-1.0-pp311-pypy311_pp73-manylinux_2_28_x86_64.whl", set()),
    ],
)
def test_wheels_of_the_image_are_listed(lock: ModuleType, wheel: str, machines: set[str]) -> None:
    assert lock.machines(wheel) == machines


def test_the_image_installs_from_it() -> None:
    commands = (ROOT / "docs" / "Dockerfile").read_text()
    assert "--require-hashes --no-deps -r /src/requirements.lock" in commands
    assert "torch==" in commands


def test_the_readme_installs_the_torch_of_the_constraints() -> None:
    """Another version would be replaced by the next command, with its build for GPUs."""
    (named,) = re.findall(r"pip install (torch==\S+) --index-url", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert named in (ROOT / "constraints.txt").read_text().split()
