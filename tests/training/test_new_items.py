"""posrec-plus with attributes: items without clicks are recommended by what they are."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import posrec
from posrec.data.dataset import PreparedDataset
from posrec.errors import InputError
from posrec.fitting.job import build_network
from posrec.fitting.warm_start import WarmStart
from posrec.models.posrecplus import PosRecPlus, PosRecPlusConfig
from posrec.models.registry import MODELS
from posrec.nn.items.attribute_vectors import AttributeTable
from posrec.runs.run import load_run
from tests.fixtures import QUICK_PLUS
from tests.helpers import command, fitted, refused, small_shop, write_lines, write_log
from tests.training.runs import weights_of


def test_an_item_without_clicks_is_recommended_by_what_it_is(
    described_run: Path,
) -> None:
    recommender = posrec.Recommender.load(described_run, device="cpu")
    assert recommender.items == 16
    for item in range(12):
        best = recommender.recommend([f"i{item}"], k=1, allow=["n0", "n1", "n2", "n3"])[
            0
        ].item
        assert best == f"n{(item + 1) % 4}"  # of the kind that follows
    after_new = recommender.recommend(["n0"], k=3, exclude_seen=True)[0].item
    assert after_new in ("n1", "i1", "i5", "i9")


def test_the_run_needs_nothing_new_to_be_served(
    described_run: Path, described_shop: PreparedDataset
) -> None:
    opened = load_run(described_run)
    assert opened.config["items"] == 16
    assert opened.popularity is not None
    assert opened.popularity[12:].tolist() == [0, 0, 0, 0]
    assert not [
        name for name in weights_of(described_run) if name.startswith("attributes")
    ]
    vectors = opened.model.similarity_vectors()
    # The vector of an item without clicks is that of its kind.
    cosine = torch.nn.functional.cosine_similarity(vectors[13], vectors[:12], dim=1)
    kinds = described_shop.vocabulary.columns["category"]
    assert {kinds[row] for row in cosine.topk(3).indices.tolist()} == {"mats"}


def test_dropped_items_have_their_attributes_alone_in_training() -> None:
    config = PosRecPlusConfig(d=8, attributes="category", id_dropout=0.999999)
    model = PosRecPlus(3, config)
    rows = torch.tensor([0, 1])
    model.describe(AttributeTable(rows, torch.tensor([0, 0]), torch.ones(2), number=1))
    model.count(torch.tensor([1, 2, 3, 1]), torch.tensor([0, 2, 4]))
    assert model.attributes is not None
    dropped = model.smoothed(dropout=True)
    vectors = model.smoothed()
    assert torch.equal(dropped[:2], model.attributes.of_values.expand(2, -1))
    assert torch.equal(dropped[2], vectors[2])  # it has no attributes
    assert not torch.equal(dropped[:2], vectors[:2])
    # Weights are saved without dropout, even during the training.
    assert torch.equal(model.saved_weights()["embedding.weight"], vectors)


def test_a_warm_start_keeps_the_vectors(
    described_run: Path, described_shop: PreparedDataset
) -> None:
    opened = load_run(described_run)
    config = opened.model.config
    network = build_network(MODELS["posrec-plus"], config, described_shop, print)
    assert isinstance(network, PosRecPlus)
    network.count(described_shop.train.items, described_shop.train.offsets)
    WarmStart(opened, described_shop.vocabulary, network.items).set_weights(
        network, described_shop.train
    )
    before = opened.model.similarity_vectors()
    assert torch.allclose(network.similarity_vectors(), before, atol=1e-4)
    assert network.attributes is not None
    # Most of a vector is in the attributes.
    assert network.attributes().norm() > 0.5 * network.embedding.weight.norm()


def test_without_attributes_only_clicked_items_are_known(
    described_shop: PreparedDataset, tmp_path: Path
) -> None:
    run, _ = fitted(
        described_shop, "posrec-plus", tmp_path / "run", {**QUICK_PLUS, "epochs": 1}
    )
    assert run.config["items"] == 12
    assert posrec.Recommender(run, "cpu").recommend(["n0"]).unknown == ("n0",)


def test_attributes_of_a_dataset_without_columns_are_refused(
    described_shop: PreparedDataset, tmp_path: Path
) -> None:
    settings = {"attributes": "brand"}
    plain = replace(
        described_shop, vocabulary=posrec.Vocabulary(described_shop.vocabulary.ids)
    )
    with pytest.raises(InputError, match="the dataset has none"):
        fitted(plain, "posrec-plus", tmp_path / "run", settings)


def test_all_items_in_the_command(tmp_path: Path) -> None:
    log = write_log(tmp_path / "clicks.csv", small_shop())
    items = write_lines(tmp_path / "items.csv", ["id,category", "i1,a", "new,a"])
    words = ("prepare", log, "--out", tmp_path / "data", "--all-items")
    assert "--all-items needs --items" in refused(*words)
    done = command(*words, "--items", items)
    assert done.code == 0, done.err
    data = posrec.load(tmp_path / "data")
    assert data.vocabulary.ids[data.train_items :] == ["new"]
    assert "1 of them in the items file alone" in command("stats", data.path).out
