"""What every model's scores keep to, whatever the model is."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from posrec.models.base import SessionModel
from posrec.models.registry import ModelSpec
from posrec.nn.batch import SessionBatch
from posrec.nn.item_table import MULTIPLE
from tests.contract.models import ITEMS, MODELS, TRAINED, alike, make, scores, scores_of, sessions

every_model = pytest.mark.parametrize("spec", MODELS.values(), ids=MODELS)
every_trained_model = pytest.mark.parametrize("spec", [MODELS[name] for name in TRAINED], ids=TRAINED)

BATCH = [[3], [5, 5, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9], [7, 8, 7, 8], [37, 1], *sessions(8)]
NEVER_SEEN = (ITEMS + 1, ITEMS + 20, 1_000_000)


@every_model
def test_shapes(spec: ModelSpec) -> None:
    model = make(spec)
    assert scores(model, *BATCH).shape == (len(BATCH), ITEMS)
    assert model.items == ITEMS
    assert model.config.max_length >= 1  # type: ignore[union-attr]


@every_trained_model
def test_scores_are_products_of_session_and_item_vectors(spec: ModelSpec) -> None:
    """What the loss, the index for large catalogues and the export stand on; training's `vectors` are the same."""
    model, batch = make(spec), SessionBatch.of(BATCH)
    of_sessions, of_items = model.session_vectors(batch), model.item_vectors()
    assert of_sessions.shape == (len(BATCH), of_items.shape[1])
    assert len(of_items) == ITEMS
    assert alike(scores_of(model, batch), of_sessions @ of_items.T)
    for_training, table = model.vectors(batch)
    assert alike(for_training, of_sessions)
    assert alike(table[:ITEMS], of_items)


@every_model
def test_a_session_scores_alone_as_in_a_batch(spec: ModelSpec) -> None:
    model = make(spec)
    together = scores(model, *BATCH)
    for row, session in enumerate(BATCH):
        assert alike(scores(model, session)[0], together[row]), session


@every_model
def test_padding_changes_nothing(spec: ModelSpec) -> None:
    model, batch = make(spec), SessionBatch.of(BATCH)
    expected = scores_of(model, batch)
    assert alike(scores_of(model, SessionBatch(pad(batch.items, (0, 7)), batch.lengths)), expected)
    assert alike(scores_of(model, replace(batch, capacity=sum(map(len, BATCH)) + 30)), expected)


@every_model
def test_sessions_differ_where_the_model_reads_them(spec: ModelSpec) -> None:
    """Or else nothing above could fail. POP alone gives everyone the same."""
    different = not alike(*scores(make(spec), [1, 2, 3], [9, 8, 7]))
    assert different == (spec is not MODELS["pop"])


@every_model
def test_how_items_are_numbered_is_irrelevant(spec: ModelSpec) -> None:
    """With every item renumbered, in what was learned or counted and in the session, it gets the score it had."""
    new_number = torch.randperm(ITEMS, generator=torch.Generator().manual_seed(3)) + 1  # of item i + 1

    def renumbered(of: list[list[int]]) -> list[list[int]]:
        return [new_number[torch.tensor(session) - 1].tolist() for session in of]

    if not spec.is_trained:
        other = make(spec, counted=renumbered(sessions()))
    else:
        other = make(spec)
        move_rows(other, new_number - 1)
    expected = scores(make(spec), *BATCH)
    assert alike(scores(other, *renumbered(BATCH))[:, new_number - 1], expected)
    assert not alike(scores(other, *BATCH), expected)


def move_rows(model: nn.Module, to: Tensor) -> None:
    """Row i of every table that has a row an item goes to row to[i]; tables may be filled up to a multiple."""
    tables = [tensor for tensor in model.state_dict().values() if tensor.dim() and is_table(len(tensor))]
    assert tables
    for table in tables:
        table[to] = table[: len(to)].clone()


def is_table(rows: int) -> bool:
    return rows in (ITEMS, ITEMS + 1, -(-ITEMS // MULTIPLE) * MULTIPLE)


@every_model
def test_items_never_seen_in_training_are_all_alike(spec: ModelSpec) -> None:
    model = make(spec)
    for template in ([None], [1, None], [None, 2], [1, None, 2, None, 3]):
        batch = [[number or unknown for number in template] for unknown in NEVER_SEEN]
        found = scores(model, *batch)
        assert found.shape == (len(NEVER_SEEN), ITEMS)
        assert found.isfinite().all()
        # But for rounding: rows of a product may be summed in different orders.
        assert alike(found[0], found[1])
        assert alike(found[0], found[2])


@every_model
@pytest.mark.parametrize(
    "session", [[4], [4] * 200, [1 + click * 7 % ITEMS for click in range(200)]], ids=["one", "same", "long"]
)
def test_the_shortest_and_the_longest_sessions_score_finitely(spec: ModelSpec, session: list[int]) -> None:
    assert scores(make(spec), session).isfinite().all()


@every_model
def test_scoring_changes_nothing(spec: ModelSpec) -> None:
    model = make(spec)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first, again = scores(model, *BATCH), scores(model, *BATCH)
    assert torch.equal(first, again)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def step_without_values(model: SessionModel) -> None:
    """A forward and backward pass on tensors that have shapes but no values."""
    model = model.train().to("meta")
    items = torch.zeros(5, 9, dtype=torch.long, device="meta")
    batch = SessionBatch(items, items[:, 0] + 1, items[:, 0] + 1, capacity=45)
    batch = replace(batch, graph=model.build_graph(batch))
    of_sessions, table = model.vectors(batch)
    (of_sessions @ table.T).sum().backward()
    assert of_sessions.device.type == table.device.type == "meta"


@every_trained_model
def test_a_step_reads_no_value_back_and_stays_on_its_device(spec: ModelSpec) -> None:
    """A value read, a shape that follows values or a tensor left on the CPU fails on the device that holds no values
    as it would while a step is captured on a GPU."""
    step_without_values(make(spec))


class Weighted(SessionModel):
    def __init__(self) -> None:
        super().__init__(9, None)
        self.weight = nn.Parameter(torch.zeros(9, 9))

    def vectors(self, batch: SessionBatch) -> tuple[Tensor, Tensor]:
        return self.weight[self.rows(batch)], self.weight

    def rows(self, batch: SessionBatch) -> Tensor:
        raise NotImplementedError


class ReadsBack(Weighted):
    def rows(self, batch: SessionBatch) -> Tensor:
        return batch.lengths[: int(batch.lengths.max())]


class FollowsValues(Weighted):
    def rows(self, batch: SessionBatch) -> Tensor:
        return batch.items[batch.mask]


class StaysBehind(Weighted):
    def rows(self, batch: SessionBatch) -> Tensor:
        return batch.lengths + torch.arange(len(batch.lengths))


@pytest.mark.parametrize("model", [ReadsBack, FollowsValues, StaysBehind])
def test_a_step_that_could_not_be_captured_is_caught(model: type[Weighted]) -> None:
    with pytest.raises((RuntimeError, NotImplementedError), match=r"meta|Meta"):
        step_without_values(model())


def test_a_model_that_gives_no_session_vectors_is_refused_where_it_is_written() -> None:
    with pytest.raises(TypeError, match=r"Empty must define session_vectors\(batch\), or vectors\(batch\)"):
        type("Empty", (SessionModel,), {})
