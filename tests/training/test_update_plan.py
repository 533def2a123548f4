"""How the update of the item table is divided: every row is updated, whatever the GPU, the batch and the catalogue."""

from hypothesis import given
from hypothesis import strategies as st

from posrec.training.update_plan import FEWEST, plan_update


@given(st.integers(1, 300), st.integers(1, 5000), st.integers(1, 10_000_000), st.integers(1, 256))
def test_every_part_has_programs(multiprocessors: int, sessions: int, rows: int, d: int) -> None:
    plan = plan_update(multiprocessors, sessions, rows, d)
    assert 0 <= plan.first_rows <= rows
    assert plan.last_programs > 0
    assert (plan.first_rows > 0) == (plan.first_programs > 0) == (multiprocessors - sessions >= FEWEST)


def test_a_large_table_is_updated_by_the_whole_gpu() -> None:
    few_rows, many_rows = (plan_update(132, 16, rows, 100) for rows in (50_000, 1_000_000))
    assert few_rows.first_rows == 50_000
    assert many_rows.first_rows == 116 * 1150
    assert many_rows.last_programs == 264


def test_a_batch_that_occupies_the_gpu_leaves_nothing_for_meanwhile() -> None:
    assert plan_update(132, 117, 43_097, 100).first_rows == 0
    assert plan_update(132, 116, 43_097, 100).first_rows == 16 * 1150
