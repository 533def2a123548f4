"""On a GPU: captured and compiled steps do what eager steps do. Skipped where there is none."""

import pytest
import torch

from posrec.data.batch import collate
from posrec.data.graph import build_graph
from posrec.data.sessions import SessionDataset
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.training.losses import full_softmax
from posrec.training.step import STEPS_AT_ONCE, CapturedStepper, Stepper

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ITEMS, BATCH, LONGEST = 30, 20, 6


def sessions() -> SessionDataset:
    random = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, 9, (200,), generator=random)
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    items = torch.randint(1, ITEMS + 1, (int(offsets[-1]),), generator=random, dtype=torch.int32)
    return SessionDataset(items, offsets, torch.arange(200))


def stepper(kind: type[Stepper]) -> Stepper:
    torch.manual_seed(0)
    model = PosRec(ITEMS, PosRecConfig(d=16, max_length=LONGEST)).cuda()
    rate = torch.tensor(0.01, device="cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=True, capturable=True)
    return kind(model, optimizer, sessions().to("cuda"), full_softmax(ITEMS), BATCH, LONGEST)


def test_captured_steps_are_the_eager_ones() -> None:
    eager, captured = stepper(Stepper), stepper(CapturedStepper)
    assert isinstance(captured, CapturedStepper)
    captured.capture(capacity=128)
    ids = torch.randint(len(sessions()), ((STEPS_AT_ONCE + 1) * BATCH,), device="cuda")
    weights = torch.ones(len(ids), device="cuda")
    weights[-5:] = 0
    cut = STEPS_AT_ONCE * BATCH
    for part in (slice(0, cut), slice(cut, None)):
        expected = eager.run(ids[part], weights[part])
        assert torch.allclose(captured.replay(ids[part], weights[part]), expected, rtol=2e-3)


def test_batches_and_graphs_are_the_same_on_both_devices() -> None:
    data, ids = sessions(), torch.arange(300)
    here, there = collate(data, ids, LONGEST), collate(data.to("cuda"), ids.cuda(), LONGEST)
    assert torch.equal(here.items, there.items.cpu())
    assert torch.equal(here.lengths, there.lengths.cpu())
    for name, value in vars(build_graph(here)).items():
        if value is None:
            continue
        assert torch.equal(value, getattr(build_graph(there), name).cpu()), name
