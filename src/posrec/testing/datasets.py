"""Small prepared datasets for tests."""

import json
import random
from pathlib import Path

import numpy as np

from posrec.data.dataset import PreparedDataset, fingerprint, load
from posrec.data.vocabulary import Vocabulary


def small_dataset(
    folder: Path, seed: int = 0, items: int = 30, sessions: int = 120, new_items: int = 3, prefix: str = ""
) -> PreparedDataset:
    """A prepared dataset with a pattern to learn: item i is mostly followed by item i + 1.

    The test part has a fifth as many sessions as the training part, and `new_items` items that are not in the training
    part. Every id begins with `prefix`.
    """
    draw = random.Random(seed)
    parts: list[list[list[str]]] = []
    for count, last in ((sessions, items), (sessions // 5, items + new_items)):
        part = []
        for _ in range(count):
            session = [draw.randrange(last)]
            for _ in range(draw.randrange(1, 7)):
                session.append((session[-1] + 1) % last if draw.random() < 0.8 else draw.randrange(last))
            part.append([f"{prefix}{item}" for item in session])
        parts.append(part)
    return write_dataset(folder, *parts)


def write_dataset(folder: Path, train: list[list[str]], test: list[list[str]]) -> PreparedDataset:
    """A prepared dataset of the given sessions, as `posrec prepare` would write it, without polars."""
    numbers: dict[str, int] = {}
    for item in (item for session in [*train, *test] for item in session):
        numbers.setdefault(item, len(numbers) + 1)
    folder.mkdir(parents=True)
    for name, sessions in (("train", train), ("test", test)):
        flat = [numbers[item] for session in sessions for item in session]
        np.save(folder / f"{name}_items.npy", np.array(flat, dtype=np.int32))
        np.save(folder / f"{name}_offsets.npy", np.cumsum([0, *map(len, sessions)], dtype=np.int64))
        np.save(folder / f"{name}_times.npy", np.arange(len(sessions), dtype=np.int64))
    (folder / "vocabulary.json").write_text(Vocabulary(list(numbers)).to_json(), encoding="utf-8")
    validation_start = len(train) - max(1, round(0.1 * len(train)))
    counts: dict[str, int] = {
        "clicks": sum(map(len, [*train, *test])), "items": len(numbers),
        "train_items": len({item for session in train for item in session}),
        "train_sessions": len(train), "test_sessions": len(test),
        "train_samples": sum(map(len, train)) - len(train), "test_samples": sum(map(len, test)) - len(test),
    }  # fmt: skip
    manifest = {
        "schema": 1, "validation_start": validation_start, "counts": counts, "steps": [],
        "fingerprint": fingerprint(folder, validation_start),
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return load(folder)
