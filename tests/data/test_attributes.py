"""Columns of a vocabulary as attributes."""

from typing import Any

import pytest
import torch

from posrec.data.item_attributes import chosen_columns, encode_attributes
from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError

COLUMNS: dict[str, list[Any]] = {
    "title": ["Red tent, large", "Red mat", None, "Blue mat, large"],
    "category": ["tents", "mats", "tents", "mats"],
    "price": ["10", "20.5", None, "30"],
    "code": [7, 7, 8, None],
    "text": [[1.0, 0.0], [3.0, 4.0], None, [0.0, 2.0]],
    "empty": [None, None, None, None],
}
SHOP = Vocabulary(["a", "b", "c", "d"], COLUMNS)


def bags(columns: dict[str, str], items: int = 4) -> list[dict[int, float]]:
    """The weights of each item's values."""
    table = encode_attributes(SHOP, columns, items)
    rows = table.rows.tolist()
    assert rows == sorted(rows)
    weights: list[dict[int, float]] = [{} for _ in range(items)]
    for row, value, weight in zip(rows, table.values, table.weights, strict=True):
        weights[row][int(value)] = float(weight)
    return weights


def test_the_kind_follows_from_the_values_unless_it_is_named() -> None:
    kinds = {
        "title": "words",
        "category": "category",
        "price": "number",
        "code": "category",
        "text": "vector",
    }
    assert chosen_columns("auto", SHOP) == kinds  # without the empty column
    named = {"code": "number", "title": "category"}
    assert chosen_columns("code:number, title:category", SHOP) == named


def test_categories_words_and_numbers_become_values() -> None:
    first, second, third, fourth = bags({"category": "category"})
    assert first == third
    assert second == fourth
    assert first.keys() != second.keys()
    assert set(first.values()) == {1.0}
    red_large, red_mat, none, large_mat = bags({"title": "words"})
    assert none == {}
    # Blue and tent occur once.
    assert [len(words) for words in (red_large, red_mat, large_mat)] == [2, 2, 2]
    assert set(red_large.values()) == {0.5}
    assert len(red_large.keys() & red_mat.keys()) == 1
    assert len(red_large.keys() & large_mat.keys()) == 1


def test_prices_are_cut_into_ranges() -> None:
    prices = [*map(float, range(39)), None]
    shop = Vocabulary(list(map(str, range(40))), {"price": prices})
    table = encode_attributes(shop, {"price": "number"}, 40)
    assert table.number == 10
    assert table.rows.tolist() == list(range(39))
    ranges = table.values.tolist()
    assert len(set(ranges[:4])) == 1
    assert len(set(ranges)) == 10


def test_values_of_several_columns_do_not_meet() -> None:
    first = bags({"category": "category", "code": "category"})[0]
    assert len(first) == 2  # tents, and 7


def test_vectors_are_scaled_and_missing_ones_are_zeros() -> None:
    table = encode_attributes(SHOP, {"text": "vector"}, 3)
    expected = torch.tensor([[1, 0], [0.6, 0.8], [0, 0]])
    torch.testing.assert_close(table.vectors, expected)
    assert table.number == 0


def test_only_the_first_items_are_read() -> None:
    # Each of their values occurs once.
    assert bags({"category": "category"}, items=2) == [{}, {}]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("brand", "there is no column 'brand'"),
        ("price:money", "'money' is not a kind"),
        ("empty", "column 'empty' has no values"),
    ],
)
def test_what_is_not_a_column_is_refused(setting: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        chosen_columns(setting, SHOP)


def test_odd_columns_are_left_out_of_auto_and_reported() -> None:
    odd: dict[str, list[Any]] = {
        "list_price": ["9", "on request", "9"],
        "text": [[1.0], [1.0, 2.0], None],
        "tags": [["a"], ["b"], ["a"]],
        "category": ["tents", "tents", "mats"],
    }
    shop = Vocabulary(["a", "b", "c"], odd)
    messages: list[str] = []
    assert chosen_columns("auto", shop, messages.append) == {"category": "category"}
    assert [message.split("(")[0] for message in messages] == [
        "attributes=auto leaves a column out: column 'list_price' is not a column of numbers ",
        "attributes=auto leaves a column out: column 'text' must have vectors of one length, "
        "not of [1, 2]",
        "attributes=auto leaves a column out: column 'tags' must have vectors of numbers ",
    ]


def test_values_of_another_kind_are_refused() -> None:
    with pytest.raises(InputError, match="'category' is not a column of numbers"):
        encode_attributes(SHOP, {"category": "number"}, 4)
    with pytest.raises(InputError, match="'code' must have vectors, lists of numbers"):
        encode_attributes(SHOP, {"code": "vector"}, 4)
