"""Who may import whom, as ARCHITECTURE.md says; no circle of imports; what is loaded when."""

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import posrec
from posrec.progress import SilentProgress
from tests.helpers import SOURCE, own_process, small_shop, write_log

PACKAGE = SOURCE / "posrec"
STANDARD = sys.stdlib_module_names


def modules(root: Path) -> dict[str, Path]:
    paths = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(["posrec", *parts]).removesuffix(".__init__")
        paths[name] = path
    return paths


def imports(module: str, path: Path) -> Iterator[str]:
    """Everything a file imports, wherever in it; `from a import b` counts as a.b."""
    package = module.split(".")
    if path.name != "__init__.py":
        package.pop()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:  # one dot is the package itself, two are the one above it
                above = package[: len(package) - node.level + 1]
                base = ".".join([*above, base]).removesuffix(".")
            yield from (f"{base}.{alias.name}" for alias in node.names)


def inside(name: str, *packages: str) -> bool:
    return f"{name}.".startswith(tuple(f"{package}." for package in packages))


def ours(*names: str) -> list[str]:
    return [f"posrec.{name}" for name in names]


# Rooms that use few others -> what they may import, beside torch and the standard library.
CLOSED = {
    "posrec.kernels": ["triton", "posrec.kernels"],
    "posrec.encodings": ours("encodings"),
    "posrec.nn": ours("nn", "kernels"),
    "posrec.evaluation.metrics": ours("evaluation.metrics"),
    "posrec.models": ours("models", "nn", "encodings", "config", "errors"),
}
# Other rooms -> what they must not import.
LATER = ours("recommend", "server", "experiments", "demo", "runs", "fitting")
NOT_TO_SERVE = ours("training", "experiments", "demo", "fitting")
FORBIDDEN = {
    "posrec.data": [*LATER, *ours("models", "training", "evaluation")],
    "posrec.training": LATER,
    "posrec.evaluation": [*LATER, *ours("training")],
    "posrec.runs": [*NOT_TO_SERVE, *ours("recommend", "server")],
    "posrec.recommend": [*NOT_TO_SERVE, *ours("server")],
    "posrec.server": NOT_TO_SERVE,
    "posrec.demo": [
        *ours("recommend", "server", "experiments", "runs", "fitting"),
        *ours("models", "training", "evaluation"),
    ],
}
# A room and another -> the modules of the other that it may import.
IN_PART = {
    ("posrec.data", "posrec.nn"): ours(
        "nn.batch", "nn.items.attribute_vectors", "nn.first_read"
    ),
    ("posrec.demo", "posrec.nn"): ours("nn.batch"),
    ("posrec.training", "posrec.models"): ours("models.base"),
    ("posrec.evaluation", "posrec.models"): ours("models.base"),
}


def allowed(module: str, name: str) -> bool:
    for room, usable in CLOSED.items():
        if inside(module, room):
            return inside(name, "torch", *usable, *STANDARD)
    for room, forbidden in FORBIDDEN.items():
        if inside(module, room) and inside(name, *forbidden):
            return False
    for (room, other), usable in IN_PART.items():
        if inside(module, room) and inside(name, other):
            return inside(name, *usable)
    if inside(name, "rich"):
        return inside(module, "posrec.cli", "posrec.progress")
    if inside(name, "posrec.cli"):
        return inside(module, "posrec.cli", "posrec.__main__")
    return True


def violations(root: Path) -> list[str]:
    return [
        f"{module} imports {name}"
        for module, path in modules(root).items()
        for name in imports(module, path)
        if not allowed(module, name)
    ]


def circle(root: Path) -> list[str]:
    """Modules of which each imports the next, and the last is the first; empty without a circle."""
    paths = modules(root)
    graph = {}
    for module, path in paths.items():
        imported = {
            name if name in paths else name.rpartition(".")[0]
            for name in imports(module, path)
        }
        graph[module] = (imported & paths.keys()) - {module, "posrec"}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_the_rules_hold() -> None:
    assert len(modules(PACKAGE)) > 20
    assert violations(PACKAGE) == []


def test_there_is_no_circle() -> None:
    assert circle(PACKAGE) == []


def test_a_planted_circle_is_caught(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.py").write_text("def f():\n    from posrec.data.b import g\n")
    (data / "b.py").write_text("from . import c\n")
    (data / "c.py").write_text("from posrec.data import a\n")
    assert set(circle(tmp_path)) == {f"posrec.data.{name}" for name in "abc"}


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("encodings/schemes.py", "import numpy"),
        ("encodings/schemes.py", "from posrec.nn import gate"),
        ("nn/gate.py", "import torch, polars"),
        ("nn/gate.py", "def f():\n    from posrec.data import dataset"),
        ("evaluation/metrics.py", "from . import evaluate"),
        ("evaluation/metrics.py", "from posrec.nn.batch import SessionBatch"),
        ("data/prepare/steps.py", "from posrec.nn.graph import SessionGraph"),
        ("data/prepare/steps.py", "from posrec.runs.run import load_run"),
        ("data/dataset.py", "from posrec import models"),
        ("data/dataset.py", "import posrec.training.loop"),
        ("data/dataset.py", "from ..training import loop"),
        ("demo/shop.py", "from posrec.training.loop import train"),
        ("models/posrec.py", "from posrec.data.dataset import load"),
        ("models/posrec.py", "import numpy as np"),
        ("training/loop.py", "from posrec.models.registry import MODELS"),
        ("training/loop.py", "from posrec.runs.run import load_run"),
        ("evaluation/evaluate.py", "from ..models import registry"),
        ("recommend/recommender.py", "import posrec.fitting.warm_start"),
        ("recommend/recommender.py", "from posrec.server import routes"),
        ("server/serve.py", "from posrec.training.checkpoint import load"),
        ("experiments/compare.py", "from rich.table import Table"),
        ("runs/run.py", "from posrec.cli import app"),
        ("runs/run.py", "from posrec.fitting.fit import fit"),
    ],
)
def test_a_planted_violation_is_caught(tmp_path: Path, file: str, line: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text("import math\nimport torch\n")
    assert violations(tmp_path) == []
    path.write_text(line)
    assert len(violations(tmp_path)) == 1


IMPORT = """
import sys, posrec
assert dir(posrec)
heavy = {"polars", "matplotlib", "granian", "torch", "numpy", "rich", "typer"}
print(heavy & set(sys.modules))
"""


@pytest.mark.process
def test_importing_posrec_is_quick() -> None:
    assert own_process(code=IMPORT).stdout.strip() == "set()"


PREPARE = """
import runpy, sys
try:
    runpy.run_module("posrec", run_name="__main__")
finally:
    print([name for name in ("polars", "torch") if name in sys.modules])
"""


@pytest.mark.process
def test_preparing_imports_no_torch(tmp_path: Path) -> None:
    """It would take longer than preparing a small log."""
    log = write_log(tmp_path / "c.csv", small_shop())
    outcome = own_process("prepare", log, "--out", tmp_path / "out", code=PREPARE)
    assert outcome.stdout.splitlines()[-1] == "['polars']", outcome.stderr
    assert (tmp_path / "out" / "manifest.json").exists()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    log = write_log(folder / "c.csv", small_shop())
    return posrec.prepare(log, "csv", folder / "out", progress=SilentProgress()).path


TRAIN = """
import sys, posrec
from posrec.progress import SilentProgress
data = posrec.load(sys.argv[1])
recommender = posrec.fit(data, model="posrec-plus", epochs=1, d=8, progress=SilentProgress())
posrec.evaluate(recommender, data, progress=SilentProgress())
print([name for name in ("torch", "torch._dynamo") if name in sys.modules])
"""


@pytest.mark.process
def test_training_and_ranking_on_a_cpu_import_no_compiler(prepared: Path) -> None:
    """It takes two seconds, and only steps on a GPU are compiled."""
    outcome = own_process(prepared, code=TRAIN)
    assert outcome.stdout.strip() == "['torch']", outcome.stderr


BARE = """
import sys
for name in ("polars", "matplotlib", "fsspec", "granian"):
    sys.modules[name] = None
import torch, posrec
from posrec.data.stats import stats
data = posrec.load(sys.argv[1])
batch = posrec.collate(data.train, torch.arange(4), 5)
print(batch.items.shape[0], stats(data)["clicks"], data.vocabulary.item(int(batch.targets[0])))
"""


@pytest.mark.process
def test_a_prepared_dataset_needs_numpy_and_torch_alone(prepared: Path) -> None:
    outcome = own_process(prepared, code=BARE)
    assert (outcome.stdout.strip(), outcome.stderr) == ("4 90 i1", "")


def test_the_public_names_are_there() -> None:
    for name in posrec.__all__:
        assert getattr(posrec, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = posrec.nonsense
