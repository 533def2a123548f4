"""The tables of measured figures in the pages are those of results/, and a figure that differs is found."""

import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT

sys.path.insert(0, str(ROOT / "docs" / "site"))
import tables


def test_every_page_shows_the_figures_of_results() -> None:
    assert tables.outdated() == []


def test_a_figure_that_differs_is_found_and_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {page: (ROOT / page).read_text(encoding="utf-8") for page in tables.TABLES}
    for page, text in pages.items():
        (tmp_path / page).parent.mkdir(exist_ok=True)
        (tmp_path / page).write_text(text, encoding="utf-8")
    (tmp_path / "results").symlink_to(ROOT / "results")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    readme = tmp_path / "README.md"
    readme.write_text(pages["README.md"].replace("| **57.36** |", "| **75.36** |"), encoding="utf-8")
    assert tables.outdated() == ["README.md: a table differs from results/; run python docs/site/tables.py"]
    monkeypatch.setattr(sys, "argv", ["tables.py"])
    tables.main()
    assert readme.read_text(encoding="utf-8") == pages["README.md"]
    readme.write_text(pages["README.md"].replace("R@10 of 38.99", "R@10 of 39.88"), encoding="utf-8")
    assert tables.outdated() == ["README.md does not say 'R@10 of 38.99 and 60.92; the paper has 38.87 and 60.90'"]


def test_a_page_without_a_place_for_its_table_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"README\.md has 0 places for the table 'accuracy'"):
        tables.filled("README.md", "no tables")
