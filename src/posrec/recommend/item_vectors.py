"""The file of a run's item vectors in the cache, which is mapped into memory: several workers share its pages.

It is a safetensors file with `item_vectors [n, d]`, `rounded` (the file of rounded.py as bytes; empty where there is
none) and, where a model has others than its item vectors, `similarity_vectors [n, d]`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from posrec.errors import InputError
from posrec.io import whole_file
from posrec.recommend.best_items import Floats
from posrec.recommend.rounded import prefers_signed, rounded_items
from posrec.recommend.search import ExactSearch

DTYPES = {"F32": np.float32, "U8": np.uint8}


@dataclass(frozen=True)
class ItemVectors:
    """Of a model; `load_similar` returns the vectors by whose cosine items are similar."""

    table: Floats
    load_similar: Callable[[], Floats]
    has_own_items: bool  # whether the model has a term for the session's own items
    rounded: bytes | None = None  # the file of rounded.py; None: it is computed

    def exact_search(self, cores: int) -> ExactSearch:
        return ExactSearch(self.table, self.rounded, cores)


def write_item_vectors(path: Path, table: Floats, similar: Floats, has_own_items: bool) -> None:
    """Replace the file; `similar` are the vectors by whose cosine items are similar."""
    from safetensors.numpy import save

    signed = prefers_signed(table.size)
    arrays: dict[str, Any] = {
        "item_vectors": table,
        "rounded": np.frombuffer(rounded_items(table, signed) or b"", np.uint8),
    }
    if not np.array_equal(table, similar):
        arrays["similarity_vectors"] = similar
    with whole_file(path, overwrite=True) as unfinished:
        unfinished.write_bytes(save(arrays, {"signed": str(signed), "own_items": str(has_own_items)}))


def read_item_vectors(path: Path, items: int) -> ItemVectors:
    """The file of a run with so many items; an InputError if it is damaged or of another run."""
    try:
        arrays, about = mapped(path)
        table = arrays["item_vectors"]
        if len(table) != items:
            raise ValueError(f"it has {len(table)} items, and the run has {items}")
        similar = arrays.get("similarity_vectors", table)
        # They are rounded again where the file was made on another kind of processor.
        suits = arrays["rounded"].size and about["signed"] == str(prefers_signed(table.size))
        rounded = arrays["rounded"].tobytes() if suits else None
        return ItemVectors(table, lambda: similar, about["own_items"] == "True", rounded)
    except (LookupError, TypeError, AttributeError, ValueError, OSError) as error:
        raise InputError(f"{path} can't be read ({error})") from None


def mapped(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The arrays of a safetensors file, mapped into memory, and its metadata."""
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        size = path.stat().st_size
        if not 8 < start <= size:
            raise ValueError("it has no header")
        header = json.loads(file.read(start - 8))
    about = header.pop("__metadata__")
    if start + max(entry["data_offsets"][1] for entry in header.values()) != size:
        raise ValueError("it is cut short")  # to read beyond the end of a mapped file would end the process
    content = np.memmap(path, np.uint8, mode="r")
    arrays = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        part = content[start + begin : start + end]
        arrays[name] = np.asarray(part).view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return arrays, about
