"""Columns of a vocabulary as attributes."""

from typing import Any

import pytest

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
    """Of each item, the weight of each of its values."""
    found = encode_attributes(SHOP, columns, items)
    entries = list(
        zip(
            found.rows.tolist(),
            found.values.tolist(),
            found.weights.tolist(),
            strict=True,
        )
    )
    assert entries == sorted(entries, key=lambda entry: entry[0])
    return [
        {value: weight for row, value, weight in entries if row == item}
        for item in range(items)
    ]


def test_the_kind_follows_from_the_values_unless_it_is_named() -> None:
    kinds = {
        "title": "words",
        "category": "category",
        "price": "number",
        "code": "category",
        "text": "vector",
    }
    assert chosen_columns("auto", SHOP) == kinds  # without the empty column
    assert chosen_columns("code:number, title:category", SHOP) == {
        "code": "number",
        "title": "category",
    }


def test_categories_words_and_numbers_become_values() -> None:
    first, second, third, fourth = bags({"category": "category"})
    assert first == third
    assert second == fourth
    assert first.keys() != second.keys()
    assert set(first.values()) == {1.0}
    red_large, red_mat, none, large_mat = bags(
        {"title": "words"}
    )  # blue and tent occur once
    assert none == {}
    assert [len(words) for words in (red_large, red_mat, large_mat)] == [2, 2, 2]
    assert set(red_large.values()) == {0.5}
    assert (
        len(red_large.keys() & red_mat.keys())
        == len(red_large.keys() & large_mat.keys())
        == 1
    )


def test_prices_are_cut_into_ranges() -> None:
    shop = Vocabulary(
        [str(number) for number in range(40)], {"price": [*map(float, range(39)), None]}
    )
    found = encode_attributes(shop, {"price": "number"}, 40)
    assert found.number == 10
    assert found.rows.tolist() == list(range(39))
    ranges = found.values.tolist()
    assert [ranges[place] == ranges[place + 1] for place in range(3)] == [
        True,
        True,
        True,
    ]
    assert len(set(ranges)) == 10


def test_values_of_several_columns_do_not_meet() -> None:
    first = bags({"category": "category", "code": "category"})[0]
    assert len(first) == 2  # tents, and 7


def test_vectors_are_scaled_and_missing_ones_are_zeros() -> None:
    found = encode_attributes(SHOP, {"text": "vector"}, 3)
    assert found.vectors is not None
    assert [[round(x, 6) for x in row] for row in found.vectors.tolist()] == [
        [1, 0],
        [0.6, 0.8],
        [0, 0],
    ]
    assert found.number == 0


def test_only_the_first_items_are_read() -> None:
    assert bags({"category": "category"}, items=2) == [
        {},
        {},
    ]  # each of their values occurs once


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


def test_values_of_another_kind_are_refused() -> None:
    with pytest.raises(InputError, match="'category' is not a column of numbers"):
        encode_attributes(SHOP, {"category": "number"}, 4)
    with pytest.raises(InputError, match="'code' must have vectors, lists of numbers"):
        encode_attributes(SHOP, {"code": "vector"}, 4)
    uneven = Vocabulary(["a", "b"], {"text": [[1.0], [1.0, 2.0]]})
    with pytest.raises(InputError, match=r"vectors of one length, not of \[1, 2\]"):
        encode_attributes(uneven, {"text": "vector"}, 2)
    words = Vocabulary(["a", "b"], {"text": [["x"], ["y"]]})
    with pytest.raises(InputError, match="must have vectors of numbers"):
        encode_attributes(words, {"text": "vector"}, 2)
