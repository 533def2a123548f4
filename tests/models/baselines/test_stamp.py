"""STAMP against the paper's equations, one session at a time, without and with positional
encodings."""

import pytest
import torch
from torch import Tensor

from posrec.encodings.schemes import ENCODINGS
from posrec.models.baselines.stamp import STAMP, STAMPConfig
from tests.models import checks

SMALL = STAMPConfig(d=6, max_length=9, item_spread=0.5, weight_spread=0.5)


def slowly(model: STAMP, session: list[int]) -> Tensor:
    count = len(session)
    forward = torch.arange(count)
    positions = (forward[None], (count - 1 - forward)[None], torch.tensor([count]))
    vectors = [checks.vector(model.embedding, item) for item in session]
    clicks = torch.stack(vectors) + model.encoding(*positions)[0]
    last = clicks[-1]
    mean = clicks.mean(0)  # Eq. (2)
    w_0 = model.weight.weight[0]
    w_1 = model.of_each.weight
    b_a = model.of_each.bias
    w_2 = model.of_last.weight
    w_3 = model.of_mean.weight
    attended = mean if model.config.add_mean else torch.zeros_like(mean)
    for position, click in enumerate(clicks):
        alpha = w_0 @ (w_1 @ click + w_2 @ last + w_3 @ mean + b_a).sigmoid()  # Eq. (7)
        if model.config.encoding == "rpe":
            bias = model.encoding.attention_bias(*positions)[0, 0, -1, position]
            alpha = alpha + bias
        attended = attended + alpha * click  # Eq. (8)
    # Eq. (3)
    h_s = (model.session_network.weight @ attended + model.session_network.bias).tanh()
    h_t = (model.last_network.weight @ last + model.last_network.bias).tanh()
    return h_s * h_t  # Eq. (1), (4)


@pytest.mark.parametrize(
    "changes",
    [*({"encoding": name} for name in ENCODINGS), {"add_mean": True}],
    ids=str,
)
def test_every_encoding_agrees_with_the_equations(changes: dict[str, object]) -> None:
    model = checks.build(STAMP, SMALL, **changes)
    checks.assert_agrees(model, slowly, checks.WITH_UNKNOWN)
