"""GRU4Rec against gates and states in plain loops."""

import pytest
from torch import Tensor

from posrec.models.baselines.gru4rec import GRU4Rec, GRU4RecConfig
from posrec.nn.batch import SessionBatch
from tests.models import checks

SMALL = GRU4RecConfig(d=6, hidden=6)
VARIANTS = [
    {},
    {"layers": 3},
    {"hidden": 4},
    {"tied": False},
    {"tied": False, "hidden": 4, "layers": 2},
    {"truncated": False},
    {"truncated": False, "layers": 2},
]


def make(**changes: object) -> GRU4Rec:
    return checks.build(GRU4Rec, SMALL, **changes)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_the_session_is_the_last_state(changes: dict[str, object]) -> None:
    def slowly(model: GRU4Rec, session: list[int]) -> Tensor:
        states = [checks.vector(model.embedding, item) for item in session]
        for layer in model.recurrent.layers:
            states = checks.gru_slowly(layer, states)
        if model.map is None:
            return states[-1]
        return model.map.weight @ states[-1] + model.map.bias

    checks.assert_agrees(make(**changes), slowly, checks.WITH_UNKNOWN)


def test_tied_models_have_one_table_and_others_two() -> None:
    tied = make()
    untied = make(tied=False)
    assert tied.item_vectors().data_ptr() == tied.embedding.weight.data_ptr()
    assert untied.item_vectors().data_ptr() == untied.out.weight.data_ptr()
    assert untied.out.weight.data_ptr() != untied.embedding.weight.data_ptr()


@pytest.mark.parametrize("truncated", [True, False])
def test_a_truncated_gradient_ends_at_the_last_click(truncated: bool) -> None:
    model = make(truncated=truncated, layers=2)
    model.session_vectors(SessionBatch.of([[1, 2, 3], [4], [5, 6]])).sum().backward()
    gradient = model.embedding.weight.grad[: checks.ITEMS].abs().sum(1)
    moved = gradient.nonzero()[:, 0] + 1
    assert moved.tolist() == ([3, 4, 6] if truncated else [1, 2, 3, 4, 5, 6])
