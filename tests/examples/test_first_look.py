"""The notebook runs from its first cell to its last, on a smaller shop, and draws what it
describes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT

NOTEBOOK = ROOT / "examples" / "first_look.ipynb"
SMALLER = {"SESSIONS = 8_000": "SESSIONS = 600", "EPOCHS = 4": "EPOCHS = 1"}


def cells(kind: str) -> list[dict[str, Any]]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def run(replaced: dict[str, str]) -> tuple[dict[str, Any], int]:
    """The names that the code cells leave, and how many figures they draw."""
    import matplotlib.pyplot as plt

    plt.close("all")
    plt.switch_backend("agg")
    code = "\n".join("".join(cell["source"]) for cell in cells("code"))
    for old, new in replaced.items():
        assert code.count(old) == 1
        code = code.replace(old, new)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, str(NOTEBOOK), "exec"), names)
    figures = len(plt.get_fignums())
    plt.close("all")
    return names, figures


def check(names: dict[str, Any], figures: int) -> None:
    assert figures == 3  # an encoding, two models compared, a session explained
    assert list(names["result"].metrics) == ["stan", "posrec"]
    why = names["why"]
    assert sum(why.parts.values()) == pytest.approx(why.score, rel=1e-4, abs=1e-4)
    assert [click.item for click in why.clicks] == names["session"]
    assert not Path(names["folder"].name).exists()


def test_it_runs_on_a_small_shop() -> None:
    check(*run(SMALLER))


@pytest.mark.slow
def test_it_runs_as_it_is() -> None:
    check(*run({}))


def test_its_outputs_are_stored_and_small() -> None:
    outputs = [output for cell in cells("code") for output in cell["outputs"]]
    assert "error" not in [output["output_type"] for output in outputs]
    assert "stderr" not in [output.get("name") for output in outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    assert NOTEBOOK.stat().st_size < 300_000
