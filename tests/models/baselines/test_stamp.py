"""STAMP against the paper's equations, one session at a time, without and with positional
encodings."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from posrec.encodings.schemes import ENCODINGS
from posrec.models.baselines.stamp import STAMP, STAMPConfig
from posrec.nn.batch import SessionBatch
from tests.models import checks

SMALL = STAMPConfig(d=6, max_length=9, item_spread=0.5, weight_spread=0.5)


def make(**changes) -> STAMP:
    torch.manual_seed(3)
    return STAMP(checks.ITEMS, replace(SMALL, **changes)).double().eval()


def slowly(model: STAMP, session: list[int]) -> Tensor:
    count = len(session)
    forward = torch.arange(count)
    positions = (forward[None], (count - 1 - forward)[None], torch.tensor([count]))
    added = model.encoding(*positions)[0]
    clicks = [
        checks.vector(model.embedding, item) + added[place]
        for place, item in enumerate(session)
    ]
    # Eq. (2)
    last = clicks[-1]
    mean = sum(clicks) / count
    w_0 = model.weight.weight[0]
    w_1 = model.of_each.weight
    b_a = model.of_each.bias
    w_2 = model.of_last.weight
    w_3 = model.of_mean.weight
    attended = mean if model.config.add_mean else torch.zeros_like(mean)
    for place, click in enumerate(clicks):
        alpha = w_0 @ (w_1 @ click + w_2 @ last + w_3 @ mean + b_a).sigmoid()  # Eq. (7)
        if model.config.encoding == "rpe":
            alpha = alpha + model.encoding.attention_bias(*positions)[0, 0, -1, place]
        attended = attended + alpha * click  # Eq. (8)
    h_s = (
        model.session_network.weight @ attended + model.session_network.bias
    ).tanh()  # Eq. (3)
    h_t = (model.last_network.weight @ last + model.last_network.bias).tanh()
    return h_s * h_t  # Eq. (1), (4)


@pytest.mark.parametrize(
    "changes",
    [*({"encoding": name} for name in ENCODINGS), {"add_mean": True}],
    ids=str,
)
def test_every_encoding_agrees_with_the_equations(changes: dict) -> None:
    checks.assert_agrees(make(**changes), slowly, checks.WITH_UNKNOWN)


def test_without_an_encoding_only_the_last_place_is_known() -> None:
    plain = make()
    placed = make(encoding="ldpe")
    mixed = SessionBatch.of([[1, 2, 3, 4], [2, 1, 3, 4]])
    for model, same in ((plain, True), (placed, False)):
        scores = model.scores(mixed)
        assert torch.allclose(scores[0], scores[1]) is same
