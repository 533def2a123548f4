"""What benchmarks measure with: prepared and generated sessions, runs with random weights."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from posrec.config import DEFAULT_MODEL
from posrec.data.dataset import PreparedDataset, SessionDataset, load
from posrec.data.vocabulary import Vocabulary
from posrec.models.registry import MODELS
from posrec.recommend.export.writing import write_export
from posrec.recommend.rank.encoder import drawn_sessions
from posrec.recommend.recommender import Recommender
from posrec.runs.folder import Run
from posrec.runs.run import load_run


def sessions_of(data: PreparedDataset, split: SessionDataset) -> list[list[str]]:
    """The raw ids of the clicks of each session of a split."""
    return [
        [data.vocabulary.item(item) for item in split.session(number).tolist()]
        for number in range(split.sessions)
    ]


def prepare_sessions(
    folder: Path, train: list[list[str]], test: list[list[str]], **options: Any
) -> PreparedDataset:
    """A dataset of these sessions, as `posrec prepare --format sessions` makes it."""
    # Needs polars, which a machine with a GPU may lack.
    from posrec.data.prepare.pipeline import prepare

    folder.mkdir(parents=True)
    for name, sessions in (("train", train), ("test", test)):
        text = "".join(" ".join(session) + "\n" for session in sessions)
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return prepare(
        folder / "train.txt",
        "sessions",
        folder / "data",
        test=folder / "test.txt",
        **options,
    )


def saved_random_run(
    items: int,
    folder: Path,
    vocabulary: Vocabulary | None = None,
    model: str = DEFAULT_MODEL,
) -> Path:
    """A run with random weights, whose items are i0, i1, ..., clicked as by Zipf's law."""
    torch.manual_seed(0)
    spec = MODELS[model]
    config = spec.config()
    about = {"model": model, "items": items, **asdict(config), "training": {}}
    vocabulary = vocabulary or Vocabulary([f"i{number}" for number in range(items)])
    popularity = 10_000 // np.arange(1, items + 1) + 1
    network = spec.build(items, config).eval()
    run = Run(folder, lambda: network, vocabulary, about, popularity)
    Recommender(run, "cpu").save(folder, export=False)
    write_export(load_run(folder))
    return folder


def default_run_and_posrec(run: str, items: int, folder: Path) -> dict[str, Path]:
    """By the model's name: the run, or the default model of this many items with random weights;
    and PosRec of the same size."""
    first = Path(run) if run else saved_random_run(items, folder / "first")
    config = load_run(first).config
    second = saved_random_run(config["items"], folder / "posrec", model="posrec")
    return {"posrec": second, config["model"]: first}


def shoppers(run: Path, data: str, number: int) -> list[list[str]]:
    """Sessions to recommend for: prefixes of the test sessions of a prepared dataset; without one,
    items drawn by their clicks, and lengths as on Diginetica, 4 on average."""
    draw = np.random.default_rng(0)
    if data:
        dataset = load(data)
        sessions = [
            session[:-1]
            for session in sessions_of(dataset, dataset.test)
            if len(session) > 1
        ]
        return [sessions[index] for index in draw.integers(0, len(sessions), number)]
    opened = load_run(run)
    lengths = np.minimum(draw.geometric(0.25, number), 50)
    drawn = drawn_sessions(opened.popularity, lengths, draw)
    return [[opened.vocabulary.item(click) for click in session] for session in drawn]


def generated_sessions(items: int, length: int, sessions: int) -> SessionDataset:
    """Sessions of `length` clicks and one more to predict; items are drawn uniformly."""
    draw = torch.Generator().manual_seed(0)
    clicks = length + 1
    drawn = torch.randint(
        1, items + 1, (sessions * clicks,), generator=draw, dtype=torch.int32
    )
    return SessionDataset(
        drawn, torch.arange(0, len(drawn) + 1, clicks), torch.arange(sessions)
    )
