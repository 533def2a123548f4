"""Small prepared datasets for tests."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from posrec.data.arrays import SCHEMA
from posrec.data.dataset import PreparedDataset, load
from posrec.data.prepare.writer import dataset_writer
from posrec.data.vocabulary import Vocabulary


def small_dataset(
    folder: Path,
    seed: int = 0,
    items: int = 30,
    sessions: int = 120,
    new_items: int = 3,
    prefix: str = "",
) -> PreparedDataset:
    """A prepared dataset with a pattern to learn: item i is mostly followed by item i + 1.

    The test part has a fifth as many sessions, and `new_items` items that are new in it. Every id
    begins with `prefix`.
    """
    draw = random.Random(seed)
    train = [draw_session(draw, items, prefix) for _ in range(sessions)]
    all_items = items + new_items
    test = [draw_session(draw, all_items, prefix) for _ in range(sessions // 5)]
    return write_dataset(folder, train, test)


def draw_session(draw: random.Random, items: int, prefix: str) -> list[str]:
    session = [draw.randrange(items)]
    for _ in range(draw.randrange(1, 7)):
        follows = draw.random() < 0.8
        session.append((session[-1] + 1) % items if follows else draw.randrange(items))
    return [f"{prefix}{item}" for item in session]


def write_dataset(
    folder: Path, train: list[list[str]], test: list[list[str]], begins: int = 0
) -> PreparedDataset:
    """A prepared dataset of these sessions, as `posrec prepare` writes it. The first begins at the
    time `begins`, each later one a millisecond after the one before.
    """
    numbers: dict[str, int] = {}
    arrays: dict[str, npt.NDArray[Any]] = {}
    start = begins
    for split, sessions in (("train", train), ("test", test)):
        items = [item for session in sessions for item in session]
        for item in items:
            numbers.setdefault(item, len(numbers) + 1)
        arrays[f"{split}_items"] = np.array([numbers[item] for item in items])
        arrays[f"{split}_offsets"] = np.cumsum([0, *map(len, sessions)])
        arrays[f"{split}_times"] = start + np.arange(len(sessions))
        start += len(sessions)
    manifest = {"schema": SCHEMA, "steps": []}
    with dataset_writer(folder) as writer:
        writer.append(arrays)
        writer.finish(Vocabulary(list(numbers)), manifest)
    return load(folder)
