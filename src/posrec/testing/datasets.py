"""Small prepared datasets for tests."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from posrec.data.arrays import SCHEMA
from posrec.data.dataset import PreparedDataset, load
from posrec.data.prepare.writer import save_dataset
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
    parts: list[list[list[str]]] = []
    for count, last in ((sessions, items), (sessions // 5, items + new_items)):
        part = []
        for _ in range(count):
            session = [draw.randrange(last)]
            for _ in range(draw.randrange(1, 7)):
                session.append(
                    (session[-1] + 1) % last
                    if draw.random() < 0.8
                    else draw.randrange(last)
                )
            part.append([f"{prefix}{item}" for item in session])
        parts.append(part)
    return write_dataset(folder, parts[0], parts[1])


def write_dataset(
    folder: Path, train: list[list[str]], test: list[list[str]], begins: int = 0
) -> PreparedDataset:
    """A prepared dataset of these sessions, as `posrec prepare` writes it. The first begins at the
    time `begins`, each later one a millisecond after the one before."""
    numbers: dict[str, int] = {}
    for item in (item for session in [*train, *test] for item in session):
        numbers.setdefault(item, len(numbers) + 1)
    arrays: dict[str, npt.NDArray[Any]] = {}
    for part, sessions, start in (
        ("train", train, begins),
        ("test", test, begins + len(train)),
    ):
        arrays[f"{part}_items"] = np.array(
            [numbers[item] for session in sessions for item in session]
        )
        arrays[f"{part}_offsets"] = np.cumsum([0, *map(len, sessions)])
        arrays[f"{part}_times"] = start + np.arange(len(sessions))
    save_dataset(
        folder, arrays, Vocabulary(list(numbers)), {"schema": SCHEMA, "steps": []}
    )
    return load(folder)
