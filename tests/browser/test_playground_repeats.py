"""The playground with posrec-plus: probabilities, the chance of a repeat and the click it points at."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posrec.data.dataset import PreparedDataset
from posrec.recommend.recommender import Recommender
from tests.browser.conftest import serving, trained, visiting
from tests.browser.test_playground import number


@pytest.fixture(scope="module")
def plus_run(part_of_shop: PreparedDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"d": 16, "epochs": 1, "learning_rate": 0.01, "batch_size": 200, "protocol": "paper"}
    return trained(part_of_shop, "posrec-plus", tmp_path_factory.mktemp("run"), settings)


@pytest.fixture(scope="module")
def plus_address(plus_run: Path) -> Iterator[str]:
    with serving(plus_run) as url:
        yield url


def test_probabilities_parts_and_repeats(chromium: Any, plus_run: Path, plus_address: str, goods: list[str]) -> None:
    rec = Recommender.load(plus_run, "cpu")
    with visiting(chromium, plus_address) as visit:
        visit.open(*goods, k=10)
        page = visit.page
        answer = rec.recommend(goods, 10)
        assert visit.shown() == [one.item for one in answer]
        shares = [float(text.removesuffix("%")) for text in page.locator("#recommended .score").all_inner_texts()]
        assert shares == pytest.approx([100 * math.exp(one.score) for one in answer], abs=0.06)
        why = rec.explain(goods, answer[0].item)
        assert not page.locator("details .part").first.is_visible()  # the normalisation
        page.locator("summary", has_text="Normalisation").click()
        rows = page.locator(".part").all_inner_texts()
        names = list(why.parts)
        assert [row.split("\n")[0] for row in rows] == [*names[:-1], "sum", "sum", names[-1], "score"]
        values = [number(row.split("\n")[-1]) for row in rows]
        *own, normalisation = why.parts.values()
        assert values == pytest.approx([*own, sum(own), sum(own), normalisation, why.score], abs=2e-3)
        assert f"the logarithm of {why.probability:.1%}" in page.locator(".about").inner_text()
        shares_of_clicks = [click.attention["clicked before"] for click in why.clicks]
        most = shares_of_clicks.index(max(shares_of_clicks))
        sentence = page.locator(".repeat").inner_text()
        assert f"with a chance of {why.repeat_chance:.0%}. A repeat would be of click {most + 1}, " in sentence
        assert sentence.endswith(f"with {max(shares_of_clicks):.0%}.")
        heat = page.locator(".pull").nth(most).locator(".heat").all_inner_texts()
        assert [int(text) for text in heat] == [round(100 * share) for share in why.clicks[most].attention.values()]
        page.locator(".pull").nth(most).hover()
        assert f"Share of a repeat {max(shares_of_clicks):.0%}." in page.locator(".detail").inner_text()
        assert visit.errors == []


def test_items_that_are_popular_have_no_probability(chromium: Any, plus_address: str) -> None:
    with visiting(chromium, plus_address) as visit:
        visit.open("no such item")
        assert "click" in visit.page.locator("#recommended .score").first.inner_text()
        assert visit.errors == []
