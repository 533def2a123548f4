"""How often items are repeated, and what counting models make of it."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given

from posrec.models.baselines.counting.neighbours import (
    END,
    LEAST_CLICKS,
    NeighbourModel,
    own_items,
    repeats,
)
from posrec.models.registry import MODELS
from posrec.nn.batch import SessionBatch
from tests.helpers import command, write_log
from tests.models.baselines.counting.small_logs import fitted, flat, logs, scores

OWN_ITEMS_RANKED = ["spop", "itemknn", "vsknn", "stan", "coclick"]


@given(logs)
def test_repeats_against_a_slow_restatement(log: list[list[int]]) -> None:
    at_once = []
    earlier = []
    for session in log:
        for position in range(1, len(session)):
            item = session[position]
            is_at_once = item == session[position - 1]
            at_once.append(is_at_once)
            earlier.append(item in session[:position] and not is_at_once)
    assert repeats(*flat(log)).tolist() == [at_once, earlier]


@dataclass(frozen=True)
class Config:
    max_length: int = 50


class Equal(NeighbourModel):
    """The session's own items and item 1 all have the score 2."""

    def count_neighbours(self, items: torch.Tensor, offsets: torch.Tensor) -> None:
        pass

    def add_scores(self, batch: SessionBatch, scores: torch.Tensor) -> None:
        scores[:, 0] = 2
        row, column, _ = own_items(batch, self.items)
        scores[row, column] = 2


def test_factors_by_hand() -> None:
    """Of 1,500 clicks that do not begin a session, 100 repeat the item just clicked and none an
    earlier one. The item just clicked has half of what it and item 1 have: (7 * 100/1500 / 0.5)^2.
    """
    factor = (14 / 15) ** 2
    model = fitted(Equal, Config(), [[2, 3]] * 1400 + [[2, 2]] * 100, items=4)
    assert model.own_factors.tolist() == pytest.approx([factor, 0])
    # Item 2 has 1,600 clicks, item 3 1,400, the others none.
    rest = [2 / 3 - 1, 1 / 3 - 1, 0 / 3 - 1]
    assert scores(model, [3, 2], [4], [9]) == [
        pytest.approx([2, 2 * factor, END, rest[2]]),
        pytest.approx([2, *rest[:2], 2 * factor]),
        pytest.approx([2, *rest]),
    ]


def test_the_factor_of_earlier_items_by_hand() -> None:
    """Five clicks of a thousand repeat an earlier item. Half of the begun sessions have one click;
    in the others, 2 3, the earlier item has a third of what both and item 1 have: (7 * 5/1000 /
    (1/6))^2."""
    model = fitted(Equal, Config(), [[2, 3, 4]] * 495 + [[2, 3, 2]] * 5, items=4)
    assert model.own_factors.tolist() == pytest.approx([0, 0.21**2])


def test_few_clicks_say_nothing() -> None:
    for name in OWN_ITEMS_RANKED:
        spec = MODELS[name]
        model = fitted(spec.build, spec.config(), [[2, 3]] * (LEAST_CLICKS - 1))
        assert model.own_factors.tolist() == [1, 1]


def chains(repeated: float) -> list[list[int]]:
    """400 sessions in which an item is mostly followed by the next; a share of clicks repeats the
    item before."""
    draw = random.Random(3)
    log = []
    for _ in range(400):
        session = [draw.randint(1, 30)]
        while len(session) < 5:
            step = 0 if draw.random() < repeated else draw.choice([1, 1, 1, 7])
            session.append((session[-1] - 1 + step) % 30 + 1)
        log.append(session)
    return log


@pytest.mark.parametrize("name", OWN_ITEMS_RANKED)
def test_the_item_just_clicked_is_ranked_as_the_log_repeats_it(name: str) -> None:
    spec = MODELS[name]
    sessions = [[item, item % 30 + 1] for item in range(1, 31)]
    without = fitted(spec.build, spec.config(), chains(0.0), items=30)
    assert float(without.own_factors[0]) == 0
    for row, session in zip(scores(without, *sessions), sessions, strict=True):
        assert row[session[-1] - 1] == END == min(row)
    often = fitted(spec.build, spec.config(), chains(0.4), items=30)
    assert float(often.own_factors[0]) == 1


def test_a_log_without_repeats_from_the_command_line(tmp_path: Path) -> None:
    clicks = [
        (f"s{number}", f"i{item}", 100_000 * number + step)
        for number, session in enumerate(chains(0.2))
        for step, item in enumerate(session)
    ]
    log = write_log(tmp_path / "clicks.csv", clicks)
    shop = tmp_path / "shop"
    run = tmp_path / "run"
    prepared = command("prepare", log, "--out", shop, "--no-test", "--drop-repeats")
    assert prepared.code == 0
    assert command("train", shop, "--model", "coclick", "--out", run).code == 0
    answer = command("recommend", run, "i4", "i5", "-k", 30, "--json")
    items = json.loads(answer.out)["items"]
    assert (items[0]["item"], items[-1]["item"]) == ("i6", "i5")
