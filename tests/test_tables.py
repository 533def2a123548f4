"""The tables of measured figures in the pages are those of results/, and what docs/scaling.md
computes is right."""

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
    pages = {page: (ROOT / page).read_text(encoding="utf-8") for page in tables.TABLES}
    for page, text in pages.items():
        (tmp_path / page).parent.mkdir(exist_ok=True)
        (tmp_path / page).write_text(text, encoding="utf-8")
    (tmp_path / "results").symlink_to(ROOT / "results")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    readme = tmp_path / "README.md"
    readme.write_text(
        pages["README.md"].replace("| **57.36** |", "| **75.36** |"), encoding="utf-8"
    )
    assert tables.outdated() == [
        "README.md: a table differs from results/; run python docs/site/tables.py"
    ]
    monkeypatch.setattr(sys, "argv", ["tables.py"])
    tables.main()
    assert readme.read_text(encoding="utf-8") == pages["README.md"]
    readme.write_text(
        pages["README.md"].replace("R@10 of 38.99", "R@10 of 39.88"), encoding="utf-8"
    )
    assert tables.outdated() == [
        "README.md does not say 'R@10 of 38.99 and 60.92; the paper has 38.87 and 60.90'"
    ]


def test_a_page_without_a_place_for_its_table_is_refused() -> None:
    with pytest.raises(
        SystemExit, match=r"README\.md has 0 places for the table 'accuracy'"
    ):
        tables.filled("README.md", "no tables")


GIVEN = scaling.Assumptions()


def test_bytes_of_a_step_by_hand() -> None:
    """Two ranks: each sends half of all gradients and receives half, and the same again with the
    sums."""
    small = replace(GIVEN, items=1000, d=10)
    assert (
        scaling.bytes_of_step(small, 2)
        == 2 * 0.5 * (1000 * 10 + scaling.rest_of_model(10)) * 4
    )
    assert scaling.bytes_of_step(small, 1) == 0


def test_the_rest_of_the_model_has_no_item_rows() -> None:
    from posrec.models.posrec import PosRec, PosRecConfig

    for items in (10, 1000):  # rows are padded to multiples of 8 or more
        model = PosRec(items, PosRecConfig(d=10))
        every = sum(one.numel() for one in model.parameters())
        table = model.item_vectors().numel()
        assert table <= every - scaling.rest_of_model(10) < table + 640


@pytest.mark.parametrize("ranks", [2, 16])
def test_what_ranks_share_falls_with_them_and_the_table_does_not(ranks: int) -> None:
    measured = scaling.read_constants()
    one, many = (
        scaling.step_ms(GIVEN, measured, number, GIVEN.items) for number in (1, ranks)
    )
    assert many["products"] == pytest.approx(one["products"] / ranks)
    assert many["table"] == one["table"]
    assert one["bytes"] == 0 < many["bytes"]
