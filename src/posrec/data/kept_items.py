"""A dataset with more items than its log has: those of an older run that nobody clicks at the moment."""

import hashlib
from dataclasses import replace
from typing import Any

import torch

from posrec.data.dataset import PreparedDataset
from posrec.data.vocabulary import Vocabulary


def with_items_of(data: PreparedDataset, older: Vocabulary, known: int) -> PreparedDataset:
    """The same sessions, with items 1..known of another vocabulary among the items of training.

    Items that the training sessions have keep their numbers. Those that are added get the numbers after them, and the
    items that were there, of the test part alone or of the items file, follow. The fingerprint differs, since numbers
    do. Columns about an added item are those that the older vocabulary has.
    """
    ids, clicked = data.vocabulary.ids, data.train_items
    of_training = set(ids[:clicked])
    kept = [item for item in older.ids[:known] if item not in of_training]
    if not kept:
        return data
    added = set(kept)
    rest = [item for item in ids[clicked:] if item not in added]
    vocabulary = Vocabulary([*ids[:clicked], *kept, *rest])
    for name, values in data.vocabulary.columns.items():
        before = dict(zip(older.ids, older.columns[name], strict=True)) if name in older.columns else {}
        known_values: dict[str, Any] = {**before, **dict(zip(ids, values, strict=True))}
        vocabulary.columns[name] = [known_values.get(item) for item in vocabulary.ids]
    numbers = torch.tensor([0, *(vocabulary.index(item) for item in ids)], dtype=data.test.items.dtype)
    test = replace(data.test, items=numbers[data.test.items.long()])
    more = len(added - set(ids[: data.recommendable_items]))
    counts = {
        **data.manifest["counts"],
        "items": len(vocabulary),
        "train_items": clicked + len(kept),
        "recommendable_items": data.recommendable_items + more,
    }
    content = hashlib.blake2b(data.fingerprint.encode(), digest_size=16)
    content.update("\n".join(kept).encode())
    manifest = {**data.manifest, "counts": counts, "fingerprint": content.hexdigest()}
    return replace(data, test=test, vocabulary=vocabulary, manifest=manifest)
