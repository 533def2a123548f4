"""The item vectors of a run's export (items.safetensors), with what a search on a CPU needs of them.

The file has `item_vectors [n, d]`, `rounded` (the file of rounded.py as bytes; empty where there is none) and, where a
model has others than its item vectors, `similarity_vectors [n, d]`.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from posrec.errors import InputError
from posrec.recommend.rank.best_items import Floats
from posrec.recommend.rank.rounded import prefers_signed, rounded_items


@dataclass(frozen=True)
class ItemVectors:
    table: Floats  # [n, d]
    similar: Floats  # [n, d] the vectors by whose cosine items are similar
    rounded: bytes | None  # the file of rounded.py; None: it is computed


def item_vectors_content(table: Floats, similar: Floats) -> bytes:
    """The content of the file; `similar` are the vectors by whose cosine items are similar."""
    from safetensors.numpy import save

    signed = prefers_signed(table.size)
    arrays: dict[str, Any] = {
        "item_vectors": table,
        "rounded": np.frombuffer(rounded_items(table, signed) or b"", np.uint8),
    }
    if not np.array_equal(table, similar):
        arrays["similarity_vectors"] = similar
    return save(arrays, {"signed": str(signed)})


def parse_item_vectors(content: bytes, path: Path, items: int) -> ItemVectors:
    """`content` is that of the file `path`, which an error names, of a run with so many items."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        table = arrays["item_vectors"]
        if len(table) != items:
            raise ValueError(f"it has {len(table)} items, and the run has {items}")
        # They are rounded again where the file was made on another kind of processor.
        suits = arrays["rounded"].size and header["__metadata__"]["signed"] == str(prefers_signed(table.size))
        rounded = arrays["rounded"].tobytes() if suits else None
        return ItemVectors(table, arrays.get("similarity_vectors", table), rounded)
    except (SafetensorError, LookupError, TypeError, ValueError) as error:
        raise InputError(f"{path} can't be read ({error}); write it again with posrec export --overwrite") from None
