"""What each attribute of an item adds to its score, in a run that was trained with attributes.

With a_ic for column c, X_i = sum_c a_ic + the rest (its id, and what is clicked with it), so for a
session's vector h, which is scaled for a cosine,

    z_i = sum_c h . a_ic / |X_i|  +  h . rest / |X_i|  (+ trend)
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from posrec.data.attribute_reader import ColumnReader
from posrec.nn.batch import SessionBatch
from posrec.recommend.results import AttributeEffect
from posrec.runs.attributes import Attributes
from posrec.runs.new_items import SHORTEST

ITSELF = "the item itself"  # what is left of its vector
# How a column is named if a click of the session has the value, the range or a word too.
SHARED = {"category": "same", "number": "similar", "words": "words of"}


@torch.inference_mode()
def attribute_effects(
    model: Any,
    attributes: Attributes,
    clicks: Sequence[int],
    items: Sequence[int],
    values_of: Callable[[int], Mapping[str, Any]],
) -> list[tuple[AttributeEffect, ...]]:
    """For each of `items`. `values_of` gives the columns from which a number has its vector."""
    weight = model.embedding.weight
    batch = SessionBatch.of([clicks], model.config.max_length, model.stride)
    batch = batch.to(weight.device)
    d = weight.shape[1]
    session = model.session_vectors(batch)[0, :d].cpu()
    numbers = torch.tensor(items, device=weight.device) - 1
    lengths = model.similarity_vectors()[numbers].norm(dim=1)
    scored = model.item_vectors()[numbers, :d]
    scale = (scored.norm(dim=1) / lengths.clamp(min=SHORTEST)).cpu()  # 1 / |X_i|, or 1
    described = [values_of(number) for number in items]
    clicked = [values_of(number) for number in batch.items[0].tolist() if number]
    effects: list[list[AttributeEffect]] = [[] for _ in items]
    rest = scored.cpu() @ session
    for column in attributes.reader.columns:
        name = column.name
        of_items = {name: [values.get(name) for values in described]}
        of_column, is_known = attributes.vectors(of_items, len(items))
        terms = torch.from_numpy(of_column) @ session * scale
        rest -= terms
        of_clicks = [values.get(name) for values in clicked]
        for row, values in enumerate(described):
            if is_known[row]:
                label = label_of(column, values.get(name), of_clicks)
                effects[row].append(AttributeEffect(name, label, float(terms[row])))
    for row, effect in enumerate(rest.tolist()):
        effects[row].append(AttributeEffect(None, ITSELF, effect))
    return [tuple(of_item) for of_item in effects]


def label_of(column: ColumnReader, value: Any, of_clicks: Sequence[Any]) -> str:
    """
    >>> label_of(ColumnReader("price", "number", bounds=[10, 20]), 12.5, [3, 19])
    'similar price'
    """
    if column.kind not in SHARED:
        return column.name
    own, *others = column.bags([value, *of_clicks])
    is_shared = any(set(own) & set(other) for other in others)
    return f"{SHARED[column.kind]} {column.name}" if is_shared else column.name
