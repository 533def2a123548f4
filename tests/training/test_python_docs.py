"""The Python of docs/training.md runs, and returns what the page says; test_other_system.py has its
first block."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT, chain_shop

PAGE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")


def test_the_python_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    chain_shop(tmp_path, seed=0, sessions=60).path.rename("shop")
    _, block = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, "docs/training.md", "exec"), names)
    assert repr(names["found"]).startswith("Evaluation(recall@20 ")
    assert names["compared"].to_frame()["model"].to_list() == ["posrec", "stan", "pop"]
    assert len(names["tuned"].to_frame()) == 5
    assert names["better"].run.config["k"] == names["tuned"].settings["k"]
