"""Users' own encodings in training, and runs that have one: recorded, and opened only with the
encoding named again."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import posrec
from posrec.data.dataset import PreparedDataset
from posrec.errors import InputError
from posrec.models.registry import MODELS, find_encoding
from posrec.progress import SilentProgress
from posrec.testing import same
from tests.helpers import command, items_of, plain_values, refused

QUICK: dict[str, Any] = {
    "d": 16,
    "epochs": 1,
    "batch_size": 64,
    "max_length": 10,
    "protocol": "paper",
}
SETTINGS = [f"--set={name}={value}" for name, value in QUICK.items()]
TRAIN = ("--model", "posrec", "--out", "run", "--device", "cpu", *SETTINGS)
MINE = '''"""An encoding as a function of fixed width, and as a class of any width."""
import torch
from torch import nn


def nearness(forward, backward, length):
    both = torch.stack([1 / (1 + forward), 1 / (1 + backward)], dim=-1)
    return both.repeat(1, 1, 8)  # d = 16


class Nearness(nn.Module):
    def __init__(self, d, max_length):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, d))

    def forward(self, forward, backward, length):
        return torch.stack([1 / (1 + forward), 1 / (1 + backward)], dim=-1) @ self.weight


def narrow(forward, backward, length):
    return nearness(forward, backward, length)[..., :8]


def two_arguments(forward, backward):
    return forward


number = 5
'''


class Start(torch.nn.Module):
    def __init__(self, d: int, max_length: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, d)
        torch.nn.init.constant_(self.linear.weight, 7.0)

    def forward(self, forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        first: Tensor = self.linear((forward == 0).unsqueeze(-1).float())
        return first


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def encoding_of(run: Path) -> str:
    return str(json.loads((run / "config.json").read_text())["encoding"])


@pytest.mark.parametrize("name", ["nearness", "Nearness"])
def test_a_run_records_its_encoding_and_opens_only_with_it(
    small: PreparedDataset, here: Path, name: str
) -> None:
    done = command("train", small.path, *TRAIN, "--set", f"encoding=mine.py:{name}")
    assert done.code == 0, done.err
    assert encoding_of(here / "run") == f"{here / 'mine.py'}:{name}"
    touching = f"from pathlib import Path\nPath('ran').touch()\n{MINE}"
    (here / "mine.py").write_text(touching)
    for words in (("evaluate", "run", small.path), ("recommend", "run", "i1")):
        message = refused(*words)
        assert f"{here / 'mine.py'}:{name}; if you trust that code" in message
    assert not (here / "ran").exists()
    metrics = json.loads((here / "run" / "metrics.json").read_text())
    named = ("--json", "--encoding", f"mine.py:{name}")
    again = command("evaluate", "run", small.path, *named)
    found = plain_values(json.loads(again.out))
    assert found == pytest.approx(plain_values(metrics))
    shown = command("recommend", "run", "i1", "-k", 2, *named)
    items = [answer["item"] for answer in json.loads(shown.out)["items"]]
    opened = posrec.Recommender.load("run", "cpu", encoding=f"mine.py:{name}")
    assert items == items_of(opened.recommend(["i1"], 2))


def test_a_run_is_resumed_and_started_from_with_its_encoding_only(
    small: PreparedDataset, here: Path
) -> None:
    train = ("train", small.path, *TRAIN)
    nearness = "--set=encoding=mine.py:Nearness"
    assert command(*train, nearness).code == 0
    assert command(*train, "--resume", nearness).code == 0
    other = refused(*train, "--resume", "--set=encoding=mine.py:nearness")
    assert "encoding was" in other
    start = ("train", small.path, "--from", "run", "--out", "next", "--device", "cpu")
    assert "--set encoding=FILE.py:NAME" in refused(*start)
    done = command(*start, nearness)
    assert done.code == 0, done.err
    assert encoding_of(here / "next") == f"{here / 'mine.py'}:Nearness"


def test_fit_starts_from_a_run_in_memory_with_its_encoding(
    small: PreparedDataset,
) -> None:
    silent = SilentProgress()
    first = posrec.fit(small, "posrec", "cpu", silent, encoding=Start, **QUICK).run
    second = posrec.fit(small, device="cpu", progress=silent, start_from=first).run
    assert second.config["encoding"] == first.config["encoding"]
    assert second.model.state_dict().keys() == first.model.state_dict().keys()


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        ("gone.py:nearness", "there is no file"),
        ("mine.py:nothing", "'nothing' is missing there"),
        ("mine.py:number", "of type int"),
        ("mine.py:two_arguments", "TypeError: two_arguments()"),
        ("nearness", "'nearness' is not known"),
        ("mine.py:narrow", "mine.py:narrow: the encoding gave torch.float32 (1, 2, 8)"),
    ],
)
def test_the_error_says_what_is_wrong(
    small: PreparedDataset, here: Path, encoding: str, message: str
) -> None:
    words = ("train", small.path, *TRAIN, "--set", f"encoding={encoding}")
    assert message in refused(*words)
    assert not (here / "run").exists()


def test_posrecs_own_encoding_needs_no_other(trained: Path) -> None:
    with pytest.raises(InputError, match="needs no other"):
        posrec.load_run(trained, encoding=Start)


@pytest.mark.parametrize("model", ["posrec", "posrec-plus", "stamp", "sasrec"])
def test_the_weights_of_ones_own_encoding_are_kept(model: str) -> None:
    spec = MODELS[model]
    built: Any = spec.build(30, spec.config(d=16, encoding=find_encoding(Start)))
    assert torch.equal(built.encoding.function.linear.weight, torch.full((16, 1), 7.0))
    assert built.embedding.weight.abs().max() < 7


def test_a_module_is_not_changed_by_training(
    small: PreparedDataset, tmp_path: Path
) -> None:
    """`refit` builds two models; both start with the weights that the module has."""
    module = Start(16, 10)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    settings = {**QUICK, "protocol": "refit", "encoding": module}
    recommender = posrec.fit(small, "posrec", "cpu", SilentProgress(), **settings)
    assert same(module.state_dict(), before)
    trained: Any = recommender.model.encoding.function
    assert not torch.equal(trained.linear.weight, module.linear.weight)
    recommender.save(tmp_path / "run")
    assert encoding_of(tmp_path / "run") == f"{__name__}:Start"
    opened = posrec.Recommender.load(tmp_path / "run", "cpu", encoding=Start)
    assert opened.recommend(["i1"]) == recommender.recommend(["i1"])


@pytest.mark.parametrize("model", ["posrec", "posrec-plus", "stamp", "sasrec"])
def test_padding_does_not_make_the_loss_infinite(
    small: PreparedDataset, here: Path, model: str
) -> None:
    """1 / (1 + backward) would be 1 / 0 at the first position of padding."""
    settings = {**QUICK, "encoding": "mine.py:Nearness"}
    recommender = posrec.fit(small, model, "cpu", SilentProgress(), **settings)
    assert recommender.model.encoding.function.weight.isfinite().all()


def test_an_attention_bias_of_ones_own_is_used() -> None:
    class Biased(Start):
        def attention_bias(
            self, forward: Tensor, backward: Tensor, length: Tensor
        ) -> Tensor:
            return torch.full((1, 1, 2, 2), 3.0)

    encoding = posrec.make_encoding(find_encoding(Biased), d=4, max_length=9)
    positions = (torch.tensor([[0, 1]]), torch.tensor([[1, 0]]), torch.tensor([2]))
    bias = posrec.attention_bias(encoding, *positions)
    assert bias is not None
    assert bias.unique().tolist() == [3.0]


def test_a_search_with_ones_own_encoding(small: PreparedDataset, here: Path) -> None:
    settings = ("--set=d=16", "--set=encoding=mine.py:Nearness")
    options = ("--trials", 1, "--epochs", 1, *settings)
    done = command("tune", small.path, "--model", "stamp", "--out", "tuning", *options)
    assert done.code == 0, done.err
    assert "--set encoding=mine.py:Nearness" in done.out.splitlines()[-1]
