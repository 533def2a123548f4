"""Who may import whom, as ARCHITECTURE.md says; that no imports run in a circle; and what is loaded
when."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

import posrec
from posrec.progress import SilentProgress
from tests.helpers import SOURCE, own_process, small_shop, write_log

PACKAGE = SOURCE / "posrec"
STANDARD = set(sys.stdlib_module_names)


def modules(root: Path) -> dict[str, Path]:
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[
            ".".join(["posrec", *(parts[:-1] if parts[-1] == "__init__" else parts)])
        ] = path
    return found


def imports(module: str, path: Path) -> Iterator[str]:
    """Everything a file imports, wherever in it; `from a import b` counts as a.b."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = (
                package.split(".")[: len(package.split(".")) - node.level + 1]
                if node.level
                else []
            )
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def inside(name: str, *packages: str) -> bool:
    return any(
        name == package or name.startswith(package + ".") for package in packages
    )


def ours(*parts: str) -> list[str]:
    return [f"posrec.{part}" for part in parts]


# The boxes that stand on few others: a box -> what of the package it may import, beside torch and
# the standard library.
CLOSED = {
    "posrec.kernels": ours("kernels"),
    "posrec.encodings": ours("encodings"),
    "posrec.nn": ours("nn", "kernels"),
    "posrec.evaluation.metrics": ours("evaluation.metrics"),
    "posrec.models": ours("models", "nn", "encodings", "config", "errors"),
}
# The others may import anything but: a box -> what it must not import.
LATER = ours("recommend", "server", "experiments", "demo", "runs", "fitting")
FORBIDDEN = {
    "posrec.data": [*LATER, *ours("models", "training", "evaluation")],
    "posrec.training": LATER,
    "posrec.evaluation": [*LATER, *ours("training")],
    "posrec.runs": ours(
        "training", "recommend", "server", "experiments", "demo", "fitting"
    ),
    "posrec.recommend": ours("training", "server", "experiments", "demo", "fitting"),
    "posrec.server": ours("training", "experiments", "demo", "fitting"),
    "posrec.demo": [
        *(one for one in LATER if one != "posrec.demo"),
        *ours("models", "training", "evaluation"),
    ],
}
# And of some boxes only a part: a box and another -> the modules of the other that it may import.
IN_PART = {
    ("posrec.data", "posrec.nn"): ours(
        "nn.batch", "nn.items.attribute_vectors", "nn.first_read"
    ),
    ("posrec.demo", "posrec.nn"): ours("nn.batch"),
    ("posrec.training", "posrec.models"): ours("models.base"),
    ("posrec.evaluation", "posrec.models"): ours("models.base"),
}


def allowed(module: str, name: str) -> bool:
    for box, friends in CLOSED.items():
        if inside(module, box):
            triton = ["triton"] if box == "posrec.kernels" else []
            return (
                inside(name, "torch", *triton, *friends)
                or name.split(".")[0] in STANDARD
            )
    if any(
        inside(module, box) and inside(name, *strangers)
        for box, strangers in FORBIDDEN.items()
    ):
        return False
    for (box, other), parts in IN_PART.items():
        if inside(module, box) and inside(name, other):
            return inside(name, *parts)
    if inside(name, "rich"):
        return inside(module, "posrec.cli", "posrec.progress")
    return (
        not inside(name, "posrec.cli")
        or module == "posrec.__main__"
        or inside(module, "posrec.cli")
    )


def violations(root: Path) -> list[str]:
    return [
        f"{module} imports {name}"
        for module, path in modules(root).items()
        for name in imports(module, path)
        if not allowed(module, name)
    ]


def circles(root: Path) -> list[list[str]]:
    """Groups of modules that import one another. `posrec/__init__.py` imports lazily, by name, and
    is left out."""
    known = modules(root)
    graph = nx.DiGraph()
    for module, path in known.items():
        if module != "posrec":
            found = (
                name if name in known else name.rpartition(".")[0]
                for name in imports(module, path)
            )
            graph.add_edges_from(
                (module, name)
                for name in found
                if name in known and name not in ("posrec", module)
            )
    return [
        sorted(group)
        for group in nx.strongly_connected_components(graph)
        if len(group) > 1
    ]


def test_the_rules_hold() -> None:
    assert len(modules(PACKAGE)) > 20
    assert violations(PACKAGE) == []


def test_there_is_no_circle() -> None:
    assert circles(PACKAGE) == []


def test_a_planted_circle_is_caught(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one.py").write_text(
        "def f():\n    from posrec.data.two import g\n"
    )
    (tmp_path / "data" / "two.py").write_text("from . import three\n")
    (tmp_path / "data" / "three.py").write_text("from posrec.data import one\n")
    assert circles(tmp_path) == [
        ["posrec.data.one", "posrec.data.three", "posrec.data.two"]
    ]


PLANTED = {
    "encodings/schemes.py": ["import numpy", "from posrec.nn import gate"],
    "nn/gate.py": [
        "import torch, polars",
        "def f():\n    from posrec.data import dataset",
    ],
    "evaluation/metrics.py": [
        "from . import evaluate",
        "from posrec.nn.batch import SessionBatch",
    ],
    "data/prepare/steps.py": [
        "from posrec.nn.graph import SessionGraph",
        "from posrec.runs.run import load_run",
    ],
    "data/dataset.py": [
        "from posrec import models",
        "import posrec.training.loop",
        "from ..training import loop",
    ],
    "demo/shop.py": ["from posrec.training.loop import train"],
    "models/posrec.py": ["from posrec.data.dataset import load", "import numpy as np"],
    "training/loop.py": [
        "from posrec.models.registry import MODELS",
        "from posrec.runs.run import load_run",
    ],
    "evaluation/evaluate.py": ["from ..models import registry"],
    "recommend/recommender.py": [
        "import posrec.fitting.warm_start",
        "from posrec.server import routes",
    ],
    "server/serve.py": ["from posrec.training.checkpoint import load"],
    "experiments/compare.py": ["from rich.table import Table"],
    "runs/run.py": ["from posrec.cli import app", "from posrec.fitting.fit import fit"],
}


@pytest.mark.parametrize(
    ("file", "line"),
    [(file, line) for file, lines in PLANTED.items() for line in lines],
)
def test_a_planted_violation_is_caught(tmp_path: Path, file: str, line: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("import math\nimport torch\n")
    assert violations(tmp_path) == []
    (tmp_path / file).write_text(line)
    assert len(violations(tmp_path)) == 1


@pytest.mark.process
def test_importing_posrec_is_quick() -> None:
    heavy = ("polars", "matplotlib", "granian", "torch", "numpy", "rich", "typer")
    code = f"import sys, posrec; assert dir(posrec); print([name for name in {heavy} if name in sys.modules])"
    assert own_process(code=code).stdout.strip() == "[]"


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
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = posrec.nonsense  # type: ignore[attr-defined]
