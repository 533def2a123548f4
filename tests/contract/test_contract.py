"""Every model passes every check of posrec.testing, and every check fails for a model that breaks
what it checks."""

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
def test_every_model_passes_every_check(
    name: str, check: Callable[[ModelSpec], None]
) -> None:
    check(MODELS[name])


@pytest.mark.parametrize("name", MODELS)
def test_sessions_differ_where_the_model_reads_them(name: str) -> None:
    """Or else nothing above could fail. POP alone gives everyone the same."""
    model = testing.build(MODELS[name])
    first, second = testing.scores(model, [[1, 2, 3], [9, 8, 7]])
    assert testing.alike(first, second) == (name == "pop")


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


class Remembers(Mean):
    seen: Tensor

    def __init__(self, items: int, config: Config) -> None:
        super().__init__(items, config)
        self.register_buffer("seen", torch.zeros(()))

    def session_vectors(self, batch: SessionBatch) -> Tensor:
        self.seen += 1
        return super().session_vectors(batch)


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
        chance = torch.Generator().manual_seed(secrets.randbits(31))
        self.clicks.copy_(torch.rand(self.items, generator=chance))

    def scores(self, batch: SessionBatch) -> Tensor:
        return self.clicks.expand(len(batch.lengths), -1)


def sessions_by(change: Callable[[Mean, SessionBatch, Tensor], Tensor]) -> type[Mean]:
    """A model whose session vectors are a change of those of Mean."""

    class Changed(Mean):
        def session_vectors(self, batch: SessionBatch) -> Tensor:
            return change(self, batch, super().session_vectors(batch))

    return Changed


class MissesAnItem(Mean):
    def item_vectors(self) -> Tensor:
        return super().item_vectors()[:-1]


class PrefersLateNumbers(Mean):
    def item_vectors(self) -> Tensor:
        vectors = super().item_vectors()
        return vectors * torch.arange(self.items, device=vectors.device)[:, None]


class ScoresOtherwise(Mean):
    def scores(self, batch: SessionBatch) -> Tensor:
        return super().scores(batch) + 1


READS_ITS_NEIGHBOURS = sessions_by(lambda model, batch, mean: mean - mean.mean(0))
DIVIDES_BY_THE_WIDTH = sessions_by(
    lambda model, batch, mean: mean * batch.lengths[:, None] / batch.items.shape[1]
)
COUNTS_UNKNOWN_ITEMS = sessions_by(
    lambda model, batch, mean: mean * (1 + batch.items.sum(1, keepdim=True))
)
OVERFLOWS = sessions_by(
    lambda model, batch, mean: mean * torch.exp(batch.lengths[:, None].float() ** 2)
)
READS_BACK = sessions_by(lambda model, batch, mean: mean + int(batch.lengths.max()))
FOLLOWS_VALUES = sessions_by(
    lambda model, batch, mean: (
        mean + model.embedding.look_up(batch.items[batch.mask]).sum()
    )
)
STAYS_BEHIND = sessions_by(
    lambda model, batch, mean: mean + torch.arange(len(batch.lengths))[:, None]
)


def test_a_model_that_keeps_the_contract_passes() -> None:
    check_model(ModelSpec(Mean, Config, "the mean"))


@pytest.mark.parametrize(
    ("model", "check"),
    [
        (MissesAnItem, "scores_have_a_column_for_each_item"),
        (ScoresOtherwise, "scores_are_products_of_session_and_item_vectors"),
        (READS_ITS_NEIGHBOURS, "a_session_scores_alone_as_in_a_batch"),
        (DIVIDES_BY_THE_WIDTH, "a_session_scores_alone_as_in_a_batch"),
        (PrefersLateNumbers, "the_numbering_of_items_does_not_matter"),
        (COUNTS_UNKNOWN_ITEMS, "the_numbering_of_items_does_not_matter"),
        (OVERFLOWS, "extreme_sessions_score_finitely"),
        (Remembers, "scoring_changes_nothing"),
        (ForgetsOnDisk, "a_run_comes_back_from_disk_as_it_was"),
        (Unseeded, "a_seed_fixes_every_weight"),
        (RandomCounts, "the_numbering_of_items_does_not_matter"),
    ],
)
def test_a_model_that_breaks_it_is_named_with_the_check(
    model: type[Any], check: str
) -> None:
    with pytest.raises(AssertionError, match=rf"^{model.__name__}: {check}: "):
        check_model(ModelSpec(model, Config, "broken"))


@pytest.mark.parametrize(
    ("check", "model", "error"),
    [
        (testing.padding_changes_no_score, DIVIDES_BY_THE_WIDTH, AssertionError),
        (testing.unknown_items_are_all_alike, COUNTS_UNKNOWN_ITEMS, AssertionError),
        (testing.a_seed_fixes_every_weight, RandomCounts, AssertionError),
        (testing.a_step_can_be_captured, READS_BACK, RuntimeError),
        (testing.a_step_can_be_captured, FOLLOWS_VALUES, RuntimeError),
        (testing.a_step_can_be_captured, STAYS_BEHIND, RuntimeError),
    ],
)
def test_checks_that_an_earlier_one_hides(
    check: Callable[[ModelSpec], None], model: type[Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"meta|Meta" if error is RuntimeError else None):
        check(ModelSpec(model, Config, "broken"))


def test_a_model_that_gives_no_session_vectors_is_refused_where_it_is_written() -> None:
    with pytest.raises(TypeError, match="Empty must define session_vectors"):
        type("Empty", (SessionModel,), {})
