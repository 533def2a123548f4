"""A small dataset with something to learn: item i is mostly followed by item i + 1."""

import random
from pathlib import Path

import pytest

from posrec.data.prepare import prepare
from posrec.data.sessions import PreparedDataset
from posrec.listener import SilentListener

ITEMS = 30


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return make(tmp_path_factory.mktemp("small"), seed=0)


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    """Another dataset of the same kind."""
    return make(tmp_path_factory.mktemp("other"), seed=9)


def make(folder: Path, seed: int) -> PreparedDataset:
    draw = random.Random(seed)
    for name, count in (("train", 300), ("test", 60)):
        lines = []
        for _ in range(count):
            item = draw.randrange(ITEMS)
            session = [item]
            for _ in range(draw.randrange(1, 7)):
                item = (item + 1) % ITEMS if draw.random() < 0.8 else draw.randrange(ITEMS)
                session.append(item)
            lines.append(" ".join(str(item) for item in session))
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    train, test = folder / "train.txt", folder / "test.txt"
    return prepare(train, "sessions", folder / "data", test=test, listener=SilentListener())
