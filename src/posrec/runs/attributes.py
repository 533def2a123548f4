"""attributes.safetensors: what gives an item a vector by its attributes, in a run that was trained
with them. It is read without torch.

Its tensors are T, the vectors of the values, and M, the map of the user's own vectors; with them an
item has the vector a_i of nn/items/attribute_vectors.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from posrec.data.attribute_reader import AttributeReader, Floats
from posrec.errors import InputError
from posrec.io.files import parse_arrays

AT_ONCE = 1000  # items
LARGEST = 1e9  # of the numbers, so that their products are finite


@dataclass(frozen=True)
class Attributes:
    reader: AttributeReader
    of_values: Floats  # [values, d] T
    map: Floats  # [k, d] M

    @property
    def parts(self) -> tuple[dict[str, Floats], dict[str, Any]]:
        """The arrays and the note of the file."""
        arrays = {"of_values": self.of_values}
        if self.reader.width:
            arrays["map"] = self.map
        return arrays, {"columns": self.reader.as_json()}

    @classmethod
    def parse(cls, content: bytes, path: Path, d: Any) -> Self:
        """The content of the file `path`, for vectors of d numbers."""
        parts = parse_arrays(content, path)
        try:
            return cls.of(*parts, d)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise InputError(
                f"{path} can't be read ({error}); copy or train the run again"
            ) from None

    @classmethod
    def of(cls, arrays: Mapping[str, Floats], about: Mapping[str, Any], d: Any) -> Self:
        """From the parts of a model's `attribute_parts`, as arrays; a ValueError if they do not
        fit each other."""
        reader = AttributeReader.from_json(about["columns"])
        of_values = arrays["of_values"]
        map = arrays.get("map", np.zeros((0, of_values.shape[1]), np.float32))
        if not isinstance(d, int):
            raise ValueError(f"the run's d is {d!r}")
        is_float = of_values.dtype == map.dtype == np.float32
        shapes = (of_values.shape, map.shape)
        if not is_float or shapes != ((reader.number, d), (reader.width, d)):
            raise ValueError("its tensors do not fit its columns")
        if not all((np.abs(numbers) < LARGEST).all() for numbers in (of_values, map)):
            raise ValueError("it holds numbers that are not finite, or too large")
        return cls(reader, of_values, map)

    def vectors(
        self, columns: Mapping[str, Sequence[Any]], items: int
    ) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """a [items, d] of items with these columns, and [items] whether they have a value or a
        vector that is known."""
        vectors = np.zeros((items, self.of_values.shape[1]), np.float32)
        described = np.zeros(items, np.bool_)
        for start in range(0, items, AT_ONCE):
            chunk = slice(start, start + AT_ONCE)
            part = {name: values[chunk] for name, values in columns.items()}
            self.write_vectors(part, vectors[chunk], described[chunk])
        return vectors, described

    def write_vectors(
        self,
        columns: Mapping[str, Sequence[Any]],
        vectors: Floats,
        described: npt.NDArray[np.bool_],
    ) -> None:
        """Those of some items, into zeros."""
        entries = self.reader.read(columns, len(vectors))
        described |= np.bincount(entries.rows, minlength=len(vectors)) > 0
        # scipy.sparse has this product, but its import takes a server half a second.
        weighted = entries.weights[:, None] * self.of_values[entries.values]
        begins = entries.rows.searchsorted(described.nonzero()[0])
        vectors[described] = np.add.reduceat(weighted, begins)
        if entries.vectors is not None:
            vectors += entries.vectors @ self.map
            described |= entries.vectors.any(1)
