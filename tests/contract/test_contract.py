"""Every model passes every check of posrec.testing, and every check fails for a model that breaks what it checks."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posrec import testing
from posrec.models.base import CountingModel, SessionModel
from posrec.models.registry import ModelSpec
from posrec.nn.batch import SessionBatch
from posrec.nn.items.item_table import ItemTable
from posrec.testing import CHECKS, check_model
from tests.contract.models import MODELS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", MODELS)
def test_every_model_passes_every_check(name: str, check: Callable[[ModelSpec], None]) -> None:
    check(MODELS[name])


@pytest.mark.parametrize("name", MODELS)
def test_sessions_differ_where_the_model_reads_them(name: str) -> None:
    """Or else nothing above could fail. POP alone gives everyone the same."""
    one, other = testing.scores(testing.build(MODELS[name]), [[1, 2, 3], [9, 8, 7]])
    assert testing.alike(one, other) == (name == "pop")


@dataclass(frozen=True)
class Config:
    d: int = 16
    max_length: int = 20


class Mean(SessionModel):
    """A model that keeps the contract: a session is the mean of its items."""

    def __init__(self, items: int, config: Config) -> None:
        super().__init__(items, config)
        self.embedding = ItemTable(items, config.d)

    def session_vectors(self, batch: SessionBatch) -> Tensor:
        return self.embedding.look_up(batch.items).sum(1) / batch.lengths[:, None]


class MissesAnItem(Mean):
    def item_vectors(self) -> Tensor:
        return super().item_vectors()[:-1]


class ScoresOtherwise(Mean):
    def scores(self, batch: SessionBatch) -> Tensor:
        return super().scores(batch) + 1


class ReadsItsNeighbours(Mean):
    def session_vectors(self, batch: SessionBatch) -> Tensor:
        vectors = super().session_vectors(batch)
        return vectors - vectors.mean(0)


class DividesByTheWidth(Mean):
    def session_vectors(self, batch: SessionBatch) -> Tensor:
        return self.embedding.look_up(batch.items).sum(1) / batch.items.shape[1]


class PrefersLateNumbers(Mean):
    def item_vectors(self) -> Tensor:
        return super().item_vectors() * torch.arange(self.items, device=self.embedding.weight.device)[:, None]


class CountsUnknownItems(Mean):
    def session_vectors(self, batch: SessionBatch) -> Tensor:
        return super().session_vectors(batch) * (1 + batch.items.sum(1, keepdim=True))


class Overflows(Mean):
    def session_vectors(self, batch: SessionBatch) -> Tensor:
        return super().session_vectors(batch) * torch.exp(batch.lengths[:, None].float() ** 2)


class Remembers(Mean):
    def __init__(self, items: int, config: Config) -> None:
        super().__init__(items, config)
        self.register_buffer("seen", torch.zeros(()))

    def session_vectors(self, batch: SessionBatch) -> Tensor:
        self.seen += 1
        return super().session_vectors(batch)


class ReadsBack(Mean):
    def session_vectors(self, batch: SessionBatch) -> Tensor:
        return self.embedding.look_up(batch.items[:, : int(batch.lengths.max())]).sum(1)


class FollowsValues(Mean):
    def session_vectors(self, batch: SessionBatch) -> Tensor:
        return self.embedding.look_up(batch.items[batch.mask]).sum() + super().session_vectors(batch)


class StaysBehind(Mean):
    def session_vectors(self, batch: SessionBatch) -> Tensor:
        return super().session_vectors(batch) + torch.arange(len(batch.lengths))[:, None]


class ForgetsOnDisk(Mean):
    def __init__(self, items: int, config: Config) -> None:
        super().__init__(items, config)
        self.offset = float(torch.rand(()))  # neither a parameter nor a buffer

    def session_vectors(self, batch: SessionBatch) -> Tensor:
        return super().session_vectors(batch) + self.offset


class Unseeded(Mean):
    def __init__(self, items: int, config: Config) -> None:
        super().__init__(items, config)
        chance = torch.Generator().manual_seed(secrets.randbits(31))
        nn.init.normal_(self.embedding.weight, generator=chance)


class RandomCounts(CountingModel):
    def __init__(self, items: int, config: Config) -> None:
        super().__init__(items, config)
        self.register_buffer("clicks", torch.zeros(items))

    def count(self, items: Tensor, offsets: Tensor) -> None:
        self.clicks.copy_(torch.rand(self.items, generator=torch.Generator().manual_seed(secrets.randbits(31))))

    def scores(self, batch: SessionBatch) -> Tensor:
        return self.clicks.expand(len(batch.lengths), -1)


BROKEN: dict[type[Any], str] = {
    MissesAnItem: "scores_have_a_column_for_each_item",
    ScoresOtherwise: "scores_are_products_of_session_and_item_vectors",
    ReadsItsNeighbours: "a_session_scores_alone_as_in_a_batch",
    DividesByTheWidth: "a_session_scores_alone_as_in_a_batch",
    PrefersLateNumbers: "the_numbering_of_items_does_not_matter",
    CountsUnknownItems: "the_numbering_of_items_does_not_matter",
    Overflows: "extreme_sessions_score_finitely",
    Remembers: "scoring_changes_nothing",
    ForgetsOnDisk: "a_run_comes_back_from_disk_as_it_was",
    Unseeded: "a_seed_fixes_every_weight",
    RandomCounts: "the_numbering_of_items_does_not_matter",
}


def test_a_model_that_keeps_the_contract_passes() -> None:
    check_model(ModelSpec(Mean, Config, "the mean"))


@pytest.mark.parametrize("model", BROKEN, ids=lambda model: model.__name__)
def test_a_model_that_breaks_it_is_named_with_the_check(model: type[Any]) -> None:
    with pytest.raises(AssertionError, match=rf"^{model.__name__}: {BROKEN[model]}: "):
        check_model(ModelSpec(model, Config, "broken"))


@pytest.mark.parametrize(
    ("check", "model"),
    [
        (testing.padding_changes_no_score, DividesByTheWidth),
        (testing.unknown_items_are_all_alike, CountsUnknownItems),
        (testing.a_seed_fixes_every_weight, RandomCounts),
    ],
)
def test_checks_that_an_earlier_one_hides(check: Callable[[ModelSpec], None], model: type[Any]) -> None:
    with pytest.raises(AssertionError):
        check(ModelSpec(model, Config, "broken"))


@pytest.mark.parametrize("model", [ReadsBack, FollowsValues, StaysBehind])
def test_a_step_that_could_not_be_captured_is_caught(model: type[Mean]) -> None:
    with pytest.raises((RuntimeError, NotImplementedError), match=r"meta|Meta"):
        testing.a_step_can_be_captured(ModelSpec(model, Config, "broken"))


def test_a_model_that_gives_no_session_vectors_is_refused_where_it_is_written() -> None:
    with pytest.raises(TypeError, match=r"Empty must define session_vectors\(batch\), or vectors\(batch\)"):
        type("Empty", (SessionModel,), {})
