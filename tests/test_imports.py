"""Who may import whom, as the design says; and what may be loaded when."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import SOURCE, own_process, small_shop, write_log

PACKAGE = SOURCE / "posrec"
STANDARD = set(sys.stdlib_module_names)


def modules(root: Path) -> dict[str, Path]:
    """Module name -> file, for every module of the package."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(["posrec", *(parts[:-1] if parts[-1] == "__init__" else parts)])] = path
    return found


def imports(module: str, path: Path) -> Iterator[str]:
    """Everything a file imports, wherever in it; `from a import b` counts as a.b, since b may be a module."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def inside(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def allowed(module: str, name: str) -> bool:
    """The design's rules, one line each."""
    ours = [f"posrec.{part}" for part in ("encodings", "layers", "evaluation.metrics")]
    if inside(module, "posrec.kernels"):
        return inside(name, "torch", "triton", "posrec.kernels") or name.split(".")[0] in STANDARD
    for part in ours:
        if inside(module, part):
            return inside(name, "torch", part, "posrec.kernels") or name.split(".")[0] in STANDARD
    if inside(module, "posrec.models"):
        friends = [f"posrec.{part}" for part in ("models", "layers", "encodings", "data.batch", "data.graph")]
        return inside(name, "torch", *friends) or name.split(".")[0] in STANDARD
    if inside(module, "posrec.data") and inside(name, "posrec.models", "posrec.training"):
        return False
    if inside(module, "posrec.training", "posrec.evaluation") and inside(name, "posrec.models"):
        return False
    if inside(module, "posrec.serving") and inside(name, "posrec.training"):
        return False
    return not inside(name, "posrec.cli") or module == "posrec.__main__" or inside(module, "posrec.cli")


def violations(root: Path) -> list[str]:
    return [
        f"{module} imports {name}"
        for module, path in modules(root).items()
        for name in imports(module, path)
        if not allowed(module, name)
    ]


def test_the_rules_hold() -> None:
    assert len(modules(PACKAGE)) > 20
    assert violations(PACKAGE) == []


PLANTED = {
    "encodings/schemes.py": ["import numpy", "from posrec.layers import gate"],
    "layers/gate.py": ["import torch, polars", "def f():\n    from posrec.data import batch"],
    "evaluation/metrics.py": ["from . import evaluate", "from posrec.data.batch import SessionBatch"],
    "data/batch.py": ["from posrec import models", "import posrec.training.loop", "from ..training import loop"],
    "models/posrec.py": ["from posrec.data.sessions import load", "import numpy as np", "from posrec import training"],
    "training/loop.py": ["from posrec.models.catalog import MODELS"],
    "evaluation/evaluate.py": ["from ..models import catalog"],
    "serving/server.py": ["from posrec.training.checkpoint import load"],
    "terminal.py": ["from posrec.cli import app", "from posrec import cli"],
}


@pytest.mark.parametrize(("file", "line"), [(file, line) for file, lines in PLANTED.items() for line in lines])
def test_a_planted_violation_is_caught(tmp_path: Path, file: str, line: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("import math\nimport torch\n")
    assert violations(tmp_path) == []
    (tmp_path / file).write_text(line)
    assert len(violations(tmp_path)) == 1


def test_what_is_allowed_passes(tmp_path: Path) -> None:
    lines = {
        "models/posrec.py": "from torch import nn\nfrom posrec.data.batch import collate\nfrom posrec import layers",
        "encodings/awareness.py": "from . import schemes\nfrom posrec.encodings.schemes import DPE\nimport torch.nn",
        "training/loop.py": "from posrec.data.sessions import load\nimport numpy",
        "__main__.py": "from posrec.cli import main",
        "cli/data.py": "from posrec.cli.printing import console",
    }
    for file, text in lines.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    assert violations(tmp_path) == []


def test_importing_posrec_is_quick() -> None:
    heavy = ("polars", "matplotlib", "litestar", "uvicorn", "torch", "numpy", "rich", "typer")
    code = f"import sys, posrec; assert dir(posrec); print([name for name in {heavy} if name in sys.modules])"
    assert own_process(code=code).stdout.strip() == "[]"


BARE = """
import sys
for name in ("polars", "matplotlib", "zstandard", "litestar", "uvicorn"):
    sys.modules[name] = None
import torch, posrec
from posrec.data.stats import stats
data = posrec.load(sys.argv[1])
batch = posrec.collate(data.train, torch.arange(4), 5)
print(batch.items.shape[0], stats(data)["clicks"], data.vocabulary.item(int(batch.targets[0])))
"""


def test_a_prepared_dataset_needs_numpy_and_torch_alone(tmp_path: Path) -> None:
    import posrec
    from posrec.listener import SilentListener

    log = write_log(tmp_path / "c.csv", small_shop())
    posrec.prepare(log, "csv", tmp_path / "out", listener=SilentListener())
    outcome = own_process(tmp_path / "out", code=BARE)
    assert (outcome.stdout.strip(), outcome.stderr) == ("4 90 i1", "")


def test_the_public_names_are_there() -> None:
    import posrec

    for name in posrec.__all__:
        assert getattr(posrec, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = posrec.nonsense  # type: ignore[attr-defined]
