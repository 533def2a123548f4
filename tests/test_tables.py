"""The figures in the pages are those of results/, and docs/scaling.md computes correctly."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers import ROOT

sys.path.insert(0, str(ROOT / "docs" / "site"))
import scaling
import tables


def test_every_page_shows_the_figures_of_results() -> None:
    assert tables.outdated() == []


def test_a_figure_that_differs_is_found_and_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for page in tables.TABLES:
        (tmp_path / page).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / page, tmp_path / page)
    (tmp_path / "results").symlink_to(ROOT / "results")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    readme = tmp_path / "README.md"
    text = readme.read_text(encoding="utf-8")
    changed_table = text.replace("| **57.36** |", "| **75.36** |")
    readme.write_text(changed_table, encoding="utf-8")
    (outdated,) = tables.outdated()
    assert "README.md: a table differs" in outdated
    monkeypatch.setattr(sys, "argv", ["tables.py"])
    tables.main()
    assert readme.read_text(encoding="utf-8") == text
    changed_sentence = text.replace("R@10 of 38.99", "R@10 of 39.88")
    readme.write_text(changed_sentence, encoding="utf-8")
    (outdated,) = tables.outdated()
    assert "README.md does not say 'R@10 of 38.99" in outdated


def test_a_page_without_marks_for_its_table_is_refused() -> None:
    with pytest.raises(SystemExit, match="accuracy"):
        tables.filled("README.md", "no tables")


ASSUMED = scaling.Assumptions()


def test_bytes_of_a_step_by_hand() -> None:
    """Each of two ranks sends half of the gradients and receives half, and then the sums."""
    small = replace(ASSUMED, items=1000, d=10)
    parameters = 1000 * 10 + scaling.rest_of_model(10)
    assert scaling.bytes_of_step(small, 2) == 2 * 0.5 * parameters * 4
    assert scaling.bytes_of_step(small, 1) == 0


def test_the_rest_of_the_model_has_no_item_rows() -> None:
    from posrec.models.posrec import PosRec, PosRecConfig

    for items in (10, 1000):  # rows are padded to multiples of 8 or more
        model = PosRec(items, PosRecConfig(d=10))
        numbers = sum(parameter.numel() for parameter in model.parameters())
        table = model.item_vectors().numel()
        assert table <= numbers - scaling.rest_of_model(10) < table + 640


@pytest.mark.parametrize("ranks", [2, 16])
def test_what_ranks_share_falls_with_them_and_the_table_does_not(ranks: int) -> None:
    measured = scaling.read_constants()
    alone = scaling.step_ms(ASSUMED, measured, 1, ASSUMED.items)
    shared = scaling.step_ms(ASSUMED, measured, ranks, ASSUMED.items)
    assert shared["products"] == pytest.approx(alone["products"] / ranks)
    assert shared["table"] == alone["table"]
    assert alone["bytes"] == 0 < shared["bytes"]
