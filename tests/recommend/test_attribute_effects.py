"""What attributes add to a score: terms that add up, of what the vectors are made of."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from posrec.data.dataset import PreparedDataset
from posrec.data.vocabulary import Vocabulary
from posrec.nn.batch import SessionBatch
from posrec.progress import SilentProgress
from posrec.recommend.attribute_effects import ITSELF
from posrec.recommend.recommender import Recommender, open_recommender
from posrec.recommend.results import Explanation
from tests.fixtures import QUICK_PLUS
from tests.helpers import command, fitted

SESSION_PARTS = ("last item", "latest intention", "initial intention")


@pytest.fixture(scope="module")
def priced(
    described_shop: PreparedDataset, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A kind has a price of its own."""
    vocabulary = described_shop.vocabulary
    prices = [5.0 * len(kind) for kind in vocabulary.columns["category"]]
    columns = {**vocabulary.columns, "price": prices}
    data = replace(described_shop, vocabulary=Vocabulary(vocabulary.ids, columns))
    out = tmp_path_factory.mktemp("runs") / "run"
    settings = {**QUICK_PLUS, "attributes": "category,price"}
    return fitted(data, "posrec-plus", out, settings)[0].path


def effects(why: Explanation) -> dict[str, float]:
    return {one.label: one.effect for one in why.attributes}


def test_the_effects_add_up_to_what_reads_the_session(priced: Path) -> None:
    rec = Recommender.load(priced, "cpu")
    ids = rec.vocabulary.ids[: rec.items]
    for session in (["i0"], ["i1", "i0", "i3"], [*ids, *ids]):
        for why in rec.explain(session, ids):
            expected = sum(why.parts[name] for name in SESSION_PARTS)
            total = sum(effects(why).values())
            assert total == pytest.approx(expected, abs=1e-4)
            assert [one.column for one in why.attributes][-1] is None
            assert why.as_json()["attributes"][-1]["label"] == ITSELF


def test_the_effect_of_a_category_is_worked_out_from_its_vector(priced: Path) -> None:
    rec = Recommender.load(priced, "cpu")
    attributes: Any = rec.run.attributes
    model: Any = rec.model
    item = rec.vocabulary.ids[2]
    category = rec.vocabulary.columns["category"][2]
    row = [value for _, _, value in attributes.reader.names].index(category)
    with torch.inference_mode():
        session = model.session_vectors(SessionBatch.of([[1, 2]]))[0, :16].numpy()
        length = np.linalg.norm(model.similarity_vectors()[2].numpy())
    expected = session @ attributes.of_values[row] / length
    (why,) = rec.explain(rec.vocabulary.ids[:2], [item])
    assert why.attributes[0].column == "category"
    assert why.attributes[0].effect == pytest.approx(expected, abs=1e-5)


def test_an_item_without_clicks_is_what_its_attributes_say(priced: Path) -> None:
    """Also if the price of an item that was trained has changed since: its vector has not."""
    before = open_recommender(priced)
    rows = pl.DataFrame(
        {"id": ["m0", "i0"], "category": ["tents", "mats"], "price": [25.0, 999.0]}
    )
    rec = before.with_items(rows, SilentProgress())
    why = effects(rec.explain(["i0"], "m0"))
    assert why[ITSELF] == pytest.approx(0, abs=1e-4)
    assert "same category" in why
    trained = effects(before.explain(["i4"], "i0"))
    assert list(trained) == ["same category", "similar price", ITSELF]
    assert effects(rec.explain(["i4"], "i0")) == pytest.approx(trained, abs=1e-4)
    assert list(effects(rec.explain(["i1"], "i0"))) == ["category", "price", ITSELF]
    later = pl.DataFrame({"id": ["m1", "m0"], "category": "mats", "price": 1.0})
    twice = rec.with_items(later, SilentProgress())
    assert effects(twice.explain(["i4"], "i0")) == pytest.approx(trained, abs=1e-4)
    assert effects(twice.explain(["i0"], "m0")) == pytest.approx(why, abs=1e-4)


def test_the_command_shows_them_and_other_runs_have_none(
    priced: Path, trained_plus: Path
) -> None:
    shown = command("recommend", priced, "i0", "--about", "i4").out
    assert "the item itself" in shown
    assert "same category" in shown
    rec = Recommender.load(trained_plus, "cpu")
    assert rec.explain(["i3"], "i4").attributes == ()
