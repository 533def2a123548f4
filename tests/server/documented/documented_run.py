"""The run behind the answers in docs/http.md: six items of the demo shop, and weights that are
computed rather than drawn at random."""

from pathlib import Path

import numpy as np
import torch

from posrec.data.vocabulary import Vocabulary
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.recommend.recommender import Recommender
from posrec.runs.folder import Run

ITEMS = {
    "SAN1-BLU-2": ("Trekking Sandal, blue, 42", "Sandals", 300),
    "TEN5-BLK-2": ("Family Tent, black, 4 persons", "Tents", 500),
    "SAN5-BLU-2": ("Canyon Shoe, blue, 42", "Sandals", 200),
    "TEN1-BLU-1": ("Dome Tent, blue, 2 persons", "Tents", 400),
    "SLE3-BLU-2": ("Sleeping Mat, blue, long", "Sleeping", 100),
    "GLO5-BLU-2": ("Climbing Glove, blue, L", "Gloves", 50),
}


def save_documented_run(folder: Path) -> Path:
    """Items of the same category have similar vectors, so that the answers look like those of a
    trained model."""
    titles, categories, clicks = map(list, zip(*ITEMS.values(), strict=True))
    config = {"model": "posrec", "items": len(ITEMS), "d": 8}
    model = PosRec(len(ITEMS), PosRecConfig(d=8))
    with torch.no_grad():
        for parameter in model.parameters():
            numbers = torch.arange(1, parameter.numel() + 1, dtype=torch.float64)
            parameter.copy_(0.3 * torch.sin(numbers).reshape(parameter.shape))
        kinds = sorted(set(categories))
        for row, category in enumerate(categories):
            model.embedding.weight[row, kinds.index(category)] += 2
    vocabulary = Vocabulary(list(ITEMS), {"title": titles, "category": categories})
    run = Run(folder, lambda: model, vocabulary, config, np.array(clicks))
    Recommender(run, "cpu").save(folder / "run", export=False)
    return folder / "run"
