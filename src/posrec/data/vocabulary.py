"""Vocabulary: raw item id (a string) <-> 1..n; 0 is padding.

>>> vocabulary = Vocabulary(["sku-1", "sku-7"], {"title": ["Tent", None]})
>>> vocabulary.index("sku-7"), vocabulary.item(1), vocabulary.title(1), vocabulary.title(2)
(2, 'sku-1', 'Tent', 'sku-7')
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from posrec.errors import InputError, plural
from posrec.io import read_json, to_json

FILE = "vocabulary.json"


class Vocabulary:
    """The items that a dataset or model knows, with columns (title, category, ...) about them."""

    def __init__(
        self, ids: Sequence[str], columns: Mapping[str, Sequence[Any]] | None = None
    ) -> None:
        self.ids = list(ids)
        self.columns = {name: list(values) for name, values in (columns or {}).items()}
        for name, values in self.columns.items():
            if len(values) != len(self.ids):
                raise ValueError(
                    f"column {name!r} has {len(values)} values for {len(self.ids)} items"
                )

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        columns = f" with {', '.join(self.columns)}" if self.columns else ""
        return f"Vocabulary({plural(len(self), 'item')}{columns})"

    def __contains__(self, item: object) -> bool:
        return item in self._numbers

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {item: number for number, item in enumerate(self.ids, start=1)}

    def index(self, item: str) -> int:
        """Raises KeyError for an unknown item."""
        return self._numbers[item]

    def find(self, item: str) -> int | None:
        return self._numbers.get(item)

    def indices(self, items: Iterable[str]) -> list[int]:
        """The numbers of the known items, in order."""
        return [self._numbers[item] for item in items if item in self._numbers]

    def item(self, index: int) -> str:
        if not 1 <= index <= len(self.ids):
            raise IndexError(f"item {index} is not in 1..{len(self.ids)}")
        return self.ids[index - 1]

    def title(self, index: int) -> str:
        item = self.item(index)
        titles = self.columns.get("title")
        title = titles[index - 1] if titles else None
        return str(title or item)

    def to_json(self) -> str:
        content = {"ids": self.ids, "columns": self.columns}
        return to_json(content, separators=(",", ":"), default=str)

    @classmethod
    def load(cls, folder: Path) -> "Vocabulary":
        return cls.from_json(read_json(folder / FILE), folder / FILE)

    @classmethod
    def from_json(cls, content: Any, path: Path) -> "Vocabulary":
        advice = "prepare the dataset again"
        try:
            vocabulary = cls(content["ids"], content["columns"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{path} is not a vocabulary ({error}); {advice}"
            ) from None
        for number, item in enumerate(vocabulary.ids, start=1):
            if type(item) is not str:
                raise InputError(
                    f"{path}: the id of item {number} is {item!r}, not a text; {advice}"
                )
        for number, item in enumerate(vocabulary.ids, start=1):
            if vocabulary.index(item) != number:
                raise InputError(f"{path}: the id {item!r} occurs twice; {advice}")
        return vocabulary
