"""The demo shop: its log, the probabilities of its process, and the ceiling that follows."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

from posrec.cli.tour import refuse_others_files
from posrec.data.dataset import PreparedDataset, SessionDataset, collate
from posrec.demo.catalogue import ITEMS, item_table
from posrec.demo.shop import (
    LONGEST,
    Shop,
    ceiling,
    make_demo,
    next_click_chances,
    open_shop,
)
from posrec.errors import InputError
from posrec.nn.batch import SessionBatch


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return make_demo(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="module")
def shop() -> Shop:
    return open_shop()


def in_shop_numbers(data: PreparedDataset) -> SessionDataset:
    """The test part with items numbered as in the catalogue, from 1."""
    catalogue_ids = [item for item, _, _ in item_table()]
    numbers = [catalogue_ids.index(item) + 1 for item in data.vocabulary.ids]
    items = torch.tensor(numbers, dtype=torch.int32)[data.test.items.long() - 1]
    return SessionDataset(items, data.test.offsets, data.test.times)


def test_the_size_of_the_shop(data: PreparedDataset) -> None:
    assert len(data.vocabulary) == 720
    titles = data.vocabulary.columns["title"]
    assert len(set(data.vocabulary.ids)) == len(set(titles)) == len(titles)
    assert None not in titles
    assert "Trail Running Shoe, blue, 42" in titles
    assert len(set(data.vocabulary.columns["category"])) == 20
    assert data.train.sessions + data.test.sessions == 40_000


def test_the_recipe_removes_nothing(data: PreparedDataset) -> None:
    steps = data.manifest["steps"]
    assert len(steps) > 2
    for name in ("clicks", "sessions", "items"):
        assert not any(step[f"removed_{name}"] for step in steps)


def test_the_same_shop_every_time(tmp_path: Path) -> None:
    first = make_demo(tmp_path / "first", sessions=2000)
    second = make_demo(tmp_path / "second", sessions=2000)
    assert first.fingerprint == second.fingerprint
    assert first.ceiling == second.ceiling
    first_log = (tmp_path / "first" / "clicks.csv").read_bytes()
    assert first_log == (tmp_path / "second" / "clicks.csv").read_bytes()


def features(item: int) -> tuple[int, int, int]:
    """Its line, colour and size; each line has three colours, each colour two sizes."""
    return item // 6, item // 2 % 3, item % 2


def slow_chances(shop: Shop, session: list[int]) -> dict[int, float]:
    """The process as `behaviours` describes it, for one session of catalogue numbers."""
    chances = defaultdict[int, float](float)
    clicks = len(session)
    line, colour, size = features(session[0])
    last_line, _, last_size = features(session[-1])
    intention = 0.40 * 0.8 ** (clicks - 1)
    back = 0.15 if clicks > 1 else 0.0
    wander = 0.15
    drift = 1 - intention - back - wander
    for item in range(ITEMS):
        chances[item] += wander * float(shop.popularity[item])
    companions = shop.companions[session[0]].tolist()
    for item, weight in zip(companions, shop.companion_weights, strict=True):
        # The line in the other size, or the category (six lines) in the same colour and size.
        its_line, its_colour, its_size = features(item)
        assert (its_line // 6, its_colour) == (line // 6, colour)
        assert (its_line == line) == (its_size != size)
        chances[item] += intention * float(weight)
    related_lines = shop.related[last_line].tolist()
    for related, weight in zip(related_lines, (0.5, 0.3, 0.2), strict=True):
        chances[6 * related + 2 * colour + last_size] += drift * weight
    if clicks > 1:
        weights = [2] + [1] * (clicks - 2)
        for item, weight in zip(session[:-1], weights, strict=True):
            chances[item] += back * weight / sum(weights)
    return chances


def test_the_probabilities_are_those_of_the_process(shop: Shop) -> None:
    random = np.random.default_rng(5)
    sessions = [random.integers(0, ITEMS, length).tolist() for length in (1, 2, 3, 20)]
    sessions.append([3, 9, 3, 3, 9])  # repeats add up
    batch = SessionBatch.of([[item + 1 for item in session] for session in sessions])
    chances = next_click_chances(shop, batch)
    assert chances.sum(1).tolist() == pytest.approx([1.0] * len(sessions), abs=1e-12)
    for row, session in enumerate(sessions):
        slow = slow_chances(shop, session)
        expected = [slow[item] for item in range(ITEMS)]
        assert chances[row].tolist() == pytest.approx(expected, abs=1e-12)


def oracle_hits(shop: Shop, test: SessionDataset, blind: str = "") -> torch.Tensor:
    """[samples] whether the target is in the oracle's top 20.

    The oracle may be `blind` to one end of the session, and sees the other instead.
    """
    hits = []
    for samples in torch.arange(len(test)).split(2048):
        batch = collate(test, samples, LONGEST)
        items = batch.items.clone()
        rows = torch.arange(len(samples))
        last = batch.lengths - 1
        if blind == "first":
            items[:, 0] = items[rows, last]
        elif blind == "last":
            items[rows, last] = items[:, 0]
        chances = next_click_chances(shop, SessionBatch(items, batch.lengths))
        best = chances.topk(20).indices + 1
        assert batch.targets is not None
        hits.append((best == batch.targets[:, None]).any(1))
    return torch.cat(hits).double()


def test_the_ceiling_is_what_the_best_ranking_reaches(
    shop: Shop, data: PreparedDataset
) -> None:
    assert data.ceiling is not None
    test = in_shop_numbers(data)
    hits = oracle_hits(shop, test)
    error = float((hits.var() / len(hits)).sqrt())
    assert data.ceiling["samples"] == len(test) == len(hits)
    assert abs(float(hits.mean()) - data.ceiling["recall@20"]) < 4 * error < 0.02
    assert ceiling(shop, data) == data.ceiling
    for metric in ("recall", "mrr", "ndcg"):
        figures = [data.ceiling[f"{metric}@{k}"] for k in (5, 10, 20)]
        assert 0 < figures[0] < figures[1] < figures[2] < 1
    # An oracle that does not see one end of the session is clearly worse: both ends matter.
    for end in ("first", "last"):
        assert float(oracle_hits(shop, test, end).mean()) < float(hits.mean()) - 0.1


def test_files_of_the_user_beside_earlier_results_are_not_removed(
    tmp_path: Path,
) -> None:
    refuse_others_files(tmp_path)
    (tmp_path / "report.html").touch()
    refuse_others_files(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError, match="notes"):
        refuse_others_files(tmp_path)
