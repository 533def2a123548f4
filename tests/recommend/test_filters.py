"""Filters by columns, against a plain restatement of what they mean, and errors that name the
columns."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from posrec.errors import InputError
from posrec.recommend.filters import FilterColumns

CATEGORY = ["tents", "mats", None, "tents", "42"]
PRICE = ["120", "35.5", None, "9", "200"]  # text, as a CSV file has it
WEIGHT = [1, 2.5, None, 42, 42.0]
TAGS = [["blue", "new"], [], None, ["new"], ["blue"]]
SALE = [True, False, None, True, False]
STOCK = ["True", "False", "few", None, "true"]
ITEMS = FilterColumns(
    {
        "category": CATEGORY,
        "price": PRICE,
        "weight": WEIGHT,
        "tags": TAGS,
        "sale": SALE,
        "stock": STOCK,
    },
    items=5,
)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({}, [1, 1, 1, 1, 1]),
        ({"category": "tents"}, [1, 0, 0, 1, 0]),
        ({"category": ["tents", "mats", "none of these"]}, [1, 1, 0, 1, 0]),
        ({"category": 42}, [0, 0, 0, 0, 1]),
        ({"category": None}, [0, 0, 1, 0, 0]),
        ({"category": {"not": ["tents", None]}}, [0, 1, 0, 0, 1]),
        ({"category": []}, [0, 0, 0, 0, 0]),
        ({"price": {"min": 35.5, "max": 120}}, [1, 1, 0, 0, 0]),
        ({"price": {"max": 10**400}}, [1, 1, 0, 1, 1]),
        ({"weight": 42}, [0, 0, 0, 1, 1]),
        ({"weight": ["42", 2.5]}, [0, 1, 0, 1, 1]),
        ({"weight": ["2.50", "042"]}, [0, 1, 0, 0, 0]),
        ({"tags": "new"}, [1, 0, 0, 1, 0]),
        ({"tags": {"not": "new"}}, [0, 1, 1, 0, 1]),
        ({"sale": "false"}, [0, 1, 0, 0, 1]),
        ({"sale": "True"}, [1, 0, 0, 1, 0]),  # as Python prints it
        ({"stock": True}, [1, 0, 0, 0, 1]),
        ({"stock": ["True", "few"]}, [1, 0, 1, 0, 1]),
        ({"price": {"below": 120}}, [0, 1, 0, 1, 0]),
        ({"price": {"above": 35.5, "max": 200}}, [1, 0, 0, 0, 1]),
        ({"price": {"above": 9, "not": [120]}}, [0, 1, 0, 0, 1]),
        ({"price": {"above": None}}, [1, 1, 0, 1, 1]),
        ({"category": "tents", "price": {"min": 100}}, [1, 0, 0, 0, 0]),
    ],
)
def test_filters_worked_out_by_hand(
    condition: dict[str, Any], expected: list[int]
) -> None:
    assert ITEMS.matching(condition).tolist() == list(map(bool, expected))


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ({"colour": "red"}, "no column 'colour'; they have category, price, weight"),
        ({"category": {"below": 3, "not": "tents"}}, "does not hold numbers, so below"),
        ({"tags": {"min": 3}}, "'tags' does not hold numbers"),
        ({"sale": {"min": 0}}, "'sale' does not hold numbers"),
        ({"price": {"mx": 3}}, "'price' must be a value"),
        ({"price": {}}, "'price' must be a value"),
        ({"price": {"max": "cheap"}}, "must be a number, not 'cheap'"),
        ({"price": {"max": True}}, "must be a number, not True"),
        ({"price": [[1]]}, "'price' must be a value"),
        (["tents"], "must be a mapping"),
    ],
)
def test_wrong_filters_have_a_plain_message(condition: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ITEMS.matching(condition)


def test_without_columns_the_error_says_where_they_come_from() -> None:
    with pytest.raises(InputError, match="posrec prepare --items FILE adds them"):
        FilterColumns({}, items=3).matching({"price": 1})


def test_groups_are_the_first_values_and_items_without_one_are_alone() -> None:
    groups = ITEMS["tags"].groups.tolist()
    assert groups[0] == groups[4]
    assert len({*groups}) == 4  # blue, an item without tags twice, new
    assert ITEMS["category"].groups[0] == ITEMS["category"].groups[3]
    assert len({*ITEMS["category"].groups.tolist()}) == 4


VALUES = st.sampled_from(["a", "b", "c", None])


@given(
    st.lists(st.one_of(VALUES, st.lists(VALUES, max_size=3)), min_size=1, max_size=12),
    st.lists(VALUES, max_size=3),
)
def test_any_values_are_found_as_a_plain_loop_finds_them(
    column: list[Any], values: list[Any]
) -> None:
    attributes = FilterColumns({"column": column}, len(column))
    matching = attributes.matching({"column": values})
    others = attributes.matching({"column": {"not": values}})
    for position, value in enumerate(column):
        item_values = value if isinstance(value, list) else [value]
        expected = any(single in values for single in item_values)
        assert matching[position] == expected
        assert others[position] != expected
